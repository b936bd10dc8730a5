"""Texts are drawn out of a model that memorised them, and not out of another."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from privaudit.core.tensors import stack
from privaudit.datasets.records import ANSWER, TokenSequences
from privaudit.federation.trainer import Records, Task
from privaudit.models.interfaces import Tuning
from privaudit_labs.extraction.answer_table import SamplingScheme, answer_table
from privaudit_labs.extraction.drawn_texts import SuffixDraws, is_extractable
from privaudit_labs.extraction.extraction import Extraction
from privaudit_labs.member_shares import share
from tests.labs.extraction.test_answer_table import ALL, FEW, learned
from tests.privaudit.auditing.test_answer_values import TRAINER, Attacked, attacked
from tests.toy_language import END, VOCABULARY, parrot, toy_dialogues, toy_writing_task


def test_what_was_memorised_comes_at_once(learned: Attacked) -> None:
    adversary, targets = learned
    for target in targets:
        model, records = target.reconstructed.model, target.candidates
        table = answer_table(adversary, model, records, ALL)
        assert np.exp(table.suffixes(50.0)[:6]).min() > 0.9
        assert table.greedy(50.0)[:6].all()
        assert is_extractable(table.suffixes(50.0)[:6], 1, 0.5).all()
        assert is_extractable(table.suffixes(50.0)[:6], 2, 0.9).all()


def test_an_untrained_model_says_of_both_the_same() -> None:
    """Of many federations that learned nothing at most 1 in 20 differ for certain."""
    alarms, rounds = 0, 300
    rng = np.random.default_rng(5)
    adversary, (target, *_) = attacked(0)
    model, candidates = target.reconstructed.model, toy_dialogues(60, 9)
    logs = answer_table(adversary, model, candidates, ALL).suffixes(50.0)
    hits = is_extractable(logs, 100, 0.5)
    assert 0 < hits.mean() < 1
    for _ in range(rounds):
        found = share([hits], [rng.random(60) < 0.5])
        alarms += found is not None and found.beyond.low > 0
    assert alarms <= 0.025 * rounds + 3 * (0.025 * 0.975 * rounds) ** 0.5


@pytest.mark.parametrize("scheme", [ALL, FEW], ids=str)
def test_draws_come_as_often_as_they_should(scheme: SamplingScheme) -> None:
    adversary, (target, *_) = attacked(3)
    model, records = target.reconstructed.model, target.candidates
    table = answer_table(adversary, model, records, scheme)
    tuning = TRAINER.tuning(adversary.task, stack([model]))
    draws = SuffixDraws(adversary.task, tuning, scheme, 0.0, 400).of(
        records, table.starts(50.0), np.random.default_rng(0)
    )
    expected = np.exp(table.suffixes(50.0))
    error = np.sqrt(expected * (1 - expected) / 400) + 1 / 400
    assert (np.abs(draws.exact / 400 - expected) < 4 * error).all()
    assert np.array_equal(draws.exact, draws.near)
    assert 0.05 < expected.mean() < 0.95


def test_near_matches_are_counted_place_by_place() -> None:
    """With one token of a suffix of three free, against all that can be drawn."""
    task, records = toy_writing_task(), toy_dialogues(3, 4).pick(torch.tensor([1]))
    draws = SuffixDraws(task, Tuning(), ALL, 34.0, 4000).of(
        records, torch.tensor([1]), np.random.default_rng(1)
    )
    assert records.words is not None
    own = records.words.ids[0, (records.words.kinds[0] == ANSWER).nonzero().flatten()]
    assert len(own) == 4
    assert draws.near[0] / 4000 == pytest.approx(_near(task, records), abs=0.03)
    assert draws.near[0] > draws.exact[0] > 0


def _near(task: Task, records: Records) -> float:
    """Oracle: the sum over all suffixes of three tokens of which two are right."""
    language = task.language
    assert records.words is not None
    assert records.tokens is not None
    places = (records.words.kinds[0] == ANSWER).nonzero().flatten()[1:].tolist()
    own = records.words.ids[0, places].tolist()
    picture, total = records.tokens.read()[None], 0.0

    def p(ids: torch.Tensor, place: int) -> torch.Tensor:
        assert records.words is not None
        words = TokenSequences(ids[None], records.words.kinds)
        logits = language.logits(picture, words.repeated(1), Tuning())
        return logits[0, 0, place - 1].double().softmax(-1)

    for wrong in range(3):
        for token in range(VOCABULARY):
            if token == own[wrong] or (token == END and wrong < 2):
                continue
            ids = records.words.ids[0].clone()
            ids[places[wrong]] = token
            total += float(
                np.prod([float(p(ids, at)[ids[at]]) for at in places])
            )  # fmt: skip
    ids = records.words.ids[0]
    return total + float(np.prod([float(p(ids, at)[ids[at]]) for at in places]))


def test_a_draw_that_ends_early_lacks_the_rest_and_goes_on_no_further() -> None:
    """Of four tokens it has the first two, and then ends: two places differ."""
    task, records = toy_writing_task(), toy_dialogues(3, 4).pick(torch.tensor([1]))
    assert records.words is not None
    ids = records.words.ids.clone()
    place = int((records.words.kinds[0] == ANSWER).nonzero()[2])
    ids[0, place : place + 2] = torch.tensor([END, 5])  # whatever stands behind it
    ending = parrot([TokenSequences(ids, records.words.kinds)])
    for near, least, most in ((50.0, 380, 400), (49.0, 0, 20)):
        draws = SuffixDraws(
            replace(task, backbone=ending), Tuning(), ALL, near, 400
        ).of(records, torch.tensor([0]), np.random.default_rng(1))
        assert draws.exact[0] <= 20
        assert least <= draws.near[0] <= most


def test_the_attack_draws_some_candidates_whoever_they_are(learned: Attacked) -> None:
    adversary, targets = learned
    attack = Extraction(texts=5, tries=30, top_k=0)
    found = attack.extract(adversary, targets[0])
    assert len(found.drawn) == len(found.draws.exact) == 5
    known = found.drawn < 6
    assert (found.draws.exact[known] > 15).all()
    none = Extraction(tries=0).extract(adversary, targets[0])
    assert not len(none.drawn)


def test_a_text_that_cannot_be_drawn_has_a_finite_score() -> None:
    adversary, targets = attacked(0)
    scores = Extraction(prefix=0.0, top_k=1)(adversary, targets)
    assert all(np.isfinite(s.scores).all() for s in scores)
    assert min(s.scores.min() for s in scores) == -1e30


__all__ = ["learned"]  # a fixture
