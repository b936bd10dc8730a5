import pytest
import torch

from privaudit.core.seeds import Seeds
from privaudit.federated.trainer import Cohort, Records, Round
from privaudit.privacy.clipping import clip_each, clip_joint
from privaudit.tuning.prompts.low_rank import (
    Factors,
    Kind,
    Rank,
    Variant,
    by_factors,
    draw_factors,
    expected_local_share,
    reconstruct_gradient,
)

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
        parts = (
            clip_joint({n: g.unsqueeze(1) for n, g in parts.items()}, 0.03)
            if clip == "jointly"
            else clip_each(parts, 0.03)
        )
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
