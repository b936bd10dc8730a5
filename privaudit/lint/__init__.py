"""Checks of private runs: was trained what the privacy claim takes for granted?

One file a rule. :func:`lint` runs all of them on a finished run.
"""

from privaudit.lint.finding import Finding, Severity
from privaudit.lint.linter import RULES, lint

__all__ = ["RULES", "Finding", "Severity", "lint"]
