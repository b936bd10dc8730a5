import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from privaudit import Auditor, load_run, train
from privaudit.auditing.storage.save import save_audit
from privaudit.checks.gate.gate import gate
from privaudit.checks.gate.settings import GateSettings
from privaudit.checks.gate.unpaired_baseline import (
    independent_difference,
    parse_numbers,
    rescaled,
)
from privaudit.core.errors import ConfigError, IncompatibleRunsError
from privaudit.report.export import export_public
from privaudit.statistics.estimate import Estimate, proportion, two_proportions
from privaudit.statistics.intervals import wilson
from privaudit.statistics.roc import auroc
from tests.conftest import common_cache

SCENARIO = "server-reconstruct"


def score(successes: int, trials: int, confidence: float) -> Estimate:
    rate = successes / trials
    low, high = wilson(rate, trials, confidence)
    return Estimate(rate, low, high, (trials,), "Wilson", confidence)


def test_of_two_score_intervals_it_is_newcombes() -> None:
    ours, theirs = partial(score, 56, 70), partial(score, 48, 80)
    found = independent_difference(ours, theirs)
    expected = two_proportions(56, 70, 48, 80)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.n == (70, 80)


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
def test_an_auroc_is_rescaled_to_what_it_would_have_been(confidence: float) -> None:
    rng = np.random.default_rng(0)
    members, others = rng.normal(0.7, 1, 80), rng.normal(0, 1, 90)
    found = rescaled(auroc(members, others), confidence)
    expected = auroc(members, others, confidence)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_at_an_end_the_plain_scale_is_taken() -> None:
    found = rescaled(Estimate(1.0, 0.9, 1.0, (20,), "made up"), 0.99)
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(1 - 0.1 * 2.5758 / 1.96, abs=1e-4)


def test_intervals_are_nested() -> None:
    ours, theirs = partial(proportion, 30, 50), partial(proportion, 20, 50)
    found = [independent_difference(ours, theirs, c) for c in (0.5, 0.9, 0.999)]
    assert found[0].low > found[1].low > found[2].low
    assert found[0].high < found[1].high < found[2].high


def test_an_audit_is_read() -> None:
    audit = {"scenario": SCENARIO, "config": {"dataset": "digits"}, "leaks": {}}
    found = parse_numbers(audit, SCENARIO, Path("audit.json"))
    assert (found.dataset, found.of_card) == ("digits", None)
    assert found.contents is audit


@pytest.fixture(scope="module")
def carded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cards")
    with common_cache(tmp_path_factory):
        run = train("promptfl", folder=folder, name="one", rounds=1, clients=3)
        save_audit(Auditor(run).attack(shadows=0))
    return folder


def test_against_a_card_the_interval_knows_of_its_noise(
    carded: Path, tmp_path: Path
) -> None:
    """The same run: its exact numbers, without noise, decide more than its card's."""
    run = load_run(shutil.copytree(carded / "one", tmp_path / "one"))
    card = export_public(run, tmp_path / "public").card
    shown = card.audits[SCENARIO].auroc
    assert shown is not None
    asked = GateSettings(metrics=("auroc",), guarantees=False, margin=0.3)
    (check,) = gate(run, tmp_path / "public", asked, accept_unsigned=True).tested
    (exact,) = gate(run, run.path / "audits" / SCENARIO / "audit.json", asked).tested
    assert check.question.before == shown.value
    widths = [one.estimate.high - one.estimate.low for one in (check, exact)]
    assert widths[0] > widths[1]
    with pytest.raises(ConfigError, match="no estimate at leaks"):
        gate(run, tmp_path / "public", replace(asked, metrics=("success",)))
    with pytest.raises(IncompatibleRunsError, match="has a number of LossThreshold"):
        gate(run, tmp_path / "public", replace(asked, attacks=("confidence",)))


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        ({}, "neither a baseline nor an audit card"),
        ({"leaks": []}, "neither a baseline"),
        ({"audits": {"curious-peer": {}}}, "is no audit card"),
        ({"audits": {}, "card": {"format": 1}}, "publish it no longer"),
        ({"scenario": "curious-peer", "leaks": {}}, "is an audit of curious-peer"),
    ],
)
def test_what_is_no_public_audit_is_refused(
    contents: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_numbers(contents, SCENARIO, Path("card.json"))
