from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest

from privaudit.auditing.audit import Audit
from privaudit.report import columns as columns_module
from privaudit.report.columns import Column, ColumnCell, TableKind, columns
from privaudit.report.index import IndexEntry, write_index
from privaudit.report.page import render_report
from privaudit.report.report_data import ReportData
from privaudit.report.wording import TableCell, attacked
from tests.privaudit.made_audits import make_audit, make_writer
from tests.privaudit.report.test_page import printed


@pytest.fixture
def audits() -> list[Audit]:
    return [
        make_audit("promptfl", shift=0.6),
        make_audit("dp-fpl", mode="sound", epsilon=8.0, epsilons=(8.0, 9.31)),
        make_audit("dp-fpl", mode="published-paper", epsilon=0.1, noise=1.0),
    ]


def rows_of(audits: list[Audit]) -> list[dict[str, TableCell]]:
    """Return what a page shows of each run, by the head of the column."""
    data = ReportData.of(audits)
    shown = columns(data, "results")
    return [
        {column.head("results")[0]: column.cell(one).number for column in shown}
        for one in data.runs
    ]


def test_a_row_holds_the_estimates_of_its_audit(audits: list[Audit]) -> None:
    row, audit = rows_of(audits)[0], audits[0]
    assert str(audit.auroc).startswith(str(row["AUROC"]))
    assert row["AUROC"].counts == " + ".join(map(str, audit.auroc.n))
    assert str(row["Accuracy, own classes"]) == "0.800 [0.770, 0.830]"
    assert (str(row["ε claimed"]), str(row["ε certified"])) == ("none", "none")
    assert "Leaks" in printed(*audits[:1], width=120)


def test_a_new_column_stands_wherever_it_has_a_head(
    audits: list[Audit], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the terminal, of one run and of several, on the page and in the index."""
    made = columns_module._columns
    heads = dict.fromkeys(get_args(TableKind), "Newest")
    cell = ColumnCell(TableCell("unheard of"))
    one_line = [Column(heads, lambda one: cell)]
    monkeypatch.setattr(
        columns_module, "_columns", lambda data: [*made(data), *one_line]
    )
    entries = [IndexEntry(audit, tmp_path / "report.html") for audit in audits]
    index = write_index(tmp_path, entries).read_text()
    assert index.count("unheard of</td>") == 3
    assert render_report(audits).count("unheard of</td>") == 2 * 3
    for several in (audits, audits[:1]):
        assert printed(*several, width=200).count("unheard of") == len(several)


def test_table_and_page_say_where_n_counts_groups(audits: list[Audit]) -> None:
    assert "groups of records" not in printed(*audits[:1], width=120) + attacked(
        audits[0]
    )
    audits[0].run.__dict__["truth"] = SimpleNamespace(group=np.arange(9), tossed=True)
    said = "groups of records that share a coin"
    assert f"n counts {said}." in printed(*audits[:1], width=120)
    assert f"non-members ({said}) of 3 of 5" in attacked(audits[0])


def test_what_is_proved_stands_beside_what_is_claimed(audits: list[Audit]) -> None:
    row = rows_of(audits)[1]
    assert (str(row["ε claimed"]), str(row["ε certified"])) == ("8", "9.31")


def test_rates_with_too_few_nonmembers_are_unresolved(audits: list[Audit]) -> None:
    row = rows_of(audits)[0]
    rates = [cell for head, cell in row.items() if head.startswith("TPR at FPR ")]
    assert len(rates) == 3
    assert rates[0].interval.startswith("[")
    assert str(rates[1]) == "unresolved"
    assert row["TPR at FPR 1 %"].interval.startswith("needs 1000 non-members")


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_every_number_is_printed_whole_at_any_width(
    audits: list[Audit], width: int
) -> None:
    for audit, row in zip(audits, rows_of(audits), strict=True):
        text = printed(audit, width=width)
        assert max(map(len, text.splitlines())) <= width
        assert all(str(cell) in text for cell in row.values())
        assert text.count("unresolved") >= 2


@pytest.mark.parametrize("width", [80, 120])
def test_several_runs_are_compared_in_a_line_each(
    audits: list[Audit], width: int
) -> None:
    text = printed(*audits, width=width)
    assert max(map(len, text.splitlines())) <= width
    lines = text.splitlines()
    for one, row in zip(ReportData.of(audits).runs, rows_of(audits), strict=True):
        (first, *_) = (line for line in lines if line.strip().startswith(one.label))
        assert f"{row['Accuracy, own classes']}   {row['AUROC']}" in first
        epsilons = f"{row['ε claimed']}, {row['ε certified']}"
        assert any(epsilons in line for line in lines)
    assert text.count("Leaks") >= 1


def test_attacks_have_a_column_where_runs_differ_in_them(audits: list[Audit]) -> None:
    assert "Attack " not in printed(*audits, width=120).partition("Scenario")[0]
    other = make_audit("coop", attacks=("loss-threshold", "shadow"))
    text = printed(*audits, other, width=120).partition("Scenario")[0]
    assert "Attack " in text
    assert text.count("shadow ") >= len(audits)


def test_n_has_a_column_where_runs_differ_in_it(audits: list[Audit]) -> None:
    said = "n = " + rows_of(audits)[0]["AUROC"].counts
    assert f"({said})." in " ".join(printed(*audits, width=120).split())
    text = printed(*audits, make_audit("coop", candidates=60), width=120)
    assert "n members" in text
    assert all(row["AUROC"].counts in text for row in rows_of(audits))


def test_a_wide_terminal_shows_one_table_and_a_narrow_one_two(
    audits: list[Audit],
) -> None:
    assert printed(*audits, width=120).count("\n Run ") == 1
    assert printed(*audits, width=100).count("\n Run ") == 2


def test_names_are_printed_as_they_are() -> None:
    assert "[red]x" in printed(make_audit("[red]x"), width=120)


def test_the_legend_says_of_what_a_certified_epsilon_is(audits: list[Audit]) -> None:
    text = " ".join(printed(*audits, width=120).split())
    assert "for one record (neighbours: add/remove-one) at δ = 1e-5." in text


def test_models_that_write_are_not_said_to_be_accurate() -> None:
    audits = [make_writer(), make_writer("fedrand", seed=4)]
    for width in (80, 120):
        text = printed(*audits, width=width)
        assert "ROUGE-L" in text
        assert "over untrained" in printed(*audits[:1], width=width)
        assert "ccuracy" not in text
        assert " ".join(text.split()).count("On the server's own model") == 2
