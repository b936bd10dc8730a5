import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from privaudit import Auditor, Run, load_run
from privaudit.auditing.stored_audit import StoredAudit, read_audit, save_audit
from privaudit.core.errors import (
    ConfigError,
    IncompatibleRunsError,
    MissingFileError,
    TranscriptError,
    UnknownNameError,
)
from privaudit.datasets.split import PUBLIC, TEST
from privaudit.evaluation.compare.compare import MetricChange, compare
from privaudit.evaluation.compare.measured import (
    check_pairable,
    measure_pair,
    measure_seeds,
)
from privaudit.evaluation.metric import Side
from privaudit.recording.recorder import Recorder
from privaudit.runs.ledger import Coin, Ledger
from privaudit.statistics.comparisons import (
    Difference,
    judge_changes,
    p_value_within,
    pooled_paired_auroc_difference,
)
from privaudit.statistics.estimate import Estimate
from tests.altered_runs import sign_again
from tests.audited_runs import audit_two_seeds
from tests.conftest import Cli, common_cache, refused

BROKEN = {"epochs": 3, "learning_rate": 5.0}  # trained, and the worse for it


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trainers over two seeds, each run audited."""
    folder = tmp_path_factory.mktemp("audited")
    with common_cache(tmp_path_factory):
        audit_two_seeds(folder, BROKEN)
    return folder


@pytest.fixture
def runs(audited: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRIVAUDIT_RUNS", str(audited))
    return audited


def audits_of(*names: str) -> list[StoredAudit]:
    return [read_audit(load_run(name), "server-reconstruct") for name in names]


def test_a_run_is_compared_on_the_same_records(runs: Path) -> None:
    found = compare("promptfl-0", "zero-shot-0", attacks=["loss-threshold"])
    auroc, success, use, _ = found.changes
    audits = audits_of("promptfl-0", "zero-shot-0")
    ours, theirs = (audit.clients("loss-threshold") for audit in audits)
    groups = [
        (a.scores, b.scores, a.is_member) for a, b in zip(ours, theirs, strict=True)
    ]
    expected = pooled_paired_auroc_difference(groups)
    assert auroc.change.estimate == expected.estimate
    assert auroc.change.estimate.n == (
        sum(int(c.is_member.sum()) for c in ours),
        sum(int((~c.is_member).sum()) for c in ours),
    )
    assert (auroc.about, success.about, use.about) == ("leak", "leak", "utility")
    assert found.paired_by == "record"
    for entry in found.changes:
        difference = entry.change.estimate.value
        assert difference == pytest.approx(entry.first - entry.second, abs=1e-9)


def test_the_other_way_round_is_the_mirror(runs: Path) -> None:
    ours = compare("promptfl-0", "zero-shot-0")
    mirror = compare("zero-shot-0", "promptfl-0")
    for a, b in zip(ours.changes, mirror.changes, strict=True):
        assert a.change.estimate.low == pytest.approx(-b.change.estimate.high, abs=1e-9)
        assert a.change.p_value == pytest.approx(b.change.p_value)


def test_a_run_does_not_differ_from_itself(runs: Path) -> None:
    found = compare("promptfl-0", "promptfl-0", margin=0.2, utility_margin=0.2)
    assert {entry.change.kind for entry in found.changes} == {"no difference"}
    assert found.passes
    assert not found.regressed
    assert all(entry.change.estimate.high > 0 for entry in found.changes)


def test_utility_that_falls_is_a_regression(runs: Path) -> None:
    """A rate of 5 costs a third of the accuracy; the other way round it is a gain."""
    found = compare("promptfl-0", "zero-shot-0", attacks=["loss-threshold"])
    use = found.primary[-1]
    assert (use.name, use.change.kind) == ("accuracy on own classes", "decrease")
    assert use.regressed
    assert found.regressed
    assert not found.passes
    gain = compare("zero-shot-0", "promptfl-0", attacks=["loss-threshold"]).primary[-1]
    assert gain.change.kind == "increase"
    assert gain.passes
    assert not gain.regressed


def test_the_headline_and_utility_decide_and_the_rest_is_secondary(runs: Path) -> None:
    found = compare("promptfl-0", "zero-shot-0")
    assert [entry.name for entry in found.primary] == [
        "loss-threshold AUROC",
        "accuracy on own classes",
    ]
    assert found.changes == (*found.primary, *found.secondary)
    assert {"loss-threshold success rate", "entropy AUROC"} <= {
        entry.name for entry in found.secondary
    }
    assert found.regressed == any(entry.regressed for entry in found.primary)
    assert found.passes == all(entry.passes for entry in found.primary)


def test_each_kind_is_corrected_for_its_own_number(runs: Path) -> None:
    """By hand: Holm's method over the two alone; all that is named is primary."""
    found = compare("promptfl-0", "zero-shot-0")
    named = compare("promptfl-0", "zero-shot-0", attacks=["loss-threshold"])
    assert [entry.name for entry in named.secondary] == [
        "loss-threshold share told at 1 % false alarms"
    ]
    first_run, second_run = audits_of("promptfl-0", "zero-shot-0")
    auroc, *_, use = measure_pair(
        first_run, second_run, ["loss-threshold"], utility=True
    )
    first, second = sorted(
        p_value_within(m.numbers.interval_at, 0.0) for m in (auroc, use)
    )
    expected = [min(2 * first, 1.0), min(max(2 * first, second), 1.0)]
    assert sorted(e.change.p_value for e in found.primary) == pytest.approx(expected)


