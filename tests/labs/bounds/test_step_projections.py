from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from privaudit import train
from privaudit.core.errors import AttackError
from privaudit_labs.bounds.gaussian_scores import GaussianScores
from privaudit_labs.bounds.step_projections import step_canaries, step_scores


def test_a_loud_round_hides_less_than_it_does_at_the_end() -> None:
    """Ten quiet rounds tell who is in; one of noise drowns their sum, and not the scores."""
    generator = torch.Generator().manual_seed(0)
    crafted = torch.linalg.qr(torch.randn(64, 40, generator=generator))[0].T
    is_in = np.arange(40) % 2 == 0
    pull = -crafted[torch.from_numpy(is_in)].sum(dim=0)
    noises = [0.5] * 10 + [200.0]
    moves = [pull + n * torch.randn(64, generator=generator) for n in noises]
    stacked = crafted.view(40, 8, 8)
    by_steps = step_scores([move.view(8, 8) for move in moves], stacked)
    at_end = step_scores([sum(moves, torch.zeros(64)).view(8, 8)], stacked)
    assert by_steps[is_in].min() > by_steps[~is_in].max()
    assert at_end[is_in].min() < at_end[~is_in].max()


def test_moves_that_know_no_canary_show_nothing() -> None:
    generator = torch.Generator().manual_seed(1)
    crafted = torch.randn(200, 4, 64, generator=generator)
    moves = [torch.randn(4, 64, generator=generator) for _ in range(5)]
    scores = step_scores(moves, crafted)
    coins = np.random.default_rng(0).random((1000, 200)) < 0.5
    found = GaussianScores().values(np.broadcast_to(scores, coins.shape), coins)
    assert (found > 0).mean() < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 1000)


def test_canaries_of_a_run_are_scored_by_its_uploads(tmp_path: Path) -> None:
    run = train(
        "promptfl", settings={"epochs": 2, "learning_rate": 0.01},
        folder=tmp_path, rounds=3, clients=2, seed=0, canary="gradient", canaries=60,
        measured_rounds=1,
    )  # fmt: skip
    found = step_canaries(run)
    assert len(found.scores) == 120
    inside, outside = found.scores[found.is_member], found.scores[~found.is_member]
    assert inside.mean() - outside.mean() > 2 * (2 / 60) ** 0.5  # standard errors


@pytest.mark.parametrize(
    ("planted", "what"),
    [({}, "has no canaries"), ({"canary": "gradient", "canaries": 1}, "two canaries")],
)
def test_a_run_without_them_is_refused(
    tmp_path: Path, planted: dict[str, Any], what: str
) -> None:
    run = train("promptfl", folder=tmp_path, clients=2, rounds=1, seed=0, **planted)
    with pytest.raises(AttackError, match=what):
        step_canaries(run)
