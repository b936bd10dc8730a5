"""Baselines: signed files of scores, and public numbers."""

import base64
import io
import json
import shutil
import stat
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privaudit import Auditor, Run, load_run, train
from privaudit.auditing.stored_audit import save_audit
from privaudit.checks.gate.baseline import (
    Baseline,
    make_baseline,
    parse_numbers,
    save_baseline,
)
from privaudit.checks.gate.gate import gate, write_baseline
from privaudit.checks.gate.settings import GateSettings
from privaudit.core.errors import (
    ConfigError,
    IncompatibleRunsError,
    MissingFileError,
    PrivauditError,
    TranscriptError,
    UnknownNameError,
)
from privaudit.core.signing import sign
from privaudit.report.export import export_public
from privaudit.statistics.comparisons import independent_difference
from privaudit.statistics.estimate import Estimate, proportion, two_proportions, wilson
from privaudit.statistics.roc import auroc
from privaudit.statistics.verdict import at_confidence
from tests.altered_runs import sign_again
from tests.conftest import common_cache

AUROC = GateSettings(attacks=("loss-threshold",), metrics=("auroc",))


@pytest.mark.parametrize(
    ("run", "says"),
    [
        ("other-seed", "split their records differently .with equal settings"),
        ("other-split", "split their records differently .alpha 1.0 and 10.0"),
    ],
)
def test_another_split_is_refused_with_what_differs(
    runs: Path, run: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        gate(run, runs / "plain.json")


def altered(runs: Path, to: Path, **changes: Any) -> Path:
    """Write a baseline with other entries, signed by who has the key."""
    baseline = make_baseline(load_run("plain"), "server-reconstruct")
    fields = {name: getattr(baseline, name) for name in baseline.__dataclass_fields__}
    return save_baseline(type(baseline)(**{**fields, **changes}), to / "altered.json")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("data", "were trained on other data"),
        ("model", "tune other models"),
        ("ledger", "have other members"),
    ],
)
def test_other_data_and_other_coins_are_refused(
    runs: Path, tmp_path: Path, name: str, says: str
) -> None:
    hashes = make_baseline(load_run("plain"), "server-reconstruct").hashes
    path = altered(runs, tmp_path, hashes={**hashes, name: "another"})
    with pytest.raises(ConfigError, match=says):
        gate("broken", path)


def test_another_scenario_is_refused(runs: Path, tmp_path: Path) -> None:
    path = altered(runs, tmp_path, scenario="curious-peer")
    with pytest.raises(
        IncompatibleRunsError, match="a baseline of the scenario curious-peer"
    ):
        gate("broken", path)


def test_a_baseline_without_utility_says_how_to_get_it(
    runs: Path, tmp_path: Path
) -> None:
    path = write_baseline("plain", tmp_path / "b.json", utility=False)
    assert gate("broken", path, AUROC).checks
    with pytest.raises(ConfigError, match="written without utility"):
        gate("broken", path)


def test_an_attack_that_was_not_made_is_refused(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'loss-threshold'"):
        gate("broken", None, GateSettings(attacks=("los-threshold",), max_auroc=0.99))
    attacks = make_baseline(load_run("plain"), "server-reconstruct").attacks
    path = altered(runs, tmp_path, attacks={"entropy": attacks["entropy"]})
    with pytest.raises(
        IncompatibleRunsError, match="holds no loss-threshold: it has entropy"
    ):
        gate("broken", path, AUROC)


@pytest.mark.parametrize(
    "damage", ["cut", "value", "arrays", "format", "list", "unsigned"]
)
def test_a_damaged_baseline_is_refused(runs: Path, tmp_path: Path, damage: str) -> None:
    text = (runs / "plain.json").read_text()
    contents = json.loads(text)
    if damage == "value":
        contents["metric"] = "exact match"
    elif damage == "arrays":
        contents["arrays"] = contents["arrays"][:-8]
    elif damage == "format":
        contents["baseline"] = 2
    elif damage == "unsigned":
        del contents["signature"]
    text = text[:500] if damage == "cut" else json.dumps(contents)
    path = tmp_path / "bad.json"
    path.write_text("[]" if damage == "list" else text)
    with pytest.raises((ConfigError, TranscriptError), match=r"bad\.json"):
        gate("broken", path)


@pytest.mark.parametrize("field", [*Baseline.__dataclass_fields__])
def test_a_wrong_value_that_is_signed_is_one_clear_line(
    runs: Path, tmp_path: Path, field: str
) -> None:
    """Somebody who is trusted made a file that is none."""
    path = tmp_path / "b.json"
    for value in (None, -1, 1e308, "x", [], {}, True, [[1]], {"x": {"y": 1}}):
        contents = json.loads((runs / "plain.json").read_text())
        contents.pop("signature")
        contents[field] = value
        signed = {**contents, "signature": sign("baseline", contents)}
        path.write_text(json.dumps(signed))
        with suppress(PrivauditError):
            assert gate("plain", path, AUROC).checks


def test_a_missing_baseline_names_the_command(runs: Path) -> None:
    with pytest.raises(MissingFileError, match="--write-baseline"):
        gate("broken", "none.json")


def test_a_baseline_holds_no_truth_no_positions_and_no_seed(runs: Path) -> None:
    """Keys order the rows, so that neither position nor membership shows."""
    path = runs / "plain.json"
    contents = json.loads(path.read_text())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "seed" not in contents["settings"]
    with np.load(io.BytesIO(base64.b64decode(contents["arrays"]))) as stored:
        arrays = dict(stored)
    columns = {name.rpartition("/")[2] for name in arrays}
    assert columns == {"keys", "client", "scores", "guesses", "own"}
    keys = [row.tobytes() for row in arrays["loss-threshold/keys"]]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)


