"""What a model says of each token of an answer, against an oracle."""

from dataclasses import replace

import numpy as np
import pytest

from privaudit.auditing.answer_values import answer_values
from privaudit.auditing.attack import Adversary, Target
from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import stack
from privaudit.datasets.records import ANSWER
from privaudit.federation.threat_models import View, server
from privaudit.federation.trainer import Reconstruction
from privaudit.trainers.lora_fedavg import LoraFedAvg
from tests.toy_federation import CLIENTS
from tests.toy_language import parrot, toy_dialogues, toy_writing_task

TRAINER = LoraFedAvg(rank=2)
Attacked = tuple[Adversary, list[Target]]


def attacked(known: int) -> Attacked:
    """Return clients, the first of whose candidates the model memorised."""
    asked = {c: toy_dialogues(12, 50 + n) for n, c in enumerate(CLIENTS)}
    memory = [r.words[:known] for r in asked.values() if r.words is not None]
    task = replace(toy_writing_task(), backbone=parrot(memory))
    model = TRAINER.start(task, Seeds(0))
    adversary = Adversary(TRAINER, task, server, View("server", ()), Seeds(1))
    return adversary, [
        Target(client, Reconstruction(model), records)
        for client, records in asked.items()
    ]


def test_values_are_those_of_one_token_at_a_time() -> None:
    adversary, (target, *_) = attacked(6)
    model, candidates = target.reconstructed.model, target.candidates
    (found,) = answer_values(adversary, model, candidates)
    assert candidates.tokens is not None
    assert candidates.words is not None
    tuning = TRAINER.tuning(adversary.task, stack([model]))
    logits = adversary.task.language.logits(
        candidates.tokens.read()[None], candidates.words.repeated(1), tuning
    )[0].double()
    for row, (ids, kinds) in enumerate(
        zip(candidates.words.ids, candidates.words.kinds, strict=True)
    ):
        places = (kinds == ANSWER).nonzero().flatten()
        weights = logits[row, places - 1].exp()
        own = weights.gather(1, ids[places][:, None])[:, 0] / weights.sum(dim=1)
        np.testing.assert_allclose(found[row, : len(own)].exp(), own, rtol=1e-4)
        assert not found[row, len(own) :].any()


def test_records_without_an_answer_are_refused() -> None:
    adversary, (target, *_) = attacked(0)
    blank = replace(target.candidates, words=None)
    with pytest.raises(ConfigError, match="not all records have an answer"):
        answer_values(adversary, target.reconstructed.model, blank)
