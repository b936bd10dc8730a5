import math

import pytest
import torch
from torch import Tensor

from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked
from privaudit.federated.batches import Batch, Objective
from privaudit.tuning.transformers.zeroth_order import two_point

SIZE = 5


def batch_of(clients: int, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(clients, 4, SIZE, generator=generator)
    mask = torch.ones(clients, 4, dtype=torch.bool)
    return Batch(features, torch.zeros(clients, 4, dtype=torch.long), mask)


def quadratic(parameters: Stacked, batch: Batch) -> Tensor:
    """Squares of how far two tensors' numbers together are from the records."""
    point = torch.cat([parameters["a"].flatten(1), parameters["b"]], dim=1)
    scale = torch.arange(1.0, SIZE + 1)
    return (scale * (point.unsqueeze(1) - batch.features) ** 2).sum(dim=2).mean(dim=1)


def start(clients: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    return {
        "a": torch.randn(clients, 1, 2, generator=generator),
        "b": torch.randn(clients, SIZE - 2, generator=generator),
    }


def slope_of(objective: Objective, parameters: Stacked, batch: Batch) -> Tensor:
    leaves = {n: t.clone().requires_grad_() for n, t in parameters.items()}
    found = torch.autograd.grad(objective(leaves, batch).sum(), list(leaves.values()))
    return torch.cat([g.flatten(1) for g in found], dim=1)


def estimated(
    parameters: Stacked, batch: Batch, directions: int, seeds: list[int], most: int = 64
) -> Tensor:
    streams = [Seeds(seed).stream("directions") for seed in seeds]
    look = two_point(directions, 0.1, streams, most)
    found, _ = look(quadratic, parameters, batch)
    return torch.cat([g.flatten(1) for g in found.values()], dim=1)


def test_the_estimate_has_the_gradient_of_a_quadratic_as_its_mean() -> None:
    """Of one direction d: E[g.d d] = g, and each number has a variance below 3 |g|²."""
    many = 20_000
    true = slope_of(quadratic, start(1), batch_of(1))
    mean = estimated(start(1), batch_of(1), many, [1], most=2 * many)
    error = float(true.norm()) * math.sqrt(3 / many)
    assert (mean - true).abs().max() < 4.5 * error
    assert true.abs().max() > 50 * error


def test_one_direction_gives_the_derivative_along_it() -> None:
    """For |d|² = n the estimate e = (g.d) d has g.e = (g.d)² = |e|² / n."""
    true = slope_of(quadratic, start(1), batch_of(1))[0]
    found = estimated(start(1), batch_of(1), 1, [3])[0]
    assert float(true @ found) == pytest.approx(float(found @ found) / SIZE, rel=1e-3)


def test_in_one_dimension_it_is_the_slope_of_the_smoothed_loss() -> None:
    """The mean of x³ over [p - s, p + s] is p³ + p s², and its slope 3 p² + s²."""

    def cube(parameters: Stacked, batch: Batch) -> Tensor:
        return parameters["a"].flatten(1).sum(dim=1) ** 3

    look = two_point(3, 0.5, [Seeds(0).stream("directions")])
    found, loss = look(cube, {"a": torch.full((1, 1), 2.0)}, batch_of(1))
    assert float(found["a"]) == pytest.approx(12.25)
    assert float(loss) == pytest.approx(8 + 3 * 2 * 0.25)
    assert not found["a"].requires_grad


def test_equal_streams_give_equal_estimates_and_others_do_not() -> None:
    some = [estimated(start(1), batch_of(1), 4, [seed]) for seed in (5, 5, 6)]
    assert torch.equal(some[0], some[1])
    assert not torch.allclose(some[0], some[2])


def test_clients_together_are_each_alone_whatever_fits_in_one_pass() -> None:
    together = estimated(start(3), batch_of(3), 5, [1, 2, 3])
    assert torch.allclose(
        estimated(start(3), batch_of(3), 5, [1, 2, 3], most=2), together, atol=1e-4
    )
    for row in range(3):
        one = {name: tensor[[row]] for name, tensor in start(3).items()}
        whole = batch_of(3)
        own = Batch(whole.features[[row]], whole.labels[[row]], whole.mask[[row]])
        alone = estimated(one, own, 5, [row + 1])
        torch.testing.assert_close(alone[0], together[row], rtol=1e-4, atol=1e-4)
