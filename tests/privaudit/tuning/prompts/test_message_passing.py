import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privaudit.tuning.prompts.proximal import attention, pass_messages, pull
from tests.golden import golden_tensors


def others(prompts: torch.Tensor, row: int) -> torch.Tensor:
    return torch.cat([prompts[:row], prompts[row + 1 :]])


@pytest.mark.parametrize("case", range(6))
def test_mixes_are_those_of_the_formula(case: int) -> None:
    """By formula in float64: xi, U, and the client's penalty with its gradient."""
    known = golden_tensors("fedamp", f"c{case}_")
    prompts = known["W"]
    alpha, sigma, lam = (float(known[n]) for n in ("alpha", "sigma", "lam"))
    for row, own in enumerate(prompts):
        rest = others(prompts, row)
        weights = attention(own, rest, alpha, sigma)
        torch.testing.assert_close(
            weights, others(known["xi"][row], row), rtol=0, atol=1e-12
        )
        mix = pass_messages(own, rest, alpha, sigma)
        torch.testing.assert_close(mix, known["U"][row], rtol=0, atol=1e-12)
    leaf = prompts.clone().requires_grad_()
    penalty = pull(leaf, known["U"], lam / alpha)
    (slope,) = torch.autograd.grad(penalty.sum(), leaf)
    torch.testing.assert_close(
        penalty.detach(), known["prox_penalty_at_W"], rtol=0, atol=1e-12
    )
    torch.testing.assert_close(slope, known["prox_grad_at_W"], rtol=0, atol=1e-12)


def test_two_prompts_by_hand() -> None:
    """Distance 2, squared 4; 0.5 exp(-4 / 4) / 4 of the way to the other."""
    own, other = torch.zeros(1), torch.full((1, 1), 2.0)
    share = 0.5 * np.exp(-1) / 4
    assert pass_messages(own, other, 0.5, 4.0).item() == pytest.approx(2 * share)


@given(count=st.integers(1, 6), seed=st.integers(0, 99), sigma=st.floats(0.1, 50.0))
@settings(deadline=None, max_examples=40)
def test_a_bounded_step_gives_a_mean(count: int, seed: int, sigma: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    prompts = torch.randn(count + 1, 4, generator=generator, dtype=torch.float64)
    mix = pass_messages(prompts[0], prompts[1:], sigma / count, sigma)
    assert bool((mix <= prompts.max(dim=0).values + 1e-9).all())
    assert bool((mix >= prompts.min(dim=0).values - 1e-9).all())


def test_those_far_away_are_ignored() -> None:
    own, far = torch.ones(3), torch.full((2, 3), 100.0)
    assert torch.equal(pass_messages(own, far, 0.5, 1.0), own)
