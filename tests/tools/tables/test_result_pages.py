"""Numbers and plans that the pages of results name are those of stored tables."""

import re
from pathlib import Path

import pytest

from privaudit_tools.benchmarks.table_differences import (
    COMPARED,
    MARKED,
    with_differences,
)
from privaudit_tools.benchmarks.table_numbers import Cell, paired
from privaudit_tools.tables.metrics import MEGABYTES
from tests.docs.test_results import TEXT, TEXTS
from tests.places import ROOT

MINUS = "\N{MINUS SIGN}"
BY_TEXT = "published-paper, rate 0.0001: "
DIGITS = "dp-fpl-2-3-digits"


@pytest.mark.parametrize(
    ("said", "name", "upper", "lower"),
    [
        ("-2.9 [-4.9, -0.8]", DIGITS, ("neighbour", "DP-FPL", f"{BY_TEXT}0.1"),
         ("neighbour", "DP-FPL", f"{BY_TEXT}0.2")),
        ("12.3 [10.2, 14.3]", DIGITS, ("local", "DP-FPL", f"{BY_TEXT}none"),
         ("neighbour", "DP-FPL", f"{BY_TEXT}none")),
        ("6.6 [2.9, 10.3]", DIGITS, ("local", "DP-FPL", f"{BY_TEXT}0.2"),
         ("local", "DP-FPL", f"{BY_TEXT}0.1")),
        ("-2.9 [-4.6, -1.2]", DIGITS, ("neighbour", "DP-FPL", f"{BY_TEXT}0.05"),
         ("neighbour", "DP-FPL", f"{BY_TEXT}0.1")),
        ("15.9 [4.9, 26.8]", "fedrand-1-letters",
         ("server exact match", "FedAvg", "accuracy"),
         ("server exact match", "FedRand", "accuracy")),
    ],
)  # fmt: skip
def test_a_paired_difference_of_the_page_is_its_tables(
    said: str, name: str, upper: Cell, lower: Cell
) -> None:
    assert said in TEXT.replace(MINUS, "-")
    table = ROOT / "docs" / "tables" / "results" / f"{name}.json"
    found = paired(table, upper, lower, "less")
    numbers = [float(number) for number in re.findall(r"[\d.-]+", said)]
    assert [found.value, found.low, found.high] == pytest.approx(numbers, abs=0.0501)


def test_the_tables_of_differences_are_current() -> None:
    """Else: ``python -m privaudit_tools.benchmarks.table_differences docs/results/tables``."""
    assert len(MARKED.findall(TEXT)) > 3
    assert len(COMPARED.findall(TEXT)) > 3
    for text in TEXTS.values():
        assert with_differences(text) == text


def test_bytes_less_than_all_weights_are_the_tables() -> None:
    lines = re.findall(r"^\| (FedPT, .+) \| ([\d.]+) % (?:\(|\|)", TEXT, re.M)
    assert len(lines) == 4
    table = ROOT / "docs" / "tables" / "results" / "fedpt-mechanisms.json"
    for column in ("0.1", "10"):
        whole = (MEGABYTES, "FedAvg, full", column)
        for row, said in lines:
            ratio = paired(table, (MEGABYTES, row, column), whole, "over")
            assert f"{100 * (1 - ratio.value):.1f}" == said


LOOP = re.compile(r"for (\w+) in ([^;$]+); do (.*?); done", re.S)
PLAN = re.compile(r"[\w$/.-]+\.toml")


def expanded(text: str) -> str:
    """Return a page with each loop over words written out."""

    def rounds(loop: re.Match[str]) -> str:
        return " ".join(loop[3].replace(f"${loop[1]}", w) for w in loop[2].split())

    return LOOP.sub(rounds, text)


def places(text: str, folder: Path = ROOT / "docs") -> set[Path]:
    """Return the plans that a page in a folder names, by path, link or bare name."""
    found = set()
    for name in PLAN.findall(expanded(text)):
        if name.startswith("docs/"):
            found.add(ROOT / name)
        else:
            beside = folder / name if "/" in name else ROOT / "docs" / "tables" / name
            found.add(beside.resolve())
    return found


def test_every_plan_that_the_pages_name_is_there() -> None:
    named = set[Path]().union(*(places(text, p.parent) for p, text in TEXTS.items()))
    assert len(named) > 60
    assert [str(path) for path in sorted(named) if not path.is_file()] == []


def test_a_plan_that_is_not_there_is_found_in_a_loop() -> None:
    loop = "for p in a b; do privaudit table docs/tables/x-$p.toml --out o; done"
    assert places(loop) == {ROOT / f"docs/tables/x-{p}.toml" for p in "ab"}
    assert places("(`y.toml`, [z](tables/clip/z.toml))") == {
        ROOT / "docs/tables/y.toml",
        ROOT / "docs/tables/clip/z.toml",
    }
