from dataclasses import replace

import pytest

from privaudit.report.report_data import ReportData
from privaudit.report.tables.written_table import size, traffic_rows, written_table
from tests.privaudit.made_audits import make_audit, make_writer


def test_captions_have_every_metric_for_server_and_clients() -> None:
    table = written_table(ReportData.of([make_writer()]))
    assert table.heads == (
        "BLEU-1",
        "BLEU-2",
        "BLEU-3",
        "BLEU-4",
        "ROUGE-L",
        "CIDEr-D",
    )
    assert [row.who for row in table.rows] == ["server", "clients"]
    assert str(table.rows[0].cells[0]) == "0.400 [0.370, 0.430]"


def test_answers_have_exact_match_for_both() -> None:
    table = written_table(ReportData.of([make_writer(metric="exact match")]))
    assert table.heads == ("Exact match",)
    assert [row.cells[0].value for row in table.rows] == ["0.310", "0.470"]


def test_captions_and_answers_in_one_table_leave_each_others_cells_open() -> None:
    both = [make_writer(), make_writer(metric="exact match")]
    table = written_table(ReportData.of(both))
    assert table.heads[-1] == "Exact match"
    assert table.rows[0].cells[-1].value == table.rows[2].cells[0].value == "-"


def test_without_a_servers_model_there_is_no_row_of_it() -> None:
    audit = make_writer(metric="exact match")
    lone = replace(
        audit, utility=replace(audit.measured_utility, server=None, everywhere=None)
    )
    assert written_table(ReportData.of([lone])).rows == ()


def test_classifiers_are_in_neither_table() -> None:
    assert written_table(ReportData.of([make_audit()])).rows == ()
    assert traffic_rows(ReportData.of([make_audit()])) == []


def test_half_the_upload_is_a_quarter_less() -> None:
    audits = [make_writer(), make_writer("fedrand", traffic=(1_000_000, 2_000_000))]
    first, second = traffic_rows(ReportData.of(audits))
    assert (first.up, first.down, first.both, first.change) == (
        "2 MB", "2 MB", "4 MB", "",
    )  # fmt: skip
    assert (second.up, second.both, second.change) == ("1 MB", "3 MB", "-25.0 %")


def test_a_run_that_sends_nothing_can_stand_first() -> None:
    audits = [make_writer(traffic=(0, 0)), make_writer("fedrand")]
    assert [row.change for row in traffic_rows(ReportData.of(audits))] == ["", ""]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (983_056, "983 kB"),
        (1_966_080, "1.97 MB"),
        (3.2e10, "32 GB"),
    ],
)
def test_sizes_are_written_for_people(count: float, text: str) -> None:
    assert size(count) == text
