"""A check of the gate as cells, the same ones in the terminal and in Markdown."""

from dataclasses import dataclass

from privaudit.checks.gate.checks import AnyCheck
from privaudit.checks.gate.guarantees import GuaranteeCheck
from privaudit.checks.gate.shortfall import Shortfall
from privaudit.report.wording import interval, point


@dataclass(frozen=True)
class GateRow:
    """One check.

    Attributes:
        name: What was asked.
        now: The run's value.
        before: The baseline's; empty for limits.
        line: What it is held to.
        found: The change with its interval, or the value with its own; for a stated
            epsilon both values.
        counts: What n is; empty where nothing was sampled.
        outcome: Of the check.
    """

    name: str
    now: str
    before: str
    line: str
    found: str
    counts: str
    outcome: str


def gate_row(check: AnyCheck) -> GateRow:
    """Return a check's cells."""
    if isinstance(check, Shortfall):
        now, before = check.now, check.before
        change = f"{before} to {now}"
        return GateRow(check.name, now, before, check.code, change, "", check.outcome)
    if isinstance(check, GuaranteeCheck):
        now, before = check.now.short, check.before.short
        change = f"{before} to {now}"
        return GateRow(check.name, now, before, "no rise", change, "", check.outcome)
    question, estimate = check.question, check.estimate
    return GateRow(
        name=question.name,
        now=f"{question.now:.3f}",
        before="" if question.before is None else f"{question.before:.3f}",
        line=f"{question.setting} {question.limit:g}",
        found=f"{point(estimate, signed=question.before is not None)} "
        f"{interval(estimate)}",
        counts=" + ".join(map(str, estimate.n)),
        outcome=check.outcome,
    )
