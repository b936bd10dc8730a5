from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from privaudit.auditing.gradient_regression import (
    GramBlock,
    divided_by_size,
    likeliest,
    over_rounds,
    took_part,
)
from privaudit.auditing.record_gradients import Move, along_layers
from privaudit.core.seeds import Seeds
from privaudit.federation.trainer import Round
from privaudit.models.layer_factors import LayerFactors
from privaudit.statistics.roc import auroc

CANDIDATES, ROWS, COLUMNS, SHARE = 40, 10, 64, 0.2


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
    fit = block.fit
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


def one_batch_rounds(
    seed: int, noise: float, members_train: bool = True
) -> tuple[list[list[GramBlock]], Tensor, Tensor]:
    """Eight rounds, each of a fifth of the members: blocks, members, who was drawn."""
    generator = torch.Generator().manual_seed(seed)
    rows, is_member = rows_of(factors(seed)), coins(seed)
    drawn, rounds = torch.zeros(CANDIDATES, dtype=torch.bool), []
    for _ in range(8):
        now = is_member & (torch.rand(CANDIDATES, generator=generator) < SHARE)
        drawn |= now
        move = -rows[now].sum(dim=0) if members_train else 0
        size = noise * float(rows.norm(dim=1).mean())
        sent = move + size * torch.randn(rows.shape[1], generator=generator).double()
        rounds.append([replace(GramBlock.of_rows(rows, sent), batch_share=SHARE)])
    return rounds, is_member, drawn


def area(ratios: Tensor, is_member: Tensor) -> float:
    return auroc(ratios[is_member].numpy(), ratios[~is_member].numpy()).value


def test_who_is_in_any_batch_is_certain_without_noise() -> None:
    rounds, _, drawn = one_batch_rounds(0, noise=0.0)
    found = over_rounds(rounds)
    assert found is not None
    assert torch.equal(found.ratios > 0, drawn)
    # Of members, 0.8^8 = 17 % are in no batch, and nothing tells them from others.
    assert found.expected_auroc == pytest.approx(1 - 0.8**8 / 2, abs=0.05)


def test_rounds_of_a_batch_are_mixtures_and_better_than_sums() -> None:
    better, areas, unseen = [], [], []
    for seed in range(40):
        rounds, is_member, _ = one_batch_rounds(seed, noise=0.4)
        found = over_rounds(rounds)
        whole = took_part([replace(one, batch_share=1.0) for (one,) in rounds])
        assert found is not None
        assert whole is not None
        areas.append(area(found.ratios, is_member))
        better.append(areas[-1] - area(whole.ratios, is_member))
        rounds, is_member, _ = one_batch_rounds(seed, 0.4, members_train=False)
        found = over_rounds(rounds)
        assert found is not None
        unseen.append(area(found.ratios, is_member))
    assert np.mean(better) > 4 * np.std(better) / 40**0.5
    assert abs(np.mean(unseen) - 0.5) < 4 * np.std(unseen) / 40**0.5


def test_of_twins_nobody_can_say_which_took_part() -> None:
    rows, is_member = rows_of(factors(0)), torch.arange(CANDIDATES) % 2 == 0
    rows[1::2] = rows[::2]
    found = took_part([GramBlock.of_rows(rows, -rows[is_member].sum(dim=0))])
    assert found is not None
    torch.testing.assert_close(
        found.ratios[::2], found.ratios[1::2], rtol=0.01, atol=0.01
    )
    assert bool(found.ratios.isfinite().all())
    assert found.expected_auroc < 0.9


def test_where_nothing_moved_nothing_is_said() -> None:
    rows = rows_of(factors(0))
    assert took_part([GramBlock.of_rows(rows, torch.zeros(rows.shape[1]))]) is None


def test_weight_decay_of_any_strength_hides_nothing() -> None:
    layer, is_member = factors(0), coins(1)
    start = torch.randn(
        ROWS, COLUMNS, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )
    move = -0.3 * rows_of(layer)[is_member].sum(dim=0).view(ROWS, COLUMNS)
    move -= 50 * start
    found = took_part([GramBlock.of_factors(layer, move, start=start)])
    assert found is not None
    assert torch.equal(found.ratios > 0, is_member)


@pytest.mark.parametrize("is_scaled", [True, False])
def test_a_move_is_held_against_gradients_as_its_optimiser_scales_them(
    is_scaled: bool,
) -> None:
    layer, is_member = factors(0), coins(1)
    assert layer.deltas is not None
    sizes = torch.logspace(-2, 2, COLUMNS, dtype=torch.float64)
    layer = LayerFactors(layer.inputs * sizes, layer.deltas)
    kinds = divided_by_size(layer), layer
    moving = kinds[0] if is_scaled else layer
    move = -0.3 * rows_of(moving)[is_member].sum(dim=0).view(ROWS, COLUMNS)
    noise = torch.randn(move.shape, generator=torch.Generator().manual_seed(2)).double()
    move += 0.3 * float(move.std()) * noise
    blocks = [GramBlock.of_factors(one, move) for one in kinds]
    assert likeliest(blocks) is blocks[0 if is_scaled else 1]


@pytest.mark.parametrize("moves_inputs", [True, False])
def test_points_of_a_path_add_up_whether_inputs_stay_or_not(moves_inputs: bool) -> None:
    still, is_member = factors(0), coins(1)
    rows = rows_of(still)
    move = Move(
        {"w": torch.zeros(ROWS, COLUMNS)},
        {"w": -0.3 * rows[is_member].sum(dim=0).view(ROWS, COLUMNS)},
        Round(0, Seeds(0), ()),
    )
    asked = 0

    def layers(model: Mapping[str, Tensor]) -> dict[str, LayerFactors]:
        nonlocal asked
        asked += 1
        shift = 1 + 1e-12 * asked * moves_inputs
        return {"w": LayerFactors(still.inputs * shift, still.deltas)}

    (block,) = along_layers(move, layers)
    assert block.fit is not None
    assert block.fit.explained == pytest.approx(1)
    found = took_part([block])
    assert found is not None
    assert torch.equal(found.ratios > 0, is_member)
