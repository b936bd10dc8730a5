"""A baseline beside a run: the same records, joined by what only the ledger tells."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from privaudit.auditing.storage.load import LEFT_OUT, StoredAudit
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
from privaudit.evaluation.compare.comparable import (
    TestScores,
    refuse_unnamed,
    score_tests,
)
from privaudit.federated.runs.ledger import Ledger
from privaudit.federated.runs.runs import Run

_MODEL = ("model", "checkpoint")
_SPLIT = (
    "clients", "partition", "alpha", "shards", "sizes", "shots", "test_share",
    "public_share",
)  # fmt: skip
_UNLIKE: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "data": ("were trained on other data", ("dataset", "data", *_MODEL)),
    "model": ("tune other models", _MODEL),
    "deal": ("split their records differently", _SPLIT),
    "ledger": ("have other members", ("members", "canary", "canaries")),
}
"""By hash, what another one means, and the settings that it follows from."""


def check_same(
    run: Run, baseline: Baseline, parts: Collection[str] = tuple(_UNLIKE)
) -> None:
    """Raise unless run and baseline have the same data, model, split and membership.

    Args:
        run: The run.
        baseline: What it is to be compared with.
        parts: Which of these are asked.

    Raises:
        ConfigError: They do not; the text says what differs.
    """
    if "ledger" in parts:
        refuse_unnamed(run)
    hashes = hashes_of(run, run.truth)
    for part in parts:
        if hashes[part] != baseline.hashes[part]:
            _refuse(run, baseline, *_UNLIKE[part])


def _refuse(run: Run, baseline: Baseline, what: str, names: tuple[str, ...]) -> None:
    run_settings, baseline_settings = run.config.described(), baseline.settings
    unlike = [
        f"{name} {run_settings.get(name)} and {baseline_settings.get(name)}"
        for name in names
        if run_settings.get(name) != baseline_settings.get(name)
    ]
    guess = "with equal settings, so the seeds or the versions differ"
    if run.config.seed is None:
        guess = "without a seed each run tosses coins of its own"
    raise IncompatibleRunsError(
        f"{run.name} and the baseline of {baseline.run} {what} "
        f"({'; '.join(unlike) or guess}), so that no record can be compared with "
        "itself. Train both alike and with the same --seed, write the baseline again, or "
        "compare with public numbers (`privaudit export`), which takes more records."
    )


def joined_audit(
    audit: StoredAudit, baseline: Baseline, attacks: Sequence[str]
) -> StoredAudit:
    """Return the baseline as an audit, with the truth of the run's own ledger.

    Its records are those of the run's audit that the baseline has, in that order.

    Raises:
        IncompatibleRunsError: The baseline lacks an attack.
    """
    if lacking := [name for name in attacks if name not in baseline.attacks]:
        raise IncompatibleRunsError(
            f"The baseline of {baseline.run} holds no {lacking[0]}: it has "
            f"{', '.join(baseline.attacks)}. Attack that run again and write its "
            "baseline again, or ask for one of these."
        )
    ledger, names = audit.run.truth, tuple(attacks)
    columns = {name: _joined(audit, baseline, ledger, name) for name in names}
    return StoredAudit(audit.run, audit.scenario, names, columns, audit.contents)


def _joined(
    audit: StoredAudit, baseline: Baseline, ledger: Ledger, attack: str
) -> dict[str, Any]:
    run_columns = audit.columns[attack]
    baseline_columns = {
        c: baseline.arrays[f"{attack}/{c}"]
        for c in (CLIENT, SCORES, GUESSES, LEFT_OUT)
        if f"{attack}/{c}" in baseline.arrays
    }
    keys = baseline.arrays[f"{attack}/{KEYS}"]
    row_of = {key.tobytes(): row for row, key in enumerate(keys)}
    positions = [
        row_of.get(k.tobytes(), -1) for k in record_keys(ledger, run_columns["records"])
    ]
    rows = np.array(positions, np.int64)
    matched = rows >= 0
    return {
        **{
            name: run_columns[name][matched]
            for name in ("records", "labels", "is_member")
        },
        **{name: column[rows[matched]] for name, column in baseline_columns.items()},
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
    tests = score_tests(run)
    scores, own_mask = baseline.arrays[UTILITY], baseline.arrays[OWN]
    if tests.metric != baseline.metric or tests.scores.shape != scores.shape:
        raise IncompatibleRunsError(
            f"{run.name} measures {tests.metric} of {tests.scores.shape} clients and "
            f"test records, and the baseline {baseline.metric} of {scores.shape}. "
            'Leave "utility" out of the metrics, or write the baseline again.'
        )
    return tests, TestScores(baseline.metric, scores, own_mask)
