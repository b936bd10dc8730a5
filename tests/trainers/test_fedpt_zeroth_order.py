import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from privaudit import train
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked
from privaudit.federation.batches import Batch, Objective
from privaudit.trainers.fedpt import FedPT
from privaudit.trainers.fedpt_zeroth_order import FedPTZerothOrder, two_point
from tests.conftest import Cli
from tests.toy_federation import Play


def test_without_directions_it_is_fedpt(play: Play) -> None:
    exact, plain = (
        play(trainer, rounds=1).uploads()
        for trainer in (FedPTZerothOrder(directions=0), FedPT())
    )
    for client, other in plain.items():
        assert all(torch.equal(exact[client][name], other[name]) for name in other)


def test_many_directions_lead_where_the_gradient_does(play: Play) -> None:
    usual: dict[str, Any] = {
        "optimizer": "sgd",
        "epochs": 1,
        "learning_rate": 0.1,
        "virtual_tokens": 1,
    }
    ((name, start),) = play(FedPT(**usual), rounds=0).server.items()
    look = FedPTZerothOrder(**usual, directions=400, models_at_once=10_000)
    one, other = (
        play(trainer, rounds=1).uploads() for trainer in (look, FedPT(**usual))
    )
    for client in other:
        found, true = (
            (sent[client][name] / sent[client]["weight"] - start).flatten()
            for sent in (one, other)
        )
        assert torch.cosine_similarity(found, true, dim=0) > 0.95


def test_a_query_is_a_record_answered_by_one_model() -> None:
    assert FedPTZerothOrder(epochs=3, directions=4).model_queries(10) == 3 * 10 * 8
    assert FedPTZerothOrder(epochs=3, directions=0).model_queries(10) == 30


@pytest.mark.slow
def test_on_digits_it_improves_over_its_start_and_queries_are_reported(
    tmp_path: Path, cli: Cli
) -> None:
    settings = {"directions": 4, "epochs": 2}
    trainer = "fedpt-zeroth-order"
    run = train(trainer, folder=tmp_path, rounds=6, seed=0, settings=settings)
    local = [line["local_accuracy"] for line in run.metrics]
    loss = [line["training_loss"] for line in run.metrics]
    assert loss[-1] < 0.85 * loss[0]
    assert local[-1] > local[0]
    words = ["--set", "directions=4", "--set", "epochs=2", "--rounds", "6"]
    words += ["--trainer", trainer, "--seed", "0", "--runs", str(tmp_path), "--json"]
    code, out, _ = cli("train", "--seed", 0, *words)
    metrics = json.loads(out.splitlines()[-1])
    asked = sum(line["model_queries"] for line in run.metrics)
    members = asked / 6 / (2 * 8)
    assert code == 0
    assert re.search(rf"\b{asked}\b", json.dumps(metrics))
    assert members == sum(run.ledger.members_of(i).size for i in range(10))


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
