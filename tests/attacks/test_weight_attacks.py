"""Attacks on what is sent: in federations of others, what carries the verdict and why."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from privaudit.attacks.joint_regression import JointRegression
from privaudit.attacks.projection_residual import ProjectionResidual
from privaudit.core.errors import AttackError
from privaudit.core.tensors import Tensors
from privaudit.recording.recorder import Recorder
from privaudit.statistics.roc import pooled_auroc
from privaudit.trainers.promptfl import PromptFL
from tests.conftest import toy_records, with_noise
from tests.privaudit.recording.small_federation import (
    Linear,
    X,
    audited,
    run_federation,
    start,
    toss,
)
from tests.toy_federation import CLIENTS, Play

BOTH = {"joint-regression", "projection-residual"}


@dataclass
class Hardly(Linear):
    """Clients that take one step, so short that nothing is learned."""

    steps: int = 1

    def local_update(
        self, received: Tensors, positions: np.ndarray, seed: int
    ) -> dict[str, Tensor]:
        sent = super().local_update(received, positions, seed)
        return {n: received[n] + 1e-4 * (t - received[n]) for n, t in sent.items()}


class Inferring(Hardly):
    def query(self, tensors: Tensors, positions: np.ndarray) -> Tensor:
        with torch.inference_mode():
            return super().query(tensors, positions)


class Elsewhere(Hardly):
    def query(self, tensors: Tensors, positions: np.ndarray) -> Any:
        return (
            X[positions].numpy() @ tensors["weight"].numpy().T + tensors["bias"].numpy()
        )


class Asked:
    """An owner's side without training: models can be asked, and nothing replayed."""

    def __init__(self, owner: Linear) -> None:
        self.labels, self.query = owner.labels, owner.query


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place, ledger = tmp_path_factory.mktemp("weights") / "run", toss()
    generator = torch.Generator().manual_seed(0)
    begin = {n: torch.randn(t.shape, generator=generator) for n, t in start().items()}
    with Recorder(
        place, ledger=ledger, weight="num-examples", trainer="SGD"
    ) as recorder:
        run_federation(recorder, ledger, Hardly(), begin=begin)
    return place


@pytest.mark.parametrize("scenario", ["server-reconstruct", "server-aggregate"])
def test_weights_carry_the_verdict_where_models_learned_nothing(
    folder: Path, scenario: str
) -> None:
    audit = audited(folder, scenario, owner=Asked(Hardly()))
    assert audit.headline.attack in BOTH
    assert audit.auroc.value > 0.99
    assert audit.results["loss-threshold"].auroc.value < 0.8


def test_without_gradients_inputs_are_enough(folder: Path) -> None:
    audit = audited(folder, owner=Asked(Inferring()))
    assert "joint-regression" not in audit.results
    assert "joint-regression was left out: " in audit.scenario.note
    assert (
        audit.results["projection-residual"].auroc.low > 0.5
    )  # 3 directions, 12 members


def test_models_outside_of_torch_leave_both_out(folder: Path) -> None:
    audit = audited(folder, owner=Asked(Elsewhere()))
    assert not BOTH & audit.results.keys()
    assert audit.headline.attack == "loss-threshold"
    with pytest.raises(AttackError, match="multiplies no layer's inputs"):
        audited(folder, owner=Asked(Elsewhere()), attacks=["projection-residual"])


def test_more_records_than_numbers_have_no_power(play: Play) -> None:
    played = play(PromptFL(epochs=1, batch_size=0))
    many = {c: toy_records(200, 60 + n) for n, c in enumerate(CLIENTS)}
    adversary, targets = played.watched(candidates=many)
    assert "200 records" in JointRegression(rounds=1).why_not(adversary, targets)


def test_numbers_that_are_not_finite_are_said(play: Play) -> None:
    adversary, targets = play(PromptFL(epochs=1)).watched()
    broken = [
        replace(m, tensors={n: t * torch.nan for n, t in m.tensors.items()})
        if m.is_update
        else m
        for m in adversary.view.messages
    ]
    blind = replace(adversary, view=replace(adversary.view, messages=tuple(broken)))
    assert "not finite" in JointRegression().why_not(blind, targets)


def test_prompts_multiply_no_inputs(play: Play) -> None:
    adversary, targets = play(PromptFL(epochs=1)).watched()
    assert ProjectionResidual().why_not(adversary, targets)
    assert not ProjectionResidual.applies_to(PromptFL(), None)


def test_coins_that_nobody_used_are_not_found(play: Play) -> None:
    """Members are trained on; other coins are tossed for the same candidates."""
    asked = {c: with_noise(toy_records(24, 50 + n), n) for n, c in enumerate(CLIENTS)}
    shards = {c: records.pick(torch.arange(0, 24, 2)) for c, records in asked.items()}
    played = play(PromptFL(learning_rate=1e-3, epochs=2, batch_size=0), shards=shards)
    scores = JointRegression()(*played.watched(candidates=asked))
    found = []
    for seed in range(200):
        coins = np.random.default_rng(seed).random((len(scores), 24)) < 0.5
        groups = [
            (s.scores[c], s.scores[~c]) for s, c in zip(scores, coins, strict=True)
        ]
        found.append(pooled_auroc(groups).value)
    # Their standard deviation is 0.07, that of the mean of 200 0.005.
    assert abs(np.mean(found) - 0.5) < 4 * 0.005
