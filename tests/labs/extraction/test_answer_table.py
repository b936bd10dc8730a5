"""What a model says of each token of an answer, against an oracle."""

import numpy as np
import pytest
import torch

from privaudit.auditing.attack import Adversary, Target
from privaudit.core.tensors import stack
from privaudit.datasets.records import ANSWER
from privaudit_labs.extraction.answer_table import SamplingScheme, answer_table
from privaudit_labs.member_shares import share
from tests.privaudit.auditing.test_answer_values import TRAINER, Attacked, attacked

ALL = SamplingScheme()
FEW = SamplingScheme(temperature=0.7, top_k=3)


@pytest.fixture(scope="module")
def learned() -> Attacked:
    return attacked(6)


def by_hand(
    adversary: Adversary, target: Target, row: int, scheme: SamplingScheme
) -> list[float]:
    """Oracle: the probability of each token of an answer, one token at a time."""
    records = target.candidates.pick(torch.tensor([row]))
    assert records.words is not None
    assert records.tokens is not None
    model = target.reconstructed.model
    tuning = TRAINER.tuning(adversary.task, stack([model]))
    logits = adversary.task.language.logits(
        records.tokens.read()[None], records.words.repeated(1), tuning
    )[0, 0].double()
    found = []
    for place in (records.words.kinds[0] == ANSWER).nonzero().flatten().tolist():
        weights = (logits[place - 1] / scheme.temperature).exp().tolist()
        allowed = sorted(weights)[-scheme.top_k :] if scheme.top_k else weights
        own = weights[int(records.words.ids[0, place])]
        found.append(own / sum(allowed) if own >= min(allowed) else 0.0)
    return found


@pytest.mark.parametrize("scheme", [ALL, FEW, SamplingScheme(2.0, 1)], ids=str)
def test_the_probability_of_a_suffix_is_the_product_over_its_tokens(
    scheme: SamplingScheme,
) -> None:
    adversary, (target, *_) = attacked(6)
    table = answer_table(
        adversary, target.reconstructed.model, target.candidates, scheme
    )
    for row in range(12):
        by_token = by_hand(adversary, target, row, scheme)
        assert table.sizes[row] == len(by_token)
        for prefix, first in ((0.0, 0), (50.0, (len(by_token) - 1) // 2)):
            expected = np.prod(by_token[first:])
            found = np.exp(table.suffixes(prefix)[row])
            assert found == pytest.approx(expected, rel=1e-4, abs=1e-12)


def test_temperature_and_top_k_by_hand() -> None:
    logits = torch.tensor([4.0, 2.0, 2.0, 1.0, 0.0]).double().log()[:4]
    probabilities = SamplingScheme(temperature=0.5).log_probabilities(logits).exp()
    np.testing.assert_allclose(probabilities, [16 / 25, 4 / 25, 4 / 25, 1 / 25])
    probabilities = SamplingScheme(top_k=2).log_probabilities(logits).exp()
    np.testing.assert_allclose(probabilities, [1 / 2, 1 / 4, 1 / 4, 0])  # ties stay


def test_members_come_greedily_and_others_do_not(learned: Attacked) -> None:
    adversary, targets = learned
    hits = [
        answer_table(
            adversary, t.reconstructed.model, t.candidates, ALL
        ).greedy(0.0)
        for t in targets
    ]  # fmt: skip
    found = share(hits, [np.arange(12) < 6] * len(hits))
    assert found is not None
    assert found.members.n == found.others.n == (18,)
    assert found.members.value > 0.6
    assert found.beyond.low > 0
