import io
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from privaudit.auditing.audit import Audit
from privaudit.report.tables.table import print_table, tradeoff_rows
from privaudit.report.wording import attacked
from tests.privaudit.made_audits import make_audit, make_writer


@pytest.fixture
def audits() -> list[Audit]:
    return [
        make_audit("promptfl", shift=0.6),
        make_audit("dp-fpl", mode="sound", epsilon=8.0, epsilons=(8.0, 9.31)),
        make_audit("dp-fpl", mode="published-paper", epsilon=0.1, noise=1.0),
    ]


def printed(audits: list[Audit], width: int) -> str:
    buffer = io.StringIO()
    print_table(audits, Console(file=buffer, width=width))
    return buffer.getvalue()


def test_a_row_holds_the_estimates_of_its_audit(audits: list[Audit]) -> None:
    row, audit = tradeoff_rows(audits)[0], audits[0]
    assert str(audit.auroc).startswith(str(row.auroc))
    assert row.auroc.counts == " + ".join(map(str, audit.auroc.n))
    assert str(row.local) == "0.800 [0.770, 0.830]"
    assert (row.claimed, row.certified) == ("none", "none")
    assert row.verdict == "Leaks"


def test_table_and_page_say_where_n_counts_groups(audits: list[Audit]) -> None:
    assert "groups of records" not in printed(audits[:1], 120) + attacked(audits[0])
    audits[0].run.__dict__["truth"] = SimpleNamespace(group=np.arange(9), tossed=True)
    said = "groups of records that share a coin"
    assert f"n counts {said}." in printed(audits[:1], 120)
    assert f"non-members ({said}) of 3 of 5" in attacked(audits[0])


def test_what_is_proved_stands_beside_what_is_claimed(audits: list[Audit]) -> None:
    row = tradeoff_rows(audits)[1]
    assert (row.claimed, row.certified) == ("8", "9.31")


def test_rates_with_too_few_nonmembers_are_unresolved(audits: list[Audit]) -> None:
    rates = tradeoff_rows(audits)[0].tpr
    assert list(rates) == ["10 %", "1 %", "0.1 %"]
    assert rates["10 %"].interval.startswith("[")
    assert str(rates["1 %"]) == "unresolved"
    assert rates["1 %"].interval.startswith("needs 1000 non-members")


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_every_number_is_printed_whole_at_any_width(
    audits: list[Audit], width: int
) -> None:
    for audit, row in zip(audits, tradeoff_rows(audits), strict=True):
        text = printed([audit], width)
        assert max(map(len, text.splitlines())) <= width
        cells = (row.local, row.gain, row.auroc, row.success, row.advantage)
        for cell in (*cells, *row.tpr.values()):
            assert str(cell) in text
        assert text.count("unresolved") >= 2


@pytest.mark.parametrize("width", [80, 120])
def test_several_runs_are_compared_in_a_line_each(
    audits: list[Audit], width: int
) -> None:
    text = printed(audits, width)
    assert max(map(len, text.splitlines())) <= width
    lines = text.splitlines()
    for row in tradeoff_rows(audits):
        (first, *_) = (line for line in lines if line.strip().startswith(row.run))
        assert f"{row.local}   {row.auroc}" in first
        assert any(f"{row.claimed}, {row.certified}" in line for line in lines)
    assert text.count("Leaks") >= 1


def test_attacks_have_a_column_where_runs_differ_in_them(audits: list[Audit]) -> None:
    assert "Attack " not in printed(audits, 120).partition("Scenario")[0]
    other = make_audit("coop", attacks=("loss-threshold", "shadow"))
    text = printed([*audits, other], 120).partition("Scenario")[0]
    assert "Attack " in text
    assert text.count("shadow ") >= len(audits)


def test_n_has_a_column_where_runs_differ_in_it(audits: list[Audit]) -> None:
    said = "n = " + tradeoff_rows(audits)[0].auroc.counts
    assert f"({said})." in " ".join(printed(audits, 120).split())
    text = printed([*audits, make_audit("coop", candidates=60)], 120)
    assert "n members" in text
    assert all(row.auroc.counts in text for row in tradeoff_rows(audits))


def test_a_wide_terminal_shows_one_table_and_a_narrow_one_two(
    audits: list[Audit],
) -> None:
    assert printed(audits, 120).count("\n Run ") == 1
    assert printed(audits, 100).count("\n Run ") == 2


def test_names_are_printed_as_they_are() -> None:
    assert "[red]x" in printed([make_audit("[red]x")], 120)


def test_the_legend_says_of_what_a_certified_epsilon_is(audits: list[Audit]) -> None:
    text = " ".join(printed(audits, 120).split())
    assert "for one record (neighbours: add/remove-one) at δ = 1e-5." in text


def test_models_that_write_are_not_said_to_be_accurate() -> None:
    audits = [make_writer(), make_writer("fedrand", seed=4)]
    for width in (80, 120):
        text = printed(audits, width)
        assert "ROUGE-L" in text
        assert "over untrained" in printed(audits[:1], width)
        assert "ccuracy" not in text
        assert " ".join(text.split()).count("On the server's own model") == 2
