import numpy as np
import pytest
import torch
from torch import Tensor

from privaudit.attacks.projection_residual import (
    Residuals,
    StackedLayer,
    Whitened,
    beside_public,
    differ,
)
from privaudit.auditing.record_gradients import Move
from privaudit.core.seeds import Seeds
from privaudit.federation.trainer import Round
from privaudit.models.layer_factors import LayerFactors
from privaudit.statistics.roc import auroc

CANDIDATES, PUBLIC, COLUMNS = 60, 60, 128


def inputs(seed: int, columns: int = COLUMNS) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(CANDIDATES + PUBLIC, 1, columns, generator=generator)
    return drawn * torch.arange(1, columns + 1) ** -0.5


def stacked(entering: Tensor, is_member: Tensor, rows: int) -> StackedLayer:
    """Return a layer that was moved by members' inputs alone."""
    generator = torch.Generator().manual_seed(9)
    deltas = torch.randn(int(is_member.sum()), rows, generator=generator).double()
    both = [LayerFactors(part) for part in entering.split([CANDIDATES, PUBLIC])]
    layer = StackedLayer(both)
    layer.add(deltas.T @ entering[:CANDIDATES, 0][is_member].double(), 1e-9)
    return layer


def coins() -> Tensor:
    return torch.rand(CANDIDATES, generator=torch.Generator().manual_seed(1)) < 0.5


def found(layers: list[StackedLayer], is_member: Tensor) -> float:
    scores = np.sum([beside_public(layer) for layer in layers], axis=0)[:CANDIDATES]
    truth = is_member.numpy()
    return auroc(scores[truth], scores[~truth]).value


@pytest.mark.parametrize("rows", [4, 40])
def test_members_stand_out_whether_the_span_is_whole_or_of_few_rows(rows: int) -> None:
    is_member = coins()
    value = found([stacked(inputs(0), is_member, rows)], is_member)
    assert value == 1 if rows == 40 else value > 0.9


def test_a_row_for_each_of_two_classes_is_one_direction_and_no_whole_span() -> None:
    is_member = coins()
    layer = stacked(inputs(0), is_member, 1)
    layer.updates = [torch.cat([layer.updates[0], -layer.updates[0]])]
    assert found([layer], is_member) > 0.7


def test_layers_whose_span_is_everything_do_not_drown_one_that_tells() -> None:
    is_member = coins()
    tells = stacked(inputs(0), is_member, 40)
    full = [stacked(inputs(seed, 8), is_member, 40) for seed in range(1, 11)]
    assert all(np.isfinite(beside_public(layer)).all() for layer in full)
    assert found([tells, *full], is_member) > 0.99


def test_what_enters_several_layers_is_whitened_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And updates of a layer whose inputs come again are scored as one stack."""
    made, whiten = list[StackedLayer](), StackedLayer._whitened

    def counted(layer: StackedLayer) -> Whitened:
        made.append(layer)
        return whiten(layer)

    monkeypatch.setattr(StackedLayer, "_whitened", counted)
    own, public = map(LayerFactors, inputs(0).split([CANDIDATES, PUBLIC]))
    stacks = {name: StackedLayer([own, public]) for name in ("query", "key")}
    deltas = [dict(zip(stacks, inputs(n)[:8].split(4), strict=True)) for n in (3, 4)]
    residuals, both = Residuals(), [dict.fromkeys(stacks, one) for one in (own, public)]
    for moved in deltas:
        move = Move({}, {n: d[:, 0] for n, d in moved.items()}, Round(0, Seeds(0), ()))
        residuals.add(move, both[0], both[1], stacks)
        for name, layer in stacks.items():
            layer.add(move.deltas[name].double(), 0.0)
    total, alone = residuals.scores(), map(beside_public, stacks.values())
    assert np.array_equal(np.array(total), sum(alone))
    assert len(made) == 1 + len(stacks)


def test_a_move_of_nothing_leaves_no_inputs_to_the_next() -> None:
    whole = stacked(inputs(0), coins(), 40)
    others = [LayerFactors(part) for part in inputs(5).split([CANDIDATES, PUBLIC])]
    after_nothing, alone = Residuals(), Residuals()
    for residuals, (own, public), moved in (
        (after_nothing, others, torch.zeros(40, COLUMNS)),
        (after_nothing, whole.entered, whole.updates[0]),
        (alone, whole.entered, whole.updates[0]),
    ):
        move = Move({}, {"layer": moved}, Round(0, Seeds(0), ()))
        residuals.add(move, {"layer": own}, {"layer": public}, {"layer"})
    found, expected = np.array(after_nothing.scores()), np.array(alone.scores())
    assert found.shape == (CANDIDATES + PUBLIC,)
    assert np.array_equal(found, expected)


def test_half_precision_inputs_do_not_overflow() -> None:
    drawn = inputs(0, 16)
    drawn[..., 0] *= 300
    assert np.isfinite(beside_public(stacked(drawn.half(), coins(), 4))).all()


def test_a_bias_that_was_not_sent_is_no_column() -> None:
    own, public = (
        LayerFactors(torch.cat([one, torch.ones(len(one), 1, 1)], dim=2), bias="bias")
        for one in inputs(0).split([CANDIDATES, PUBLIC])
    )
    update = stacked(inputs(0), coins(), 40).updates[0]
    totals = []
    for entered in ((own, public), (own.without_bias(), public.without_bias())):
        residuals = Residuals()
        move = Move({}, {"layer": update}, Round(0, Seeds(0), ()))
        mine, others = ({"layer": one} for one in entered)
        residuals.add(move, mine, others, ())
        totals.append(np.array(residuals.scores()))
    assert totals[0].shape == (CANDIDATES + PUBLIC,)
    assert np.array_equal(totals[0], totals[1])


def test_places_differ_by_what_enters_and_not_by_rounding_or_padding() -> None:
    entered = torch.ones(4, 5, 3)
    entered[:, 1] += 1e-5 * torch.arange(4)[:, None]  # other batches
    entered[:, 2] = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    there = torch.ones(4, 5, dtype=torch.bool)
    there[:2, 3], there[1:, 4] = False, False
    found = differ(LayerFactors(entered, is_place=there))
    assert found.tolist() == [False, False, True, False, True]
