"""Single records in an audit: stored, shown, and never exported."""

from dataclasses import replace

import numpy as np
import pytest

from privaudit import Audit, Auditor, train
from privaudit.auditing.parts.record_exposure import RECORD_EXPOSURE
from privaudit.auditing.storage.load import read_audit
from privaudit.auditing.storage.restore import restore_audit
from privaudit.auditing.storage.save import save_audit
from privaudit.report.figures.row_figures import exposure_plot, property_plot
from privaudit.report.page import render_report
from privaudit.report.report_data import ReportData
from privaudit.report.tables.record_table import (
    level_rows,
    most_exposed_of,
    property_rows,
    record_sentences,
)
from tests.conftest import common_cache

SCENARIO = "server-reconstruct"


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    folder = tmp_path_factory.mktemp("exposed")
    with common_cache(tmp_path_factory):
        run = train(folder=folder, rounds=1, epochs=40, shots=10, clients=2, seed=1)
        audit = Auditor(run).attack(shadows=16)
        save_audit(audit)
    return audit


def test_members_that_were_memorised_stand_out(audit: Audit) -> None:
    found = audit.part(RECORD_EXPOSURE)
    assert found is not None
    assert found.loss is not None
    assert found.loss.worst is not None
    assert found.loss.rest is not None
    assert found.loss.n == len(found.records.record) == 100
    assert found.loss.exposed > 0
    assert found.loss.worst.low > found.loss.rest.value > 0
    assert found.shared.levels[0].beyond.value > 0
    assert found.shared.levels[0].members.n[0] == sum(found.records.is_member)


def test_members_and_others_stand_side_by_side(audit: Audit) -> None:
    """Shadow models start from broadcasts, which hold what members did before."""
    found = audit.part(RECORD_EXPOSURE)
    assert found is not None
    assert found.loss is not None
    is_member = np.array(found.records.is_member)
    for mean, chosen in (
        (found.loss.members, is_member),
        (found.loss.others, ~is_member),
    ):
        assert mean is not None
        assert mean.n == (chosen.sum(),)
        losses = found.records.losses[chosen]
        assert mean.value == pytest.approx(losses.mean(), abs=1e-4)
    assert "Members lose" in " ".join(record_sentences(audit))


def test_of_a_model_that_learned_nothing_no_record_is_exposed() -> None:
    run = train("zero-shot", clients=2, seed=1)
    found = Auditor(run).attack(shadows=8).part(RECORD_EXPOSURE)
    assert found is not None
    assert found.loss is not None
    assert found.loss.exposed == 0
    assert not np.abs(found.records.losses).max() > 1e-3
    assert not found.shared.all.beyond.excludes(0)


def test_what_is_stored_is_read_back(audit: Audit) -> None:
    again = restore_audit(read_audit(audit.run, SCENARIO))
    assert again.part(RECORD_EXPOSURE) == audit.part(RECORD_EXPOSURE)
    assert record_sentences(again) == record_sentences(audit)


def test_a_page_names_records_only_where_it_is_asked_to(audit: Audit) -> None:
    plain = render_report([audit])
    assert "Records that several attacks point at" in plain
    assert "Records by number" not in plain
    shown = render_report([audit], show_records=True)
    first = most_exposed_of(audit)[0]
    assert f"<td>{first.client}</td><td>{first.record}</td>" in shown


def test_without_shadow_models_only_attacks_are_counted(audit: Audit) -> None:
    found = Auditor(audit.run).attack(is_logged=False, shadows=0).part(RECORD_EXPOSURE)
    assert found is not None
    assert found.loss is None
    assert set(found.records.loss) == {None}
    assert all(one.auroc is None or one.auroc.n for one in found.properties)
    assert most_exposed_of(replace(audit, parts={})) == []
    assert record_sentences(replace(audit, parts={})) == []


def test_without_the_part_there_is_nothing_to_show(audit: Audit) -> None:
    bare = [replace(audit, parts={})]
    assert exposure_plot(ReportData.of(bare)) is None
    assert property_plot(ReportData.of(bare)) is None
    assert not level_rows(ReportData.of(bare))
    assert not property_rows(ReportData.of(bare))
