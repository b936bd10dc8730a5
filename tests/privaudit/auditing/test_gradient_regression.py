import numpy as np
import pytest
import torch
from torch import Tensor

from privaudit.auditing.gradient_regression import GramBlock, fit_step, took_part
from privaudit.models.layer_factors import LayerFactors
from privaudit.statistics.roc import auroc

CANDIDATES, ROWS, COLUMNS = 40, 10, 64


def factors(seed: int, places: int = 1) -> LayerFactors:
    generator = torch.Generator().manual_seed(seed)
    shape = CANDIDATES, places
    return LayerFactors(
        torch.randn(*shape, COLUMNS, generator=generator, dtype=torch.float64),
        torch.randn(*shape, ROWS, generator=generator, dtype=torch.float64),
    )


def rows_of(layer: LayerFactors) -> Tensor:
    assert layer.deltas is not None
    return torch.einsum("ntm,ntd->nmd", layer.deltas, layer.inputs).flatten(1)


def coins(seed: int) -> Tensor:
    return torch.rand(CANDIDATES, generator=torch.Generator().manual_seed(seed)) < 0.5


@pytest.mark.parametrize("places", [1, 3])
def test_factors_and_rows_make_one_block(places: int) -> None:
    layer = factors(0, places)
    rows = rows_of(layer)
    move = -0.3 * rows[coins(1)].sum(dim=0)
    one = GramBlock.of_rows(rows, move)
    other = GramBlock.of_factors(layer, move.view(ROWS, COLUMNS))
    torch.testing.assert_close(one.gram, other.gram)
    torch.testing.assert_close(one.along, other.along)
    assert one.numbers == other.numbers
    assert one.energy == pytest.approx(other.energy)


@pytest.mark.parametrize("step", [1e-6, 1.0, 300.0])
def test_the_step_is_found_and_members_are_certain(step: float) -> None:
    rows, is_member = rows_of(factors(0)), coins(1)
    block = GramBlock.of_rows(rows, -step * rows[is_member].sum(dim=0))
    fit = fit_step(block)
    assert fit is not None
    assert fit.step == pytest.approx(step, rel=0.2)  # the noises tried are 1.8 apart
    found = took_part([block])
    assert found is not None
    assert torch.equal(found.ratios > 0, is_member)
    assert found.expected_auroc > 0.99


def test_noise_is_found_and_bounds_what_is_said() -> None:
    """A ratio's ceiling is that of the noise: Phi(|g| / (deviation sqrt 2))."""
    rows, found = rows_of(factors(0)), []
    deviation = float(rows.norm(dim=1).mean())
    for seed in range(40):
        is_member = coins(seed)
        noise = torch.randn(
            rows.shape[1], generator=torch.Generator().manual_seed(seed)
        )
        block = GramBlock.of_rows(
            rows, deviation * noise.double() - rows[is_member].sum(dim=0)
        )
        took = took_part([block])
        assert took is not None
        ratios = took.ratios
        found.append(auroc(ratios[is_member].numpy(), ratios[~is_member].numpy()).value)
    # 0.76 is the ceiling; 40 AUROCs of 40 candidates have a standard error of 0.013.
    assert 0.5 < np.mean(found) < 0.76 + 4 * 0.013


def test_moves_of_several_rounds_add_up() -> None:
    is_member, blocks = coins(3), []
    for seed in range(8):
        rows = rows_of(factors(10 + seed))[:, :12]  # fewer numbers than candidates
        blocks.append(GramBlock.of_rows(rows, -rows[is_member].sum(dim=0)))
    alone, together = took_part(blocks[:1]), took_part(blocks)
    assert alone is not None
    assert together is not None
    first, all_rounds = (
        auroc(ratios[is_member].numpy(), ratios[~is_member].numpy()).value
        for ratios in (alone.ratios, together.ratios)
    )
    assert first < 0.95 < all_rounds


def test_where_nothing_moved_nothing_is_said() -> None:
    rows = rows_of(factors(0))
    assert took_part([GramBlock.of_rows(rows, torch.zeros(rows.shape[1]))]) is None
