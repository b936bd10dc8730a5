"""Planted secrets stand out where they are known, and have any rank where they are not."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.parts.exposure import (
    SecretScores,
    expected_exposure,
    score_secrets,
    summarise,
    with_others,
)
from privaudit.auditing.parts.one_run import BY_SECRET, OneRunAudit
from privaudit.core.seeds import Seeds
from privaudit.datasets.canaries import Canaries
from privaudit.datasets.records import ANSWER, INSTRUCTION, PICTURE, TokenSequences
from privaudit.federation.threat_models import View, server
from privaudit.federation.trainer import Reconstruction, Records
from privaudit.trainers.lora_fedavg import LoraFedAvg
from tests.privaudit.auditing.parts.test_one_run import audited
from tests.toy_language import (
    PARTS,
    VOCABULARY,
    parrot,
    toy_dialogues,
    toy_writing_task,
)

OTHERS, DIGITS = 31, 4


def canaries(count: int) -> tuple[Records, torch.Tensor]:
    """Return records with random digits for answers, and other digits for each."""
    generator = torch.Generator().manual_seed(9)
    shape = (count, 1 + OTHERS, DIGITS)
    drawn = torch.randint(2, VOCABULARY, shape, generator=generator)
    records = toy_dialogues(count, 4)
    asked = torch.cat(
        [
            torch.randint(2, 9, (count, PARTS), generator=generator),
            torch.tensor([[2, 3]]).expand(count, 2),
        ],
        dim=1,
    )
    ids = torch.cat([asked, drawn[:, 0]], dim=1)
    kinds = torch.full_like(ids, ANSWER)
    kinds[:, :PARTS], kinds[:, PARTS : PARTS + 2] = PICTURE, INSTRUCTION
    return replace(records, words=TokenSequences(ids, kinds)), drawn[:, 1:]


def scored(known: int, count: int = 24) -> SecretScores:
    """Score canaries, of which a model memorised the first."""
    records, others = canaries(count)
    assert records.words is not None
    trainer, task = LoraFedAvg(rank=2), toy_writing_task()
    task = replace(task, backbone=parrot([records.words[:known]]))
    adversary = Adversary(trainer, task, server, View("server", ()), Seeds(1))
    model = Reconstruction(trainer.start(task, Seeds(0)))
    return score_secrets(
        adversary, Target("client-0", model, records), torch.arange(count), others
    )


def test_what_is_known_is_ranked_above_all_others() -> None:
    found = scored(known=12)
    bits = math.log2(1 + OTHERS)
    np.testing.assert_allclose(found.exposure[:12], bits)
    assert found.exposure[12:].mean() < bits / 2
    assert found.margin[:12].min() > found.margin[12:].max()
    summary = summarise(found.exposure, np.arange(24) < 12, 1 + OTHERS)
    assert summary is not None
    assert summary.first_of_members.value == 1
    assert summary.beyond.low > 0.3


def test_each_canary_stands_before_the_same_with_other_secrets() -> None:
    records, others = canaries(3)
    texts = with_others(records, others)
    assert records.words is not None
    assert texts.words is not None
    ids = texts.words.ids.view(3, 1 + OTHERS, -1)
    assert torch.equal(ids[:, 0], records.words.ids)
    assert torch.equal(ids[:, 1:, -DIGITS:], others)
    assert (ids[:, :, :-DIGITS] == ids[:, :1, :-DIGITS]).all()


def test_a_secret_that_nobody_knows_has_any_rank() -> None:
    """In 4,000 of 32 equal candidates each, and in closed form."""
    logs = np.random.default_rng(3).normal(size=(4000, 1 + OTHERS))
    bits = SecretScores("client-0", logs).exposure
    assert bits.mean() == pytest.approx(expected_exposure(1 + OTHERS), abs=0.08)
    for least in (1, 2, 3, 5):
        assert (bits >= least).mean() == pytest.approx(2.0**-least, abs=0.025)


def null_exposures(nulls: int) -> np.ndarray:
    """Return the shares of alarms about 60 secrets that no model saw.

    Of members against others, of others and of their first ranks against what is
    expected of none. Each is scored as the code does it, beside the others it is given.
    """
    rng = np.random.default_rng(4)
    planted = Canaries.draw("secret", [np.arange(300)], 60, Seeds(0), (0, 0), 1.0)
    alarms = np.zeros(3)
    for number in range(nulls):
        drawn = replace(planted, seeds=Seeds(number))
        texts = [one.answers[0] for one in drawn.alternatives(7)]
        likely = {text: rng.normal() for text in texts}  # whatever a model says
        logs = np.array([likely[text] for text in texts]).reshape(60, 7)
        logs = np.column_stack([rng.normal(size=60), logs])
        found = summarise(
            SecretScores("client-0", logs).exposure, rng.random(60) < 0.5, 8
        )
        assert found is not None
        alarms += (
            found.beyond.low > 0,
            found.others.excludes(found.untrained),
            found.first_of_others.excludes(1 / 8),
        )
    return alarms / nulls


def test_exposures_of_untrained_secrets_raise_few_alarms() -> None:
    for share, nominal in zip(null_exposures(400), (0.025, 0.05, 0.05), strict=True):
        assert share <= nominal + 3 * math.sqrt(nominal * (1 - nominal) / 400)


def test_equally_likely_secrets_expose_nothing() -> None:
    flat = SecretScores("client-0", np.zeros((5, 8)))
    np.testing.assert_array_equal(flat.exposure, 0)
    np.testing.assert_allclose(flat.margin, 0, atol=1e-12)
    assert summarise(flat.exposure, np.ones(5, bool), 8) is None


def bounded(logs: np.ndarray, coins: np.ndarray) -> OneRunAudit:
    """Hold secrets' scores of four clients against a claim of 0.5."""
    planted = Canaries("secret", np.arange(len(logs)), Seeds(0), (0, 0), 1.0)
    parts = np.array_split(logs, 4)
    own = [SecretScores(f"client-{n}", p).margin for n, p in enumerate(parts)]
    return audited(logs[:, 0], coins, canaries=planted, scored_by=BY_SECRET, own=own)


def null_bounds(nulls: int) -> float:
    """Return the share of bounds above 0, from 100 secrets that no model saw."""
    rng = np.random.default_rng(5)
    alarms = [
        bounded(rng.normal(size=(100, 16)), rng.random(100) < 0.5).bound.value > 0
        for _ in range(nulls)
    ]
    return float(np.mean(alarms))


def test_secrets_bound_epsilon() -> None:
    """Certain where members' are known; at most 5 % above 0 where none is."""
    rng = np.random.default_rng(5)
    coins = rng.random(400) < 0.5
    logs = rng.normal(size=(400, 16))
    known = logs + 30 * coins[:, None] * (np.arange(16) == 0)
    found = bounded(known, coins)
    assert found.scored_by == BY_SECRET
    assert found.verdict.kind == "REFUTED"
    assert found.bound.value > 3
    assert null_bounds(100) <= 0.11  # 5 % and three standard errors
