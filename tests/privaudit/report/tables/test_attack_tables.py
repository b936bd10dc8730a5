from dataclasses import replace

import numpy as np
import pytest

from privaudit.auditing.audit import Audit
from privaudit.auditing.parts.server_model import SERVER_MODEL
from privaudit.auditing.scenario import GridCell, grid_cells
from privaudit.report.report_data import ReportData, gain_of_rebuilding
from privaudit.report.tables.attack_tables import (
    grid_tables,
    headline_rows,
    outside_grid,
    size,
    traffic_rows,
    written_rows,
)
from privaudit.report.tables.parts import rebuilding
from privaudit.report.wording import TableCell
from tests.privaudit.made_audits import make_audit, make_writer


@pytest.fixture(scope="module")
def audit() -> Audit:
    return make_writer()


def test_there_is_a_table_for_each_order_and_the_second_comes_first(
    audit: Audit,
) -> None:
    tables = grid_tables(ReportData.of([audit]))
    assert [table.order for table in tables] == ["2", "½", "1", "∞"]


def test_every_cell_stands_where_its_slice_and_share_say(audit: Audit) -> None:
    first = grid_tables(ReportData.of([audit]))[0]
    server, clients = first.rows
    assert (server.who, clients.who) == ("server", "clients")
    columns = [(part, k) for part in ("image", "description") for k in (0, 10, 100)]
    for number, (part, share) in enumerate(columns):
        name = GridCell(part, share, 2.0).attack
        assert server.cells[number] == TableCell.of(
            audit.part(SERVER_MODEL)[name].auroc
        )
        assert clients.cells[number] == TableCell.of(audit.results[name].auroc)


def test_all_attacks_are_in_the_grid_or_in_the_other_table(audit: Audit) -> None:
    assert list(outside_grid(audit.results)) == ["max-renyi", "min-k"]
    assert len(audit.results) == len(grid_cells()) + 2


def test_without_the_servers_model_there_is_one_row_for_a_run(audit: Audit) -> None:
    alone = replace(audit, parts={})
    assert [row.who for row in grid_tables(ReportData.of([alone]))[0].rows] == [
        "clients"
    ]
    assert not headline_rows(ReportData.of([alone]))
    assert rebuilding(alone) == []


def test_runs_without_a_grid_have_no_table() -> None:
    assert grid_tables(ReportData.of([make_audit()])) == []


def test_the_column_of_the_headline_attack_is_known_by_its_settings(
    audit: Audit,
) -> None:
    place = GridCell("description", 10, 2.0).attack
    headline = replace(audit.headline, settings=audit.results[place].settings)
    same = replace(audit, results={**audit.results, "max-renyi": headline})
    named = [table.named for table in grid_tables(ReportData.of([same]))]
    assert named == [4, None, None, None]


def test_the_gain_of_rebuilding_is_the_difference_of_both_aurocs(audit: Audit) -> None:
    """By hand: pairs are weighed alike on both sides, so values subtract."""
    gain, name = gain_of_rebuilding(audit), audit.headline.attack
    assert gain is not None
    expected = audit.auroc.value - audit.part(SERVER_MODEL)[name].auroc.value
    assert gain.value == pytest.approx(expected)
    assert "Paired difference on the same records: " in rebuilding(audit)[0]


def test_rebuilding_the_very_same_model_gains_nothing(audit: Audit) -> None:
    same = replace(audit, parts={SERVER_MODEL.name: audit.results})
    gain = gain_of_rebuilding(same)
    assert gain is not None
    assert gain.value == 0
    assert "no clear difference" in rebuilding(same)[0]


def test_clients_without_both_sorts_have_no_gain(audit: Audit) -> None:
    def members_only(audit: Audit) -> Audit:
        clients = [
            replace(c, is_member=np.ones_like(c.is_member))
            for c in audit.headline.clients
        ]
        leak = replace(audit.headline, clients=clients)
        return replace(
            audit,
            results={"max-renyi": leak},
            parts={SERVER_MODEL.name: {"max-renyi": leak}},
        )

    assert gain_of_rebuilding(members_only(audit)) is None


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
        (999_999, "1 MB"),
        (1_966_080, "1.97 MB"),
        (1.5e12, "1500 GB"),
        (3.2e10, "32 GB"),
    ],
)
def test_sizes_are_written_for_people(count: float, text: str) -> None:
    assert size(count) == text
