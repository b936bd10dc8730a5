"""What stored tables were computed with."""

from pathlib import Path

import pytest

from privaudit_tools.tables.matrix import RESULTS
from privaudit_tools.tables.stored import read_stored
from tests.places import ROOT

TABLES = sorted((ROOT / "docs" / "tables" / RESULTS).glob("*.json"))
NATIVE = {"pfedmoap-1-caltech-minilm"}  # a real model: its plan's notes say so


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_run_names_its_bits_builds_and_processor(path: Path) -> None:
    stored = read_stored(path)
    assert stored.computed
    for one in stored.computed:
        bits, _, builds = one.bits.partition(" bits of ")
        assert bits == ("native" if path.stem in NATIVE else "portable")
        assert "torch " in builds
        assert one.processor
