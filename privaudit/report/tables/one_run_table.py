"""What canaries of one run show about epsilon, in words and as a table."""

from dataclasses import dataclass

from privaudit.auditing.audit import Audit
from privaudit.auditing.parts.one_run import ONE_RUN
from privaudit.core.formatting import percent, small
from privaudit.report.report_data import ReportData
from privaudit.statistics.epsilon.bound import EpsilonBound


@dataclass(frozen=True)
class BoundRow:
    """One lower bound on epsilon.

    Attributes:
        run: The run's name.
        method: How it was found.
        named: Whether the verdict is about it.
        value: Epsilon is at least this.
        ceiling: The most that it could have shown.
        confidence: Of the bound.
        delta: At which epsilon is meant.
        counts: Canaries in + out.
        holds: For which mechanisms.
    """

    run: str
    method: str
    named: bool
    value: str
    ceiling: str
    confidence: str
    delta: str
    counts: str
    holds: str


def bound_rows(data: ReportData) -> list[BoundRow]:
    """Return every bound of each run, the one named beforehand first."""
    return [
        _bound_row(one.label, bound, named=bound is one_run.bound)
        for one in data.runs
        if (one_run := one.audit.part(ONE_RUN))
        for bound in (one_run.bound, *one_run.others)
    ]


def _bound_row(label: str, bound: EpsilonBound, *, named: bool) -> BoundRow:
    return BoundRow(
        run=label,
        method=bound.method,
        named=named,
        value=f"{bound.value:.2f}",
        ceiling=f"{bound.ceiling:.2f}",
        confidence=percent(bound.confidence),
        delta=small(bound.delta),
        counts=f"{bound.n[0]} + {bound.n[1]}",
        holds="any" if bound.can_refute else "of the assumed form; refutes nothing",
    )


def claim_kind(audit: Audit) -> str:
    """Return the verdict on the claimed epsilon; nothing where that was not asked."""
    one_run = audit.part(ONE_RUN)
    return one_run.verdict.kind if one_run else ""


def one_run_sentences(audit: Audit) -> list[str]:
    """Return the verdict on the claim, and what the canaries were."""
    one_run = audit.part(ONE_RUN)
    if one_run is None:
        return []
    return [
        one_run.verdict.sentence,
        f"Canaries: {one_run.canaries}. Scored by: {one_run.scored_by}.",
    ]
