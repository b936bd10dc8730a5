from dataclasses import replace

import pytest

from privaudit.report.report_data import ReportData
from privaudit.report.tables.written_table import size, traffic_rows, written_rows
from tests.privaudit.made_audits import make_audit, make_writer


def test_captions_have_every_metric_for_server_and_clients() -> None:
    heads, rows = written_rows(ReportData.of([make_writer()]))
    metrics = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr-D")
    assert heads == list(metrics)
    assert [row[1] for row in rows] == ["server", "clients"]
    assert str(rows[0][2]) == "0.400 [0.370, 0.430]"


def test_answers_have_exact_match_for_both() -> None:
    heads, rows = written_rows(ReportData.of([make_writer(metric="exact match")]))
    assert heads == ["Exact match"]
    assert [str(row[2]).split()[0] for row in rows] == ["0.310", "0.470"]


def test_captions_and_answers_in_one_table_leave_each_others_cells_open() -> None:
    both = [make_writer(), make_writer("fedrand", metric="exact match")]
    heads, rows = written_rows(ReportData.of(both))
    assert heads[-1] == "Exact match"
    assert str(rows[0][-1]) == str(rows[2][2]) == "-"


def test_without_a_servers_model_there_is_no_row_of_it() -> None:
    audit = make_writer(metric="exact match")
    lone = replace(
        audit, utility=replace(audit.measured_utility, server=None, everywhere=None)
    )
    assert written_rows(ReportData.of([lone])) == ([], [])


def test_classifiers_are_in_neither_table() -> None:
    data = ReportData.of([make_audit()])
    assert written_rows(data) == ([], [])
    assert not traffic_rows(data)


def test_half_the_upload_is_a_quarter_less() -> None:
    audits = [make_writer(), make_writer("fedrand", traffic=(1_000_000, 2_000_000))]
    first, second = traffic_rows(ReportData.of(audits))
    assert first == ("lora-fedavg", "2 MB", "2 MB", "4 MB", "")
    assert second == ("fedrand", "1 MB", "2 MB", "3 MB", "-25.0 %")


def test_a_run_that_sends_nothing_can_stand_first() -> None:
    audits = [make_writer(traffic=(0, 0)), make_writer("fedrand")]
    assert [row[-1] for row in traffic_rows(ReportData.of(audits))] == ["", ""]


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
