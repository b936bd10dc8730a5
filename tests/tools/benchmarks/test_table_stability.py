"""Numbers that hang on the last bits of features, and the command that finds them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from privaudit.core.errors import ConfigError
from privaudit.datasets.records import Records
from privaudit_tools.benchmarks import table_stability
from privaudit_tools.benchmarks.table_stability import ALLOWED, Shaken, distance, shaken
from privaudit_tools.tables.matrix import RESULTS
from privaudit_tools.tables.pieces import Piece
from privaudit_tools.tables.plan import TablePlan
from privaudit_tools.tables.stored import read_stored
from tests.places import ROOT

PLAN = TablePlan.model_validate(
    {
        "title": "What nobody trained",
        "source": "none",
        "seeds": [1, 2],
        "metrics": ["local"],
        "over": "last",
        "fields": {"rounds": 1},
        "rows": [{"label": "untrained", "trainer": "zero-shot"}],
    }
)


def test_what_is_not_trained_does_not_hang_on_last_bits(tmp_path: Path) -> None:
    (one,) = shaken(PLAN, Piece(), tmp_path)
    assert (one.row, one.column, one.metric) == ("untrained", "accuracy", "local")
    assert one.pairs.keys() == {1, 2}
    assert one.is_stable


def test_what_moves_the_numbers_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second perturbation turns features round: 84 % become about none."""

    def turned(records: Records, number: int) -> Records:
        return replace(records, features=records.features * (3 - 2 * number))

    monkeypatch.setattr(table_stability, "with_other_last_bits", turned)
    (one,) = shaken(PLAN, Piece(), tmp_path)
    assert not one.is_stable
    assert one.moved > 50


def test_numbers_may_move_by_a_tenth_of_their_spread() -> None:
    within = Shaken("a", "x", "local", {1: (90.0, 90.1), 2: (92.0, 92.0)}, 2**0.5)
    assert within.moved == pytest.approx(0.1)
    assert within.is_stable
    assert not Shaken(
        "a", "x", "local", {1: (90.0, 90.2), 2: (92.0, 92.0)}, 2**0.5
    ).is_stable
    assert Shaken("a", "x", "local", {1: (90.0, 90.0), 2: (90.0, 90.0)}, 0.0).is_stable


def test_models_are_apart_as_a_share_of_their_norm() -> None:
    one = {"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}
    assert distance(one, {**one, "b": torch.tensor([4.5])}) == pytest.approx(0.1)


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs two seeds"):
        next(shaken(PLAN.model_copy(update={"seeds": (1,)}), Piece(), tmp_path))


LINE = re.compile(
    r"^\| ([\w-]+) \| (.+) \| (.+) \| (.+) \| [\d, ]+ \| ([\d.]+) \| ([\d.]+) \| (\w+) \|$",
    re.M,
)


def test_the_pages_rows_are_measured_on_what_is_stored() -> None:
    """A table that is run anew is measured anew, or its lines go."""
    lines = LINE.findall((ROOT / "docs" / "tables" / "README.md").read_text("utf-8"))
    assert {"stable"} <= {said for *_, said in lines} <= {"stable", "beyond"}
    for name, row, column, metric, moved, spread, said in lines:
        stored = read_stored(ROOT / "docs" / "tables" / RESULTS / f"{name}.json")
        summary = stored.cells[row, column, metric, stored.plan.over].summary
        assert summary.spread == pytest.approx(float(spread), abs=0.0051)
        assert (float(moved) <= ALLOWED * float(spread)) == (said == "stable")
