"""What steps on CUDA compute as graphs: when, with which numbers, and when not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from privaudit.core import step_graphs
from privaudit.core.devices import use_checkpointing
from privaudit.core.errors import PrivauditWarning
from privaudit.core.operations import PeakMemory
from privaudit.core.step_graphs import StepGraph, one_step
from privaudit.models.clip.shared_prefix import SharedPrefixText
from privaudit.models.clip.text_tower import prompt_tokens, text_tower
from privaudit.models.tiny_clip.loading import load
from tests.simulated_device import another_device

Run = Callable[[Tensor], Tensor]


class Graphs:
    """Stands in for CUDA: a captured function leaves its gradient in one place."""

    def __init__(self) -> None:
        self.captured: list[torch.Size] = []
        self.replayed = 0

    def capture(self, run: Run, examples: tuple[Tensor]) -> Run:
        (given,) = examples
        self.captured.append(given.shape)
        place, gradient = given.detach().clone(), torch.empty_like(given)

        def replay(given: Tensor) -> Tensor:
            self.replayed += 1
            place.copy_(given.detach())
            found = torch.func.grad(lambda leaf: run(leaf).sum())(place)
            gradient.copy_(found)
            return run(place) + _InOnePlace.apply(given, gradient)  # type: ignore[no-untyped-call]

        return replay


class _InOnePlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return torch.zeros_like(given)

    @staticmethod
    def backward(ctx: Any, behind: Tensor) -> tuple[Tensor, None]:
        return ctx.gradient.mul_(behind), None


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    stand_in = Graphs()
    monkeypatch.setattr(step_graphs, "_is_on_cuda", lambda tensor: True)
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", stand_in.capture)
    return stand_in


def gradient(run: Run, numbers: list[float]) -> Tensor:
    leaf = torch.tensor(numbers, requires_grad=True)
    with one_step():
        return torch.autograd.grad(run(leaf).sum(), leaf)[0]


def test_from_the_second_step_of_a_shape_on_it_is_replayed(graphs: Graphs) -> None:
    cube = StepGraph(lambda given: given**3)
    found = [gradient(cube, [n, 2 * n]) for n in (1.0, 2.0, 3.0)]
    assert graphs.captured == [(2,)]
    assert graphs.replayed == 2
    wanted = [[3.0, 12.0], [12.0, 48.0], [27.0, 108.0]]
    assert [
        one.tolist() for one in found
    ] == wanted  # none is overwritten by a later one
    assert gradient(cube, [1.0]).tolist() == [3.0]  # another shape, once
    assert gradient(cube, [1.0, 1.0]).tolist() == [3.0, 3.0]
    assert graphs.captured == [(2,)]
    assert graphs.replayed == 3


def test_a_second_call_in_a_step_leaves_the_first_its_numbers(graphs: Graphs) -> None:
    cube = StepGraph(lambda given: given**3)
    for _ in range(3):
        found = gradient(lambda leaf: cube(leaf) + cube(2 * leaf), [1.0])
        assert found.item() == 3 + 24
        found = gradient(lambda leaf: cube(leaf) * gradient(cube, [2.0]), [1.0])
        assert found.item() == 3 * 12
    assert graphs.replayed == 5  # once in each step but the first


def test_elsewhere_it_is_computed_as_it_is_written(graphs: Graphs) -> None:
    cube = StepGraph(lambda given: given**3)
    leaf = torch.ones(2, requires_grad=True)
    for _ in range(3):
        cube(leaf).sum().backward()  # outside of a step
        with torch.no_grad(), one_step():
            cube(leaf)
        with use_checkpointing():
            gradient(cube, [1.0, 2.0])
        with PeakMemory():
            gradient(cube, [1.0, 2.0])
    assert not graphs.captured


def test_where_no_graph_can_be_made_it_says_why_and_goes_on(
    graphs: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> Run:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", refuse)
    cube = StepGraph(lambda given: given**3)
    gradient(cube, [1.0])
    with pytest.warns(PrivauditWarning, match=r"\(out of memory\)"):
        assert gradient(cube, [2.0]).item() == 12
    assert gradient(cube, [2.0]).item() == 12  # without another try


@pytest.mark.gpu
def test_on_cuda_a_step_of_a_text_tower_is_replayed_with_equal_results() -> None:
    model, tokenizer = load()
    tokens = prompt_tokens(tokenizer, ["zero.", "one."], 4, 32)
    drawn = torch.randn(5, 3, 4, 64, generator=torch.Generator().manual_seed(0))
    here = SharedPrefixText(text_tower(model), tokens)
    wanted = torch.stack([_gradient_of(here, contexts) for contexts in drawn])
    with another_device() as device:
        tower = text_tower(model.to(device))
        there = StepGraph(SharedPrefixText(tower, tokens.to(device)))
        parts = [_gradient_of(there, contexts.to(device)) for contexts in drawn]
        found = torch.stack(parts).cpu()
    assert (there._captured[0] is None) == (device.type != "cuda")
    assert (found - wanted).norm() < 1e-5 * wanted.norm()


def _gradient_of(text: Run, contexts: Tensor) -> Tensor:
    leaf = contexts.detach().requires_grad_()
    with one_step():
        return torch.autograd.grad(text(leaf).square().sum(), leaf)[0]