def test_the_same_run_gives_the_same_file(runs: Path, tmp_path: Path) -> None:
    again = write_baseline("plain", tmp_path / "again.json")
    files = [json.loads(path.read_text()) for path in (again, runs / "plain.json")]
    for one in files:
        assert len(one.pop("signature")["value"]) == 128
        assert one.pop("made").endswith("+00:00")
    assert files[0] == files[1]


def test_rows_join_to_no_other_ledger(runs: Path) -> None:
    from privaudit.checks.gate.baseline import record_keys
    from privaudit.runs.ledger import Ledger

    ledger = Ledger.load(runs / "plain" / "ledger.npz")
    turned = ledger.is_member.copy()
    turned[np.flatnonzero(ledger.owner >= 0)[0]] ^= True
    records = np.flatnonzero(ledger.owner >= 0)
    ours = {key.tobytes() for key in record_keys(ledger, records)}
    theirs = {
        key.tobytes() for key in record_keys(Ledger(ledger.owner, turned), records)
    }
    assert len(ours) == len(records)
    assert not ours & theirs


def test_only_clients_that_both_audits_attacked_are_compared(
    runs: Path, tmp_path: Path
) -> None:
    baseline = make_baseline(load_run("plain"), "server-reconstruct")
    kept = baseline.arrays["loss-threshold/client"] != "client-1"
    arrays = {
        name: values[kept] if name.startswith("loss-threshold/") else values
        for name, values in baseline.arrays.items()
    }
    path = altered(runs, tmp_path, arrays=arrays)
    (check,) = gate("broken", path, AUROC).tested
    assert "averaged over 2 clients" in check.estimate.method


def test_a_run_that_stopped_writes_no_baseline(runs: Path, tmp_path: Path) -> None:
    other = Run(Path(shutil.copytree(runs / "plain", tmp_path / "stopped")))
    sign_again(other.path, config=other.config.model_dump() | {"rounds": 2})
    with pytest.raises(ConfigError, match="stopped after 1 of 2 rounds"):
        write_baseline(Run(other.path), tmp_path / "b.json")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("loss-threshold/scores", np.full(3, np.nan)),
        ("loss-threshold/guesses", np.ones(3)),
        ("loss-threshold/keys", np.zeros((3, 4), np.uint8)),
        ("utility/scores", np.zeros(3)),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    runs: Path, tmp_path: Path, name: str, values: np.ndarray
) -> None:
    arrays = make_baseline(load_run("plain"), "server-reconstruct").arrays
    path = altered(runs, tmp_path, arrays={**arrays, name: values})
    with pytest.raises(TranscriptError, match="is a damaged baseline"):
        gate("broken", path)


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
    """Its end away from 1/2 is exact on the logit scale, the other to the third digit."""
    rng = np.random.default_rng(0)
    members, others = rng.normal(0.7, 1, 80), rng.normal(0, 1, 90)
    found = at_confidence(auroc(members, others), confidence)
    expected = auroc(members, others, confidence)
    assert found.high == pytest.approx(expected.high)
    assert found.low == pytest.approx(expected.low, abs=5e-4)


def test_at_an_end_the_exact_interval_is_taken() -> None:
    found = at_confidence(proportion(20, 20), 0.99)
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(proportion(20, 20, 0.99).low)


def test_an_end_at_which_an_interval_stops_stays() -> None:
    found = at_confidence(Estimate(0.01, 0.0, 0.03, (300,), "TPR"), 0.8)
    assert found.low == 0
    assert found.value < found.high < 0.03


def test_intervals_are_nested() -> None:
    ours, theirs = partial(proportion, 30, 50), partial(proportion, 20, 50)
    found = [independent_difference(ours, theirs, c) for c in (0.5, 0.9, 0.999)]
    assert found[0].low > found[1].low > found[2].low
    assert found[0].high < found[1].high < found[2].high


def test_an_audit_is_read() -> None:
    audit = {
        "scenario": SCENARIO,
        "config": {"dataset": "digits"},
        "format": 3,
        "attack_results": {},
    }
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
    asked = replace(AUROC, attacks=AUROC.attacks * 2, guarantees=False, margin=0.3)
    (check,) = gate(run, tmp_path / "public", asked, accept_unsigned=True).tested
    (exact,) = gate(run, run.path / "audits" / SCENARIO / "audit.json", asked).tested
    assert check.question.before == shown.value
    widths = [one.estimate.high - one.estimate.low for one in (check, exact)]
    assert widths[0] > widths[1]
    with pytest.raises(ConfigError, match="no estimate at attack_results"):
        gate(run, tmp_path / "public", replace(asked, metrics=("success",)))
    with pytest.raises(IncompatibleRunsError, match="has a number of LossThreshold"):
        gate(run, tmp_path / "public", replace(asked, attacks=("confidence",)))


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        ({}, "neither a baseline nor an audit card"),
        ({"format": 3, "attack_results": []}, "neither a baseline"),
        ({"leaks": {}}, "an audit of format 1, which another version"),
        ({"audits": {"curious-peer": {}}}, "is no audit card"),
        ({"audits": {}, "card": {"format": 1}}, "publish it no longer"),
        (
            {"format": 3, "scenario": "curious-peer", "attack_results": {}},
            "is an audit of curious-peer",
        ),
    ],
)
def test_what_is_no_public_audit_is_refused(
    contents: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_numbers(contents, SCENARIO, Path("card.json"))
