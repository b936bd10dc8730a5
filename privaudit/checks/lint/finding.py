"""Findings of the linter, and its rules."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from privaudit.checks.lint.evidence import Evidence

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One thing that a rule found.

    Attributes:
        severity: "error": the claim does not hold, or the record of it is wrong.
            "warning": it holds against fewer adversaries, or on a condition, that a
            reader would miss. "note": what could not be checked, or is as it should be.
        settings: What causes it, as "name=value".
    """

    rule: str
    severity: Severity
    sentence: str
    settings: tuple[str, ...] = ()

    def __str__(self) -> str:
        cause = f" [{', '.join(self.settings)}]" if self.settings else ""
        return f"{self.severity}: {self.rule}: {self.sentence}{cause}"

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON's types."""
        return asdict(self) | {"settings": list(self.settings)}


Found = Iterator[tuple[Severity, str] | tuple[Severity, str, tuple[str, ...]]]
"""Severity, sentence and, where any cause it, settings of each finding."""


@dataclass(frozen=True)
class Rule:
    """One question about a run."""

    name: str
    question: str
    check: Callable[[Evidence], Found]

    def __call__(self, evidence: Evidence) -> list[Finding]:
        """Return what it finds."""
        return [Finding(self.name, *fields) for fields in self.check(evidence)]


def rule(check: Callable[[Evidence], Found]) -> Rule:
    """Return the rule that is called as a function is, and asks its docstring's line."""
    question = (check.__doc__ or "").partition("\n")[0]
    return Rule(check.__name__.replace("_", "-"), question, check)
