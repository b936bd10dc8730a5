import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privaudit.core.seeds import Seeds
from privaudit.federation.trainer import Cohort, Records, Round
from privaudit.privacy.clipping import clip_each, clip_records
from privaudit.tuning.prompts.low_rank import (
    Factors,
    Kind,
    Rank,
    Variant,
    by_factors,
    draw_factors,
    expected_local_share,
    factorize,
    orthonormalize,
    reconstruct_gradient,
)
from tests.golden import golden_tensors


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("rank", [1, 2, 4, 8, 16])
@pytest.mark.parametrize(
    ("kind", "variant", "prefix", "parts", "rebuilt"),
    [
        ("both", "equation-4", "", "u v r g_u g_v", "full_grad_eq4"),
        ("both", "published-code", "", "u v r g_u g_v", "full_grad_ref_code"),
        ("left", "equation-4", "left_", "v r g_u", "left_full_grad"),
    ],
)
def test_factors_and_gradient_are_those_of_the_published_code_and_the_formula(
    kind: Kind, variant: Variant, prefix: str, parts: str, rebuilt: str, rank: int
) -> None:
    """Reference: trainers/DP_FPL.py of the paper's repository, in float64."""
    want, close = golden_tensors("rgp", f"k{rank}_"), 1e-8 if rank == 16 else 1e-10
    factors = factorize(want["P"], want["V0"], kind)
    u, v = factors.u, factors.v
    g_u, g_v = want["G"] @ v.mT, u.mT @ want["G"]
    got = {"u": u, "v": v, "r": factors.residual, "g_u": g_u, "g_v": g_v}
    full = reconstruct_gradient(g_u, g_v, u, v, kind, variant)
    for name in parts.split():
        torch.testing.assert_close(got[name], want[prefix + name], rtol=0, atol=close)
    torch.testing.assert_close(full, want[rebuilt], rtol=0, atol=close)


