"""The bed's cells hold what noise proves, and it says so where one does not."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from privaudit_tools.benchmarks import weight_attacks, weight_federations
from privaudit_tools.benchmarks.weight_attacks import Row, above_bounds, measured
from privaudit_tools.benchmarks.weight_federations import Setting, Table, federation

PRIVATE = Setting(classes=4, candidates=80, steps=1, clip=1.0, draws=2)
SUM = replace(PRIVATE, candidates=20, clients=5, sent="sum")


def drawn(count: int = 400, width: int = 64) -> Table:
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(count, width, generator=generator))
    return Table(10 * x, torch.randint(4, (count,), generator=generator))


@pytest.mark.parametrize(
    "setting",
    [replace(PRIVATE, noise=z, rounds=t) for z, t in ((0.3, 1), (1.0, 1), (3.0, 10))]
    + [replace(SUM, noise=0.3)],
)
def test_no_cell_passes_what_its_noise_proves(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_attacks, "records", lambda *_: drawn())
    row = measured(setting, Path())
    assert row.epsilon is not None
    assert not above_bounds(setting, row)


def test_a_kept_row_that_passes_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = replace(PRIVATE, noise=1.0)
    row = Row({"joint": (0.95, 0.93, 0.97)}, (80, 80), 40.0, 1.0, epsilon=5.0)
    monkeypatch.setattr(weight_attacks, "kept_row", lambda *_: row)
    monkeypatch.setattr(weight_attacks, "TABLES", {"table": {"cell": setting}})
    monkeypatch.setattr("sys.argv", ["", "--data", "", "--rows", ""])
    with pytest.raises(SystemExit, match=r"joint above 0.760, epsilon 5 above 4.38"):
        weight_attacks.main()


@pytest.mark.parametrize("setting", [PRIVATE, replace(PRIVATE, batch=30), SUM])
def test_a_member_moves_a_release_by_the_clip_at_most(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, all_of = [], weight_federations._members
    for members in (all_of, lambda *of: all_of(*of)[:-1]):  # but its last
        monkeypatch.setattr(weight_federations, "_members", members)
        (move,) = federation(replace(setting, noise=100.0), drawn(), 1)[0].moves
        sent.append(move.deltas["head"])
    bound = setting.rate * setting.clip / (setting.batch or setting.candidates / 2)
    assert 0 < float((sent[0] - sent[1]).norm()) < 1.01 * bound
