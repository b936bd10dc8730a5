from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from privaudit.models.layer_factors import LayerFactors, where_reached
from privaudit.models.watched_layers import watch_layers

RECORDS, CLASSES = 6, 5
Weights = dict[str, Tensor]
Query = Callable[[Weights, Tensor], Tensor]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, CLASSES),
    )  # fmt: skip


def by_module(weights: Weights, inputs: Tensor) -> Tensor:
    """Ask as owners do: a copy of the weights in a module, and no gradients."""
    model = net()
    with torch.no_grad():
        model.load_state_dict(weights)
        return model(inputs).detach()


def by_function(weights: Weights, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.func.functional_call(net(), weights, (inputs,))


def in_batches(weights: Weights, inputs: Tensor) -> Tensor:
    return torch.cat([by_function(weights, part) for part in inputs.split(4)])


def watched(query: Query, weights: Weights, inputs: Tensor) -> dict[str, LayerFactors]:
    labels = torch.arange(len(inputs)) % CLASSES
    return watch_layers(
        weights,
        len(inputs),
        lambda: cross_entropy(query(weights, inputs), labels, reduction="sum"),
    )


@pytest.mark.parametrize("query", [by_module, by_function, in_batches])
def test_outer_products_are_the_gradient_however_a_model_is_asked(query: Query) -> None:
    inputs = torch.randn(RECORDS, 3, 8, 8)
    labels = torch.arange(RECORDS) % CLASSES
    model = net()
    cross_entropy(model(inputs), labels, reduction="sum").backward()
    weights = {name: one.detach().clone() for name, one in model.named_parameters()}
    gradients = {
        n: one.grad for n, one in model.named_parameters() if one.grad is not None
    }
    found = watched(query, weights, inputs)
    assert [*found] == ["0.weight", "3.weight", "5.weight"]
    for name, layer in found.items():
        assert layer.deltas is not None
        summed = torch.einsum(
            "ntm,ntd->md", layer.deltas.double(), layer.inputs.double()
        )
        torch.testing.assert_close(
            summed, layer.move(name, gradients), atol=1e-5, rtol=0
        )


@pytest.mark.parametrize(
    ("query", "shape"),
    [
        (lambda w, x: x @ w["weight"].T + w["bias"], (CLASSES, 7)),
        (lambda w, x: x @ w["weight"] + w["bias"], (7, CLASSES)),
        (lambda w, x: torch.addmm(w["bias"], x, w["weight"]), (7, CLASSES)),
        (lambda w, x: (x[None] @ w["weight"][None].mT)[0], (CLASSES, 7)),  # a stack of one
    ],
)  # fmt: skip
def test_products_without_modules_are_found(
    query: Query, shape: tuple[int, int]
) -> None:
    weights = {"weight": torch.randn(shape), "bias": torch.zeros(CLASSES)}
    inputs = torch.randn(RECORDS, 7)
    (layer,) = watched(query, weights, inputs).values()
    assert layer.is_transposed == (shape[0] == 7)
    torch.testing.assert_close(layer.inputs[:, 0, :7], inputs)
    assert layer.deltas is not None
    assert layer.deltas.shape == (RECORDS, 1, CLASSES)


def test_in_inference_mode_inputs_alone_are_seen() -> None:
    @torch.inference_mode()
    def query(weights: Weights, inputs: Tensor) -> Tensor:
        return inputs @ weights["weight"]

    (layer,) = watched(
        query, {"weight": torch.randn(7, CLASSES)}, torch.randn(4, 7)
    ).values()
    assert layer.deltas is None


def test_what_computes_elsewhere_shows_no_layer() -> None:
    def query(weights: Weights, inputs: Tensor) -> Tensor:
        return torch.as_tensor(inputs.numpy() @ weights["weight"].numpy())

    assert watched(query, {"weight": torch.randn(7, CLASSES)}, torch.randn(4, 7)) == {}


def test_a_factor_that_is_zero_hides_no_padding() -> None:
    """Behind it no gradient comes back: what is a place, other layers say."""
    there = torch.tensor([[True, True, False], [True, False, False]])
    deltas = there[..., None] * torch.ones(2, 3, 4)
    entered = {
        "down": LayerFactors(torch.ones(2, 3, 8), torch.zeros(2, 3, 2)),
        "up": LayerFactors(torch.ones(2, 3, 2), deltas),
        "pictures": LayerFactors(torch.ones(2, 5, 6), torch.zeros(2, 5, 4)),
        "unread": LayerFactors(torch.ones(2, 3, 8)),
    }
    found = where_reached(entered)
    for name in ("down", "up", "unread"):
        assert torch.equal(found[name].there, there)
    assert found["pictures"].there.all()  # no layer of as many places says less
    assert all(one.deltas is None for one in found.values())


def test_a_record_without_gradients_keeps_the_places_that_it_has() -> None:
    deltas = torch.zeros(2, 3, 4)
    deltas[0, 1] = 1
    is_place = torch.tensor([[True, True, True], [True, True, False]])
    layer = LayerFactors(torch.ones(2, 3, 8), deltas, is_place)
    expected = torch.tensor([[False, True, False], [True, True, False]])
    assert torch.equal(where_reached({"layer": layer})["layer"].there, expected)
