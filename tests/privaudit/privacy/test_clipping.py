import math
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privaudit.core.errors import ConfigError, TrainingError
from privaudit.privacy.clipping import (
    clip_each,
    clip_records,
    reach_of_steps,
)

PRECISION = 1e-6  # relative, of float32


def gradients(seed: int, scale: float = 1.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "u": scale * torch.randn(2, 5, 4, 3, generator=generator),
        "v": scale * torch.randn(2, 5, 7, generator=generator),
    }


def joint_norm(tensors: dict[str, torch.Tensor], leading: int) -> torch.Tensor:
    squares = [t.double().square().flatten(leading).sum(-1) for t in tensors.values()]
    return torch.stack(squares).sum(0).sqrt()


def clip_joint(*asked: Any) -> dict[str, torch.Tensor]:
    """Return the sums over records."""
    return {name: g.sum(dim=1) for name, g in clip_records(*asked).items()}


def test_a_three_four_five_triangle_is_clipped_by_hand() -> None:
    tensors = {"u": torch.tensor([[[3.0]]]), "v": torch.tensor([[[4.0]]])}
    clipped = clip_joint(tensors, 1.0)
    assert clipped["u"].item() == pytest.approx(0.6)
    assert clipped["v"].item() == pytest.approx(0.8)


@given(seed=st.integers(0, 10**6), log_scale=st.floats(-30, 30), clip=st.floats(0.1, 9))
@settings(max_examples=30, deadline=None)
def test_no_record_is_longer_than_the_clip_norm(
    seed: int, log_scale: float, clip: float
) -> None:
    clipped = clip_records(gradients(seed, math.exp(log_scale)), clip)
    assert (joint_norm(clipped, 2) <= clip * (1 + PRECISION)).all()


@given(seed=st.integers(0, 10**6), removed=st.integers(0, 4), clip=st.floats(0.1, 9))
@settings(max_examples=30, deadline=None)
def test_removing_one_record_moves_the_sum_by_at_most_the_clip_norm(
    seed: int, removed: int, clip: float
) -> None:
    tensors, mask = gradients(seed), torch.ones(2, 5, dtype=torch.bool)
    whole = clip_joint(tensors, clip, mask)
    mask[:, removed] = False
    rest = clip_joint(tensors, clip, mask)
    moved = joint_norm({name: whole[name] - rest[name] for name in whole}, 1)
    assert (moved <= clip * (1 + 5 * PRECISION)).all()


def test_short_gradients_stay_as_they_are() -> None:
    tensors = gradients(0)
    for clip_norm in (1e3, math.inf):
        clipped = clip_joint(tensors, clip_norm)
        assert torch.equal(clipped["u"], tensors["u"].sum(1))


def test_zero_gradients_stay_zero() -> None:
    clipped = clip_joint({"u": torch.zeros(1, 2, 3)}, 1.0)
    assert torch.equal(clipped["u"], torch.zeros(1, 3))


def test_padding_contributes_nothing_even_if_it_is_not_a_number() -> None:
    tensors, mask = gradients(0), torch.ones(2, 5, dtype=torch.bool)
    mask[1, 3:] = False
    padded = {name: tensor.clone() for name, tensor in tensors.items()}
    padded["u"][1, 3:] = math.nan
    got = clip_joint(padded, 1.0, mask)
    short = clip_joint({name: t[1:, :3] for name, t in tensors.items()}, 1.0)
    torch.testing.assert_close(got["u"][1:], short["u"])
    torch.testing.assert_close(got["v"][1:], short["v"])


def test_a_client_without_records_sums_to_zero() -> None:
    mask = torch.tensor([[True] * 5, [False] * 5])
    assert torch.equal(clip_joint(gradients(0), 1.0, mask)["v"][1], torch.zeros(7))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_stops_training(value: float) -> None:
    tensors = gradients(0)
    tensors["v"][1, 2, 0] = value
    with pytest.raises(TrainingError, match=r"'v' is not finite for client number \[1"):
        clip_joint(tensors, 1.0)
    with pytest.raises(TrainingError, match="'v'"):
        clip_each(tensors, 1.0)


def test_large_gradients_do_not_overflow() -> None:
    clipped = clip_joint({"u": torch.full((1, 1, 4), 1e30)}, 1.0)
    torch.testing.assert_close(clipped["u"], torch.full((1, 4), 0.5))


def test_clipping_each_tensor_looks_at_no_other() -> None:
    tensors = {"u": torch.tensor([[3.0, 4.0]]), "v": torch.tensor([[0.5]])}
    clipped = clip_each(tensors, 1.0)
    torch.testing.assert_close(clipped["u"], torch.tensor([[0.6, 0.8]]))
    torch.testing.assert_close(clipped["v"], tensors["v"])


def test_a_clipped_batch_mean_moves_by_twice_the_clip_norm() -> None:
    """One huge record is enough: clipping the mean bounds no single record."""
    others, record = torch.tensor([[-1.0]]), torch.tensor([[1e6]])
    without = clip_each({"g": others / 32}, 0.01)["g"]
    with_it = clip_each({"g": (others + record) / 32}, 0.01)["g"]
    assert (with_it - without).item() == pytest.approx(0.02)


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, math.nan])
def test_a_clip_norm_that_is_not_above_zero_is_refused(clip_norm: float) -> None:
    with pytest.raises(ConfigError, match="clip norm"):
        clip_joint(gradients(0), clip_norm)


def test_no_gradient_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="no gradient"):
        clip_joint({}, 1.0)


@pytest.mark.parametrize(
    ("momentum", "pull"), [(0.0, 0.0), (0.9, 0.0), (0.0, 5.0), (0.5, 30.0), (0.0, 15.0)]
)
def test_no_clipped_steps_lead_farther_than_the_reach_and_some_lead_there(
    momentum: float, pull: float
) -> None:
    """All ways of six steps to one end of the ball or the other, on a line."""

    def walk(gradients: tuple[float, ...]) -> float:
        place, speed = 0.0, 0.0
        for gradient in gradients:
            speed = momentum * speed + gradient + pull * place
            place -= 0.1 * speed
        return abs(place)

    farthest = max(walk(way) for way in product((-2.0, 2.0), repeat=6))
    reach = reach_of_steps(6, 0.1, 2.0, momentum, pull)
    assert farthest == pytest.approx(reach)
