from dataclasses import replace

import numpy as np
import pytest
import torch

from privaudit.attacks.extraction import Extraction
from privaudit.auditing.attack import Adversary, Attack, Target
from privaudit.auditing.attack_result import ClientScores, evaluate_scores
from privaudit.auditing.audit import Audit
from privaudit.auditing.signals.token_attack import table_of
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Tensors
from privaudit.datasets.dialogues import ANSWER, PADDING
from privaudit.federated.runs.ledger import Ledger
from privaudit.federated.trainer import Reconstruction
from privaudit.federated.transcripts.threat_models import View, server
from privaudit.report.galleries.captions import (
    END,
    SHOWN_CAPTIONS,
    caption_texts,
    coloured_answer,
    pieces,
    ranked,
)
from privaudit.trainers.lora_fedavg import LoraFedAvg
from tests.privaudit.made_audits import make_writer
from tests.toy_language import toy_dialogues, toy_language, toy_writing_task


def adversary_and_target() -> tuple[Adversary, Target]:
    task, trainer = toy_writing_task(), LoraFedAvg(rank=2)
    model: Tensors = trainer.start(task, Seeds(0))
    adversary = Adversary(trainer, task, server, View("server", ()), Seeds(1))
    return adversary, Target("client-0", Reconstruction(model), toy_dialogues(24))


def scores_of(scores: list[float], name: str = "client-0") -> ClientScores:
    count = len(scores)
    return ClientScores(
        client=name,
        records=np.arange(count),
        labels=np.zeros(count, dtype=np.int64),
        scores=np.array(scores),
        guesses=np.zeros(count, dtype=bool),
        is_member=np.arange(count) % 2 == 0,
    )


@pytest.fixture
def audit() -> Audit:
    joined = [scores_of([float(i) for i in range(24)])]
    leak = evaluate_scores("max-renyi", "settings", "beforehand", joined)
    return replace(make_writer(first=0), results={"max-renyi": leak})


def test_both_ends_are_shown_with_the_truth_beside_them(audit: Audit) -> None:
    adversary, target = adversary_and_target()
    texts = caption_texts(audit, adversary, [target], 2.0)
    assert len(texts) == 2 * SHOWN_CAPTIONS
    assert texts[0].heading.startswith("Most exposed 1 · client-0, 1.7 standard dev")
    assert texts[SHOWN_CAPTIONS].heading.startswith("Least exposed 1 · client-0, 1.7")
    assert "above its mean" in texts[0].heading
    assert "below its mean" in texts[-1].heading
    assert [text.tag for text in texts[:2]] == ["not trained on", "trained on"]
    assert all((text.picture or "").startswith("data:image/png") for text in texts)


def test_a_probability_is_given_of_one_text_and_of_no_group(audit: Audit) -> None:
    adversary, target = adversary_and_target()
    attacks: dict[str, Attack] = {"max-renyi": Extraction()}
    asked = replace(audit, scenario=replace(audit.scenario, attacks=attacks))
    ledger = Ledger(np.zeros(24, np.int64), np.arange(24) % 4 < 2)
    asked.run.__dict__["ledger"] = ledger
    heading = caption_texts(asked, adversary, [target], 2.0)[SHOWN_CAPTIONS].heading
    assert "probability 1 of what is behind 50 %" in heading
    asked.run.__dict__["ledger"] = replace(ledger, group=np.arange(24) // 2 * 2)
    assert all(
        "probability" not in text.heading
        for text in caption_texts(asked, adversary, [target], 2.0)
    )


def test_an_answers_colours_are_the_attacked_models_entropies() -> None:
    """Each piece's entropy is that of the position before it, in the answer only."""
    adversary, target = adversary_and_target()
    records, model = target.candidates, target.reconstructed.model
    table = table_of(adversary, records, model)
    for row in range(len(records)):
        one = records.pick(torch.tensor([row]))
        alone = table_of(adversary, one, model)
        parts, entropies = coloured_answer(toy_language(), one, alone, 2.0)
        assert records.words is not None
        places = (records.words.kinds[row] == ANSWER).nonzero().flatten().tolist()
        assert len(parts) == len(entropies) == len(places)
        assert entropies[0] is None
        wanted = [float(table.entropy(2.0)[row, place - 1]) for place in places[1:]]
        assert list(entropies[1:]) == pytest.approx(wanted, rel=1e-4)


def test_pieces_make_the_text_and_the_end_is_seen() -> None:
    language = toy_language()
    assert pieces(language, torch.tensor([4, 10, 4, 1])) == ("4", " 10", " 4", END)
    assert pieces(language, torch.tensor([4, 10])) == ("4", " 10")
    assert pieces(language, torch.tensor([], dtype=torch.long)) == ()


def test_clients_scores_are_compared_by_their_own_spread() -> None:
    """A client with large scores does not fill the list alone."""
    small, large = scores_of([0.0, 0.1, 0.3]), scores_of([100.0, 200.0, 240.0], "b")
    order = [(record.client, record.row) for record in ranked([small, large])]
    assert order[:2] == [(0, 2), (1, 2)]


def test_equal_scores_keep_their_order() -> None:
    order = [record.row for record in ranked([scores_of([1.0, 1.0, 1.0])])]
    assert order == [0, 1, 2]


def test_few_candidates_are_shown_once(audit: Audit) -> None:
    adversary, target = adversary_and_target()
    leak = replace(audit.headline, clients=[scores_of([3.0, 1.0, 2.0])])
    texts = caption_texts(
        replace(audit, results={"max-renyi": leak}), adversary, [target], 2.0
    )
    assert len(texts) == 2


def test_padding_is_no_piece() -> None:
    records = toy_dialogues(3)
    assert records.words is not None
    assert (records.words.kinds == PADDING).any()
    adversary, target = adversary_and_target()
    one = target.candidates.pick(torch.tensor([0]))
    table = table_of(adversary, one, target.reconstructed.model)
    parts, _ = coloured_answer(toy_language(), one, table, 2.0)
    assert "".join(parts).removesuffix(END) == one.dialogues[0].answers[0]
