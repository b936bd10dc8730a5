"""What a table keeps of a run, or why there is none."""

import math
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from privaudit.core.errors import PrivauditError, RunInUseError
from privaudit.core.portable_bits import Provenance
from privaudit.execution.jobs import use_threads
from privaudit.runs.run import Run
from privaudit.statistics.progress import Watcher
from privaudit_tools.tables.afterwards import Afterwards, measure_afterwards
from privaudit_tools.tables.metrics import (
    ACCURACIES,
    CAPTIONS,
    ELSEWHERE,
    MEGABYTES,
    Metric,
)
from privaudit_tools.tables.plan import Over
from privaudit_tools.tables.schedule import PlannedRun

LAST = 10  # rounds that are averaged, as DP-FPL reports


@dataclass(frozen=True)
class TableOutcome:
    """A finished run, or a failed one.

    Attributes:
        short_hash: Of its configuration.
        run: The run's folder; empty where it failed.
        rounds: How many were trained.
        averaged: How many of the last ten were measured.
        seconds: That the rounds took.
        values: Shares, AUROCs or megabytes by metric and by what they are taken over;
            None where the run has no such number.
        claimed: Epsilon by the method's own formula; None where nothing is claimed.
        delta: Of the claim.
        certified: Proved epsilon by view; None where nothing is proved.
        neighbours: Whom that protects, and the neighbouring relation, in words.
        computed: With which bits, library builds and processor it was trained.
        error: Why it failed; empty where it did not.
        trace: Where in the code, if the error is not one that is raised on purpose.
    """

    short_hash: str
    run: str = ""
    rounds: int = 0
    averaged: int = 0
    seconds: float = 0.0
    values: Mapping[Metric, Mapping[Over, float | None]] = field(default_factory=dict)
    claimed: float | None = None
    delta: float | None = None
    certified: Mapping[str, float | None] = field(default_factory=dict)
    neighbours: str = ""
    computed: Provenance = field(default_factory=Provenance)
    error: str = ""
    trace: str = ""

    def value(self, metric: Metric, over: Over) -> float | None:
        """Return a metric, if the run has it."""
        return self.values.get(metric, {}).get(over)


def perform(
    planned: PlannedRun, folder: str | Path | None, watcher: Watcher | None = None
) -> TableOutcome:
    """Train a run, or go on with it, or take it as it is; a failure is an outcome too.

    It trains on one thread, whatever there is: a run that was stopped can be resumed
    only with the threads it was begun with, and the next command may be given others.

    Raises:
        RunInUseError: Another process trains it.
    """
    try:
        with use_threads(1):
            run = planned.train(folder, watcher)
            return read_outcome(run, planned.afterwards)
    except RunInUseError:
        raise
    except PrivauditError as error:
        return TableOutcome(planned.short_hash, error=str(error))
    except Exception as error:  # a bug: the other cells are worth having all the same
        text = f"{type(error).__name__}: {error}"
        return TableOutcome(
            planned.short_hash, error=text, trace=traceback.format_exc()
        )


def read_outcome(run: Run, asked: Afterwards | None = None) -> TableOutcome:
    """Return what a table keeps of a finished run, and what it is asked besides."""
    asked, claim = asked or Afterwards(), run.privacy["claimed"]
    noted = [metric for metric in asked.metrics if _is_noted(metric)]
    measured = measure_afterwards(run, asked)
    return TableOutcome(
        run.config.short_hash,
        run.name,
        rounds=len(run.metrics),
        averaged=len(_measured(run.metrics, "local")),
        seconds=sum(entry.get("seconds", 0.0) for entry in run.metrics),
        values={
            **{m: read_metric(run.metrics, m) for m in (*ACCURACIES, *noted)},
            **{m: {"last10": value, "last": value} for m, value in measured.items()},
        },
        claimed=claim["epsilon"],
        delta=claim["delta"],
        certified={
            view: proof["epsilon"] for view, proof in run.privacy["certified"].items()
        },
        neighbours=_neighbours(run.privacy["certified"]["released"]),
        computed=Provenance.of(run.header),
    )


def _neighbours(proof: Mapping[str, Any]) -> str:
    return f"one {proof['unit']}, {proof['adjacency']}"


def _is_noted(metric: Metric) -> bool:
    """Say whether a metric stands in a run's own record of its rounds."""
    captions = metric in CAPTIONS and not metric.startswith(ELSEWHERE)
    return captions or metric == MEGABYTES


def read_metric(
    rounds: Sequence[Mapping[str, Any]], metric: Metric
) -> dict[Over, float | None]:
    """Return a metric's mean over the last ten rounds, and the last round's.

    Rounds without it are left out of the mean; without any, there is none. Megabytes
    are a mean over all rounds, since each may send something else.

    Example:
        >>> read_metric([{"local_accuracy": 0.5}, {"local_accuracy": 1.0}], "local")
        {'last10': 0.75, 'last': 1.0}
    """
    if metric == MEGABYTES:
        sent = [entry["bytes_up"] + entry["bytes_down"] for entry in rounds]
        per_round = fmean(sent) / 1e6 if sent else None
        return {"last10": per_round, "last": per_round}
    there = _measured(rounds, metric)
    last = _measured(rounds[-1:], metric)
    mean = fmean(there) if there else None
    return {"last10": mean, "last": last[0] if last else None}


def _measured(rounds: Sequence[Mapping[str, Any]], metric: Metric) -> list[float]:
    """Return a metric's values in those of the last ten rounds that have it."""
    name = f"{metric}_accuracy" if metric in ACCURACIES else metric
    numbers = [_number(entry.get(name)) for entry in rounds[-LAST:]]
    return [value for value in numbers if value is not None]


def _number(value: Any) -> float | None:
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return None