def test_a_secondary_increase_decides_nothing(runs: Path) -> None:
    """With utility left out nothing primary differs by that much."""
    found = compare("zero-shot-0", "promptfl-0", margin=0.001, utility=False, alpha=0.5)
    stored = found.to_dict()
    assert stored["secondary_regressed"] == any(e.regressed for e in found.secondary)
    assert [change["primary"] for change in stored["changes"]].count(True) == 1
    assert found.regressed == found.primary[0].regressed


@pytest.mark.parametrize(
    ("about", "value", "regressed", "passes"),
    [
        ("leak", 0.2, True, False),
        ("leak", -0.2, False, True),
        ("leak", 0.0, False, True),
        ("leak", 0.05, False, False),
        ("utility", -0.2, True, False),
        ("utility", 0.2, False, True),
        ("utility", -0.05, False, False),
    ],
)
def test_worse_is_a_higher_leak_and_a_lower_use(
    about: Side, value: float, regressed: bool, passes: bool
) -> None:
    def interval_at(confidence: float) -> Estimate:
        half = 0.02 * confidence
        return Estimate(value, value - half, value + half, (9,), "made up", confidence)

    (change,) = judge_changes([Difference("metric", interval_at)])
    entry = MetricChange("metric", about, 0.5 + value, 0.5, change)
    assert (entry.regressed, entry.passes) == (regressed, passes)


def test_members_with_the_lower_scores_are_as_easily_distinguished(runs: Path) -> None:
    (audit,) = audits_of("promptfl-0")
    columns = dict(audit.columns["loss-threshold"])
    noise = np.random.default_rng(0).normal(size=len(columns["scores"]))
    sides = []
    for shift in (-3.0, 0.0):
        scores = columns["is_member"] * shift + noise
        changed = {"loss-threshold": {**columns, "scores": scores}}
        sides.append(replace(audit, columns=changed))
    auroc, *_ = measure_pair(sides[0], sides[1], ["loss-threshold"], utility=False)
    assert auroc.numbers.turned == (True, False)
    assert auroc.numbers.first > 0.95
    assert auroc.numbers.interval_at(0.95).low > 0.4
    numbers = auroc.numbers
    (change,) = judge_changes([Difference(auroc.name, numbers.interval_at)])
    entry = MetricChange(
        "some", "leak", numbers.first, numbers.second, change, turned=numbers.turned
    )
    assert entry.regressed
    assert entry.sentence.endswith(
        "lower scores in the first: that is the number with the sign turned."
    )


