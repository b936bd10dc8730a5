"""Checks of private runs: was trained what the privacy claim takes for granted?

One file a rule. :func:`lint` runs all of them on a finished run.
"""

from privaudit.checks.lint.evidence import Finding, Severity
from privaudit.checks.lint.linter import RULES, lint

__all__ = ["RULES", "Finding", "Severity", "lint"]
