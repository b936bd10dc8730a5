"""A baseline beside a run: the same records, joined by what only the ledger tells."""

from typing import Any

import numpy as np

from privaudit.auditing.storage.load import StoredAudit
from privaudit.checks.gate.baseline import (
    CLIENT,
    GUESSES,
    KEYS,
    OWN,
    SCORES,
    UTILITY,
    Baseline,
    hashes_of,
    record_keys,
)
from privaudit.core.errors import IncompatibleRunsError
from privaudit.evaluation.compare.comparable import TestScores, score_tests
from privaudit.federated.runs.ledger import Ledger
from privaudit.federated.runs.runs import Run

_DATA = ("dataset", "data", "model", "checkpoint")
_DEAL = ("clients", "partition", "alpha", "shots", "test_share", "public_share")
_COIN = ("members", "canary", "canaries")


def check_same(run: Run, baseline: Baseline) -> None:
    """Raise unless run and baseline have the same data, split and membership.

    Raises:
        ConfigError: They do not; the text says what differs.
    """
    ours, theirs = hashes_of(run, run.truth), baseline.hashes
    if ours["data"] != theirs["data"]:
        _refuse(run, baseline, "were trained on other data", _DATA)
    if ours["deal"] != theirs["deal"]:
        _refuse(run, baseline, "split their records differently", _DEAL)
    if ours["ledger"] != theirs["ledger"]:
        _refuse(run, baseline, "have other members", _COIN)


def _refuse(run: Run, baseline: Baseline, what: str, names: tuple[str, ...]) -> None:
    ours, theirs = run.config.model_dump(), baseline.settings
    unlike = [
        f"{name} {ours[name]} and {theirs.get(name)}"
        for name in names
        if ours[name] != theirs.get(name)
    ]
    guess = "with equal settings, so the seeds or the versions differ"
    raise IncompatibleRunsError(
        f"{run.name} and the baseline of {baseline.run} {what} "
        f"({'; '.join(unlike) or guess}), so that no record can be compared with "
        "itself. Train both alike and with the same seed, write the baseline again, or "
        "compare with public numbers (`privaudit export`), which takes more records."
    )


def joined_audit(audit: StoredAudit, baseline: Baseline) -> StoredAudit:
    """Return the baseline as an audit, with the truth of the run's own ledger.

    Its records are those of the run's audit that the baseline has, in that order.
    """
    ledger = audit.run.truth
    names = tuple(name for name in baseline.attacks if name in audit.attacks)
    columns = {name: _joined(audit, baseline, ledger, name) for name in names}
    return StoredAudit(audit.run, audit.scenario, names, columns, audit.contents)


def _joined(
    audit: StoredAudit, baseline: Baseline, ledger: Ledger, attack: str
) -> dict[str, Any]:
    ours = audit.columns[attack]
    theirs = {c: baseline.arrays[f"{attack}/{c}"] for c in (CLIENT, SCORES, GUESSES)}
    keys = baseline.arrays[f"{attack}/{KEYS}"]
    row_of = {key.tobytes(): row for row, key in enumerate(keys)}
    found = [row_of.get(k.tobytes(), -1) for k in record_keys(ledger, ours["records"])]
    rows = np.array(found, np.int64)
    mine = rows >= 0
    return {
        **{name: ours[name][mine] for name in ("records", "labels", "is_member")},
        **{name: column[rows[mine]] for name, column in theirs.items()},
    }


def joined_tests(run: Run, baseline: Baseline) -> tuple[TestScores, TestScores]:
    """Return the run's and the baseline's scores on the same test records.

    Raises:
        IncompatibleRunsError: The baseline was written without utility, or measures another.
    """
    if baseline.metric is None:
        raise IncompatibleRunsError(
            f"The baseline of {baseline.run} was written without utility. Write it "
            'again, or leave "utility" out of the metrics.'
        )
    ours = score_tests(run)
    scores, own = baseline.arrays[UTILITY], baseline.arrays[OWN]
    if ours.metric != baseline.metric or ours.scores.shape != scores.shape:
        raise IncompatibleRunsError(
            f"{run.name} measures {ours.metric} of {ours.scores.shape} clients and "
            f"test records, and the baseline {baseline.metric} of {scores.shape}. "
            'Leave "utility" out of the metrics, or write the baseline again.'
        )
    return ours, TestScores(baseline.metric, scores, own)