def test_seeds_whose_members_have_the_lower_scores_leak_more(runs: Path) -> None:
    (audit,) = audits_of("promptfl-0")

    def stored(auroc: float) -> StoredAudit:
        changed = replace(audit, contents=copy.deepcopy(dict(audit.contents)))
        changed.attack_result("loss-threshold")["auroc"]["value"] = auroc
        return changed

    audits = [(stored(a), stored(0.6 - a)) for a in (0.1, 0.12, 0.11)]
    auroc, *_ = measure_seeds(audits, ["loss-threshold"], utility=False)
    numbers = auroc.numbers
    assert (numbers.first, numbers.second) == pytest.approx((0.89, 0.49))
    assert numbers.turned == (True, False)
    assert numbers.interval_at(0.95).low > 0.3


def test_seeds_are_the_replicates_of_a_setting(runs: Path) -> None:
    found = compare(["promptfl-1", "promptfl-0"], ["zero-shot-0", "zero-shot-1"])
    assert found.paired_by == "seed"
    assert found.against == ("zero-shot-1", "zero-shot-0")
    audits = audits_of(*found.first, *found.against)
    values = [
        audit.attack_result("loss-threshold")["auroc"]["value"] for audit in audits
    ]
    entry = next(e for e in found.changes if e.name == "loss-threshold AUROC")
    differences = np.subtract(values[:2], values[2:])
    assert entry.change.estimate.value == pytest.approx(differences.mean())
    assert entry.change.estimate.n == (2,)
    half = 12.7062 * abs(differences[0] - differences[1]) / 2  # t with 1 freedom
    high = entry.change.estimate.high
    assert high == pytest.approx(differences.mean() + half, rel=1e-5)


