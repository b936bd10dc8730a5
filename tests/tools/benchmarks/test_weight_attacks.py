"""The bed's cells hold what noise proves, and it says so where one does not."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from privaudit_tools.benchmarks import weight_attacks
from privaudit_tools.benchmarks.weight_attacks import Row, above_bounds, measured
from privaudit_tools.benchmarks.weight_federations import Setting, Table

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
