import pytest
import torch

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.models.interfaces import TunableLayer
from privaudit.tuning.transformers.lora import changes_of, start_pairs, weight_changes

TARGETS = {"low": TunableLayer(5, 4, 0), "high": TunableLayer(4, 6, 1)}


def random_pairs(suffix: str = "", seed: int = 0) -> dict[str, torch.Tensor]:
    stream = Seeds(seed).stream("pairs")
    pairs = start_pairs(TARGETS, 2, stream, suffix)
    return {n: stream.normal_tensor(t.shape) for n, t in pairs.items()}


def test_the_start_changes_nothing_and_a_is_within_its_bound() -> None:
    pairs = start_pairs(TARGETS, 3, Seeds(0).stream("pairs"))
    assert pairs["low.A"].abs().max() <= 5**-0.5
    assert pairs["low.A"].std() > 0.1
    for matrix in weight_changes(TARGETS, pairs, 2.0):
        assert not matrix.any()


def test_a_change_is_the_product_of_its_pair_for_each_model() -> None:
    several = [random_pairs(seed=1), random_pairs(seed=2)]
    models = {n: torch.stack([m[n] for m in several]) for n in several[0]}
    changes = changes_of(TARGETS, models, 0.5)
    x = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(3))
    for row, model in enumerate(several):
        wanted = 0.5 * x[row] @ (model["low.B"] @ model["low.A"]).T
        torch.testing.assert_close(changes["low"](x)[row], wanted)


def test_a_hadamard_change_is_its_own_matrix() -> None:
    model = {**random_pairs(), **random_pairs("2", seed=5)}
    stacked = {n: t[None] for n, t in model.items()}
    x = torch.randn(1, 7, 5, generator=torch.Generator().manual_seed(3))
    matrix = next(iter(weight_changes(TARGETS, model, 0.5)))
    shared = model["low.B"] @ model["low.A"]
    wanted = 0.5 * shared * (1 + model["low.B2"] @ model["low.A2"])
    torch.testing.assert_close(matrix, wanted)
    change = changes_of(TARGETS, stacked, 0.5)["low"]
    torch.testing.assert_close(change(x)[0], x[0] @ wanted.T)


def test_a_layer_without_a_pair_is_refused() -> None:
    only = {n: t for n, t in random_pairs().items() if n.startswith("high")}
    with pytest.raises(ConfigError, match="1 of 2 layers, such as low"):
        changes_of(TARGETS, {n: t[None] for n, t in only.items()}, 1.0)
