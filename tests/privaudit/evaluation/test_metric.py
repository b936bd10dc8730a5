"""A metric that one line registers is read by all that read metrics."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from privaudit import Audit, gate, load_run
from privaudit.auditing.attack_result import ClientScores, leak_auroc
from privaudit.auditing.stored_audit import read_audit, restore_audit
from privaudit.checks.gate.settings import GateSettings, make_settings
from privaudit.cli.pytest_plugin import MarkerLimit, _check
from privaudit.core.errors import ConfigError, PluginError
from privaudit.evaluation.compare.compare import _settled, compare
from privaudit.evaluation.compare.measured import Measured
from privaudit.evaluation.metric import METRICS, Metric, PairedNumbers, metrics_of
from privaudit.evaluation.metrics.auroc import AUROC
from privaudit.evaluation.metrics.utility import UTILITY
from privaudit.evaluation.tradeoff.result import SweepPoint, judge_sweep
from privaudit.report.sweep import write_sweep
from privaudit.statistics.estimate import Estimate
from tests.audited_runs import audit_two_seeds
from tests.conftest import Cli, common_cache

SCENARIO = "server-reconstruct"
NEW = "loss-threshold balanced accuracy"
OfScores = Metric[Sequence[ClientScores]]


def _guessed(clients: Sequence[ClientScores]) -> list[ClientScores]:
    return [replace(c, scores=c.guesses * 1.0, left_out=None) for c in clients]


def _interval(clients: Sequence[ClientScores], confidence: float) -> Estimate:
    return leak_auroc(_guessed(clients), confidence)


@pytest.fixture
def accuracy(monkeypatch: pytest.MonkeyPatch) -> OfScores:
    """The AUROC of guesses, under a code that comes before the headline's."""
    metric: OfScores = Metric(
        "accuracy", "balanced accuracy", "leak", "", _interval,
        lambda first, second: AUROC.paired(_guessed(first), _guessed(second)),
    )  # fmt: skip
    monkeypatch.setitem(METRICS._entries, "accuracy", metric)
    return metric


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audited")
    with common_cache(tmp_path_factory):
        audit_two_seeds(folder)
    return folder


def audited(folder: Path, seed: int) -> Audit:
    """Return the audit of a run of PromptFL."""
    return restore_audit(read_audit(load_run(folder / f"promptfl-{seed}"), SCENARIO))


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_runs_and_seeds_are_compared_in_it_and_the_headline_stays(
    folder: Path, accuracy: OfScores, seeds: tuple[int, ...]
) -> None:
    found = compare(
        [folder / f"promptfl-{seed}" for seed in seeds],
        [folder / f"zero-shot-{seed}" for seed in seeds],
    )
    assert [one.name for one in found.primary] == [
        "loss-threshold AUROC",
        "accuracy on own classes",
    ]
    (new,) = (one for one in found.secondary if one.name == NEW)
    clients = [audited(folder, seed).headline.clients for seed in seeds]
    by_hand = [accuracy.at(each)(0.95).value for each in clients]
    assert new.first == pytest.approx(sum(by_hand) / len(by_hand))


def test_the_gate_asks_about_it(
    folder: Path, accuracy: OfScores, cli: Cli, tmp_path: Path
) -> None:
    settings = GateSettings(metrics=("accuracy",), guarantees=False, margin=0.5)
    run, before = (load_run(folder / name) for name in ("promptfl-0", "zero-shot-0"))
    (check,) = gate(run, before, settings).tested
    assert check.name == NEW
    assert check.question.before is not None
    audit = folder / "zero-shot-0" / "audits" / SCENARIO / "audit.json"
    with pytest.raises(
        ConfigError, match="no estimate at attack_results/loss-threshold/accur"
    ):
        gate(run, audit, settings)
    baseline = tmp_path / "baseline.json"
    asked = ("--metrics", "accuracy", "--no-guarantees", "--margin", "0.5")
    cli("gate", str(before.path), "--write-baseline", str(baseline), *asked)
    _, said, _ = cli("gate", str(run.path), "--baseline", str(baseline), *asked)
    assert NEW in " ".join(said.split())


def test_what_nobody_registered_is_refused_by_name() -> None:
    with pytest.raises(
        ConfigError, match=r"metrics.0 = 'accuracy': .*auroc, .*success"
    ):
        make_settings({"metrics": ["accuracy"]})


def test_a_marker_holds_tests_to_it(folder: Path, accuracy: OfScores) -> None:
    audit = audited(folder, 0)
    check = _check(audit, MarkerLimit(metric="accuracy", below=0.99))
    assert check.name == NEW
    expected = accuracy.at(audit.headline.clients)(0.95)
    assert check.estimate == expected
    with pytest.raises(
        ConfigError, match=r"are accuracy and auroc and .*success and tpr and util"
    ):
        _check(audit, MarkerLimit(metric="precision", below=0.99))


def test_a_sweep_has_it_as_a_column(
    folder: Path, accuracy: OfScores, tmp_path: Path
) -> None:
    audits = [audited(folder, seed) for seed in (0, 1)]
    found = judge_sweep([SweepPoint.of(audit, "promptfl", None) for audit in audits])
    values = [accuracy.shown(audit.headline).value for audit in audits]
    assert found.cells[0].others["accuracy"].value == pytest.approx(sum(values) / 2)
    page = write_sweep(found, tmp_path / "sweep").read_text()
    assert "Balanced accuracy of the attack" in page
    lines = (tmp_path / "sweep" / "sweep.csv").read_text().splitlines()
    (row,) = csv.DictReader(lines)
    assert float(row["accuracy"]) == pytest.approx(sum(values) / 2)


def test_every_metric_says_what_its_side_needs() -> None:
    assert {"auroc", "success"} <= {one.code for one in metrics_of("leak")}
    assert "utility" in {one.code for one in metrics_of("utility")}
    assert all(METRICS.find(code).code == code for code in METRICS.names())


def test_a_metric_of_another_code_than_name_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(METRICS._entries, "mine", replace(AUROC, title="other"))
    with pytest.raises(PluginError, match="'mine' calls itself 'auroc'"):
        metrics_of("leak")


def test_a_metric_of_another_package_joins_no_primary_family() -> None:
    """What is settled before any score is seen is what the corrections count."""
    plugin = replace(UTILITY, code="mine")
    none = PairedNumbers(
        0.5, 0.5, lambda confidence: Estimate(0.0, 0.0, 0.0, (1, 1), "")
    )
    measured = [Measured(one, "it", none) for one in (AUROC, UTILITY, plugin)]
    assert _settled(measured, ()) == measured[:2]
