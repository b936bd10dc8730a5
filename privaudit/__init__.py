"""Privacy audits of federated vision-language models.

A trainer writes a transcript, a threat model is a view of it, an attack turns the
view into one score per candidate, and an audit turns the scores into numbers with
confidence intervals. Each of those words is a module of this package.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privaudit.audit import Audit
    from privaudit.auditor import Auditor
    from privaudit.runs import Run, load_run
    from privaudit.training import train

__all__ = ["Audit", "Auditor", "Run", "load_run", "train"]

_HOMES = {
    "Audit": "privaudit.audit",
    "Auditor": "privaudit.auditor",
    "Run": "privaudit.runs",
    "load_run": "privaudit.runs",
    "train": "privaudit.training",
}


def __getattr__(name: str) -> Any:
    """Import torch and all that needs it on first use: `privaudit --help` does not."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'privaudit' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
