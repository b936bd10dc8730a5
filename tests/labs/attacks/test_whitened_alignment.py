import numpy as np
import pytest
import torch
from torch import Tensor

from privaudit.auditing.gradient_regression import (
    NOISE_GRID,
    GramBlock,
    likeliest_step,
)
from privaudit.statistics.roc import auroc, pooled_auroc
from privaudit_labs.attacks.whitened_alignment import likelihood_ratios

PUBLIC, CANDIDATES, STEP = 100, 60, 0.3


def gradients(
    numbers: int, fall: float = 0.0, seed: int = 0
) -> tuple[Tensor, np.ndarray]:
    """Gradients about a common mean, ever less along further directions, and coins."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(PUBLIC + CANDIDATES, numbers, generator=generator).double()
    spread = torch.arange(1, numbers + 1).double() ** -fall
    coins = torch.rand(CANDIDATES, generator=generator) < 0.5
    return (drawn + 0.5) * spread, coins.numpy()


def move_of(rows: Tensor, truth: np.ndarray, noise: float = 0.0) -> Tensor:
    """What the mean of members' gradients moves, with noise on each number."""
    total = rows[PUBLIC:][torch.from_numpy(truth)].mean(dim=0)
    generator = torch.Generator().manual_seed(7)
    return -STEP * (total + noise * torch.randn(len(total), generator=generator))


def scored(rows: Tensor, move: Tensor) -> np.ndarray:
    block = GramBlock.of_rows(rows, move)
    return likelihood_ratios(block, PUBLIC, CANDIDATES / 2).numpy()


def test_a_ratio_is_that_of_two_normal_distributions() -> None:
    """In as many dimensions as there are directions, with the covariance written out."""
    rows, truth = gradients(20)
    move, batch = move_of(rows, truth), CANDIDATES / 2
    scores = likelihood_ratios(GramBlock.of_rows(rows, move), PUBLIC, batch)
    mean, covariance = rows.mean(dim=0), torch.cov(rows.T) / batch
    variances, axes = torch.linalg.eigh(covariance)
    size = rows.square().sum(dim=1).mean()
    _, step, noise = likeliest_step(
        -axes.T @ move, axes.T @ mean, variances, NOISE_GRID * size
    )
    assert step == pytest.approx(STEP, rel=0.2)
    spread = covariance + noise * torch.eye(20)
    normal = torch.distributions.MultivariateNormal
    means = mean + (rows[PUBLIC:] - mean) / batch
    wanted = normal(means, spread).log_prob(-move / step)
    wanted -= normal(mean, spread).log_prob(-move / step)
    torch.testing.assert_close(scores, wanted)


@pytest.mark.parametrize("fall", [0.0, 1.0])
def test_members_are_certain_where_numbers_outnumber_them(fall: float) -> None:
    """Also where a few directions hold all of the length, and cosines tell little."""
    rows, truth = gradients(2000, fall)
    move = move_of(rows, truth)
    scores = scored(rows, move)
    assert auroc(scores[truth], scores[~truth]).value > 0.99
    if fall:
        cosines = torch.cosine_similarity(rows[PUBLIC:], -move[None]).numpy()
        assert auroc(cosines[truth], cosines[~truth]).high < 0.95


@pytest.mark.parametrize("noise", [0.0, 500.0])
def test_nothing_is_told_of_other_records_or_beside_noise(noise: float) -> None:
    groups = []
    for seed in range(10):
        rows, truth = gradients(200, seed=seed)
        sent = rows if noise else gradients(200, seed=100 + seed)[0]
        scores = scored(rows, move_of(sent, truth, noise))
        groups.append((scores[truth], scores[~truth]))
    pooled = pooled_auroc(groups)
    assert pooled.low < 0.5 < pooled.high


def test_where_nothing_moved_nothing_is_told() -> None:
    rows, _ = gradients(20)
    block = GramBlock.of_rows(rows, torch.zeros(20))
    assert not likelihood_ratios(block, PUBLIC, 30.0).any()