def test_float32_agrees_to_its_own_precision() -> None:
    want = golden_tensors("rgp", "k8_")
    factors = factorize(want["P"].float(), want["V0"].float())
    torch.testing.assert_close(factors.u.double(), want["u"], rtol=0, atol=1e-4)
    torch.testing.assert_close(factors.v.double(), want["v"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["both", "left"])
@pytest.mark.parametrize("rank", [1, 3, 8])
def test_the_rebuilt_gradient_is_a_projection_of_the_gradient(
    kind: Kind, rank: int
) -> None:
    """G - (I - u u.T) G (I - v+ v), of a stack of two prompts."""
    prompt, gradient = normal(2, 8, 20), normal(2, 8, 20, seed=1)
    factors = factorize(prompt, normal(2, 20, rank, seed=2), kind)
    u, v = factors.u, factors.v
    reconstructed = reconstruct_gradient(gradient @ v.mT, u.mT @ gradient, u, v, kind)
    outside_u = torch.eye(8) - u @ u.mT
    outside_v = torch.eye(20) - torch.linalg.pinv(v) @ v
    torch.testing.assert_close(
        reconstructed, gradient - outside_u @ gradient @ outside_v
    )


@given(seed=st.integers(0, 10**6), rank=st.integers(1, 6), content=st.integers(0, 6))
@settings(max_examples=30, deadline=None)
def test_factors_are_orthonormal_whatever_the_rank_of_the_prompt(
    seed: int, rank: int, content: int
) -> None:
    prompt = normal(3, 6, content, seed=seed) @ normal(3, content, 9, seed=seed + 1)
    start = normal(3, 9, rank, seed=seed + 2)
    factors = factorize(prompt.float(), start.float())
    identity = torch.eye(rank).expand(3, rank, rank)
    torch.testing.assert_close(factors.u.mT @ factors.u, identity)
    torch.testing.assert_close(factors.v @ factors.v.mT, identity)
    reconstructed = factors.u @ factors.v + factors.residual
    torch.testing.assert_close(reconstructed, prompt.float())


@pytest.mark.parametrize("kind", ["both", "left"])
def test_a_zero_prompt_has_finite_factors_and_gradient(kind: Kind) -> None:
    factors = factorize(torch.zeros(6, 9), normal(9, 4).float(), kind)
    u, v, gradient = factors.u, factors.v, normal(6, 9).float()
    reconstructed = reconstruct_gradient(gradient @ v.mT, u.mT @ gradient, u, v, kind)
    torch.testing.assert_close(u.mT @ u, torch.eye(4))
    assert torch.isfinite(reconstructed).all()
    assert reconstructed.norm() > 0


def test_a_rank_deficient_prompt_gives_the_same_factors_alone_as_in_a_stack() -> None:
    prompt = (normal(5, 16, 3) @ normal(5, 3, 64, seed=1)).float()
    start = normal(5, 64, 8, seed=2).float()
    stacked = factorize(prompt, start)
    alone = [factorize(p, s) for p, s in zip(prompt, start, strict=True)]
    torch.testing.assert_close(
        stacked.u, torch.stack([f.u for f in alone]), rtol=0, atol=1e-4
    )


def test_the_first_column_keeps_its_direction() -> None:
    basis = orthonormalize(torch.tensor([[0.0, 1.0], [-2.0, 5.0]]))
    assert basis.tolist() == [[0.0, 1.0], [-1.0, 0.0]]


def test_left_factors_approximate_better_than_both() -> None:
    prompt, start = normal(8, 20), normal(20, 3, seed=1)
    errors = {
        kind: float(factorize(prompt, start, kind).residual.norm())
        for kind in ("both", "left")
    }
    assert errors["left"] < errors["both"]
    assert errors["left"] < prompt.norm()


TOKENS, WIDTH, DRAWS = 16, 64, 400


def setting(rank: Rank, kind: Kind) -> tuple[torch.Tensor, Factors]:
    """Gradients of one length, and factors of random prompts as clients start with."""
    generator = torch.Generator().manual_seed(0)
    local = torch.randn(DRAWS, TOKENS, WIDTH, generator=generator) * 0.02
    gradient = torch.randn(DRAWS, TOKENS, WIDTH, generator=generator)
    names = [f"client-{n}" for n in range(DRAWS)]
    nobody = Records(torch.zeros(0, 1), torch.zeros(0, dtype=torch.long))
    cohort = Cohort.of(names, [nobody] * DRAWS)
    factors = draw_factors(local, rank, kind, cohort, Round(0, Seeds(0), tuple(names)))
    assert factors is not None
    return gradient, factors


@pytest.mark.parametrize("rank", [1, 4, 8])
@pytest.mark.parametrize("clip", ["none", "jointly", "apart"])
@pytest.mark.parametrize(
    ("kind", "variant"),
    [("both", "equation-4"), ("left", "equation-4"), ("both", "published-code")],
)
def test_the_expected_share_is_what_random_factors_keep(
    rank: int, clip: str, kind: Kind, variant: Variant
) -> None:
    """Monte Carlo over prompts, gradients and starts; small clip norms always bind."""
    gradient, factors = setting(rank, kind)
    parts = by_factors(gradient, factors)
    sent = gradient
    if clip != "none":
        sent = clip_each({"g": gradient}, 0.01)["g"]
        if clip == "jointly":
            alone = {n: g.unsqueeze(1) for n, g in parts.items()}
            parts = {n: g[:, 0] for n, g in clip_records(alone, 0.03).items()}
        else:
            parts = clip_each(parts, 0.03)
    reconstructed = reconstruct_gradient(
        parts["u"], parts["v"], factors.u, factors.v, kind, variant
    )
    found = float((reconstructed * sent).sum() / (sent * sent).sum())
    want = expected_local_share(
        rank,
        TOKENS,
        WIDTH,
        kind,
        variant,
        clip_ratio=None if clip == "none" else 3.0,
        clips_jointly=clip == "jointly",
    )
    assert found == pytest.approx(want, rel=0.12)


def test_at_full_rank_the_gradient_is_the_upload_but_for_the_clip() -> None:
    for clip_ratio, want in ((None, 1.0), (0.5, 0.5)):
        got = expected_local_share(
            "full",
            TOKENS,
            WIDTH,
            "both",
            "equation-4",
            clip_ratio=clip_ratio,
            clips_jointly=True,
        )
        assert got == want


def test_gradients_by_factors_may_be_summed_before_or_after() -> None:
    gradient, factors = setting(4, "both")
    records = torch.stack([gradient, 2 * gradient, -gradient], dim=1)
    each = by_factors(records, factors)
    whole = by_factors(records.sum(dim=1), factors)
    for name, tensor in whole.items():
        torch.testing.assert_close(each[name].sum(dim=1), tensor)