@pytest.mark.parametrize(
    ("first", "against", "says"),
    [
        ("promptfl-0", "promptfl-1", r"belong to the same client \(seed 0 and 1\)"),
        (["promptfl-0", "promptfl-1"], "zero-shot-0", r"seeds \[0, 1\] and \[0\]"),
        (["promptfl-0"] * 2, ["zero-shot-0"] * 2, r"seeds \[0, 0\]"),
        (
            ["promptfl-0", "zero-shot-1"],
            ["zero-shot-0", "zero-shot-1"],
            "differ in trainer, settings",
        ),
    ],
)
def test_what_cannot_be_paired_is_refused(
    runs: Path, first: str | list[str], against: str | list[str], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        compare(first, against)


def copied(runs: Path, to: Path, name: str = "promptfl-0") -> Run:
    return Run(Path(shutil.copytree(runs / name, to / name)))


def test_other_data_cannot_be_paired(runs: Path, tmp_path: Path) -> None:
    other = copied(runs, tmp_path)
    sign_again(other.path, data_hash="another")
    with pytest.raises(IncompatibleRunsError, match="trained on other data"):
        compare("zero-shot-0", other.path)


def test_other_coins_cannot_be_paired(runs: Path, tmp_path: Path) -> None:
    other = copied(runs, tmp_path)
    ledger = Ledger.load(other.path / "ledger.npz")
    tossed = Ledger(ledger.owner, ledger.is_member[::-1] & (ledger.owner >= 0))
    (other.path / "ledger.npz").write_bytes(tossed.to_bytes())
    sign_again(other.path, ledger_hash=tossed.hash)
    again = Run(other.path)
    save_audit(Auditor(again).attack(shadows=0))
    with pytest.raises(IncompatibleRunsError, match="have other members"):
        compare("zero-shot-0", again)


def test_only_clients_that_both_audits_attacked_are_compared(
    runs: Path, tmp_path: Path
) -> None:
    other = copied(runs, tmp_path)
    place = other.path / "audits" / "server-reconstruct" / "scores.npz"
    with np.load(place) as stored:
        arrays = dict(stored)
    kept = arrays["loss-threshold/client"] != "client-1"
    for key in [key for key in arrays if key.startswith("loss-threshold/")]:
        arrays[key] = arrays[key][kept]
    np.savez(place, **arrays)
    sign_again(other.path)
    found = compare(other, "zero-shot-0", attacks=["loss-threshold"], utility=False)
    method = found.changes[0].change.estimate.method
    assert "averaged over 2 clients" in method
    assert {one.about for one in found.changes} == {"leak"}


def test_an_audit_that_is_missing_is_named_with_the_command(
    runs: Path, tmp_path: Path
) -> None:
    other = copied(runs, tmp_path)
    shutil.rmtree(other.path / "audits")
    with pytest.raises(MissingFileError, match="privaudit attack promptfl-0"):
        compare("zero-shot-0", other)


@pytest.mark.parametrize("damage", ["scores", "config", "truth"])
def test_an_audit_that_was_altered_is_refused(
    runs: Path, tmp_path: Path, damage: str
) -> None:
    other = copied(runs, tmp_path)
    place = other.path / "audits" / "server-reconstruct"
    if damage == "scores":
        stored = (place / "scores.npz").read_bytes()
        (place / "scores.npz").write_bytes(stored[: len(stored) // 2])
    elif damage == "config":
        audit = json.loads((place / "audit.json").read_text())
        audit["config"]["rounds"] = 7
        (place / "audit.json").write_text(json.dumps(audit))
    else:
        with np.load(place / "scores.npz") as stored:
            arrays = dict(stored)
        arrays["loss-threshold/is_member"] = ~arrays["loss-threshold/is_member"]
        np.savez(place / "scores.npz", **arrays)
    with pytest.raises(TranscriptError, match="is not the file that the run lists"):
        compare("zero-shot-0", other)
    sign_again(other.path)
    with pytest.raises(TranscriptError, match="does not hold an audit of promptfl-0"):
        compare("zero-shot-0", other)


def test_an_attack_that_was_not_made_is_refused(runs: Path) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'loss-threshold'"):
        compare("promptfl-0", "zero-shot-0", attacks=["los-threshold"])


def test_the_command_prints_a_table_or_json(runs: Path, cli: Cli) -> None:
    words = ("compare", "promptfl-0", "zero-shot-0", "--no-utility")
    code, out, _ = cli(*words)
    assert code == 0
    assert "loss-threshold" in out
    assert "n = about" in " ".join(out.split())
    code, out, _ = cli(*words, "--json")
    expected = compare("promptfl-0", "zero-shot-0", utility=False).to_dict()
    assert json.loads(out) == expected


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["promptfl-0"], "1 runs were given without --against"),
        (["promptfl-0", "zero-shot-0", "--margin", "2"], "A margin of 2.0"),
        (["promptfl-0", "--against", "zero-shot-0,zero-shot-1"], r"seeds [0] and"),
    ],
)
def test_bad_input_to_the_command_is_one_line(
    runs: Path, words: list[str], says: str, cli: Cli
) -> None:
    err = refused(cli, "compare", *words)
    assert says in err
    assert err.count("\n") == 1


def test_other_numbers_of_clients_are_said_as_such(tmp_path: Path) -> None:
    """And not that so many of so many candidates belong to the same client."""
    recorded = []
    for clients in (2, 3):
        owner = np.array([*np.arange(24) % clients, *[PUBLIC] * 10, TEST])
        ledger = Ledger(
            owner, (np.arange(35) % 4 < 2) & (owner >= 0), coin=Coin("system", None)
        )
        place = tmp_path / f"of-{clients}"
        with Recorder(place, ledger=ledger, data_hash="a" * 64) as recorder:
            for client in ledger.clients:
                recorder.broadcast(0, client, {"w": torch.zeros(1)})
                recorder.update(0, client, {"w": torch.ones(1)})
        recorded.append(load_run(place))
    with pytest.raises(ConfigError, match=r"have 2 and 3 clients .*Record both by one"):
        check_pairable(*recorded)
