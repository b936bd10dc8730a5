"""Privacy audits of federated vision-language models.

A trainer writes a transcript, a threat model is a view of it, an attack turns the
view into one score per candidate, and an audit turns the scores into numbers with
confidence intervals. Each of those words is a module of this package.

The names below are imported on first use. Where a function is called as its module is,
``privaudit.compare`` is the function; ``from privaudit.compare import ...`` still finds
what else is in the module.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privaudit.audit import Audit
    from privaudit.auditor import Auditor
    from privaudit.blind import blind_control
    from privaudit.claim_audit import audit_claim as claim
    from privaudit.compare import compare
    from privaudit.gate import gate
    from privaudit.lint import lint
    from privaudit.own_model import shadow_scores, signals_of_logits, tokens_of_logits
    from privaudit.runs import Run, load_run
    from privaudit.shift import measure_shift as shift
    from privaudit.statistics.claim import Guarantee, judge_claim
    from privaudit.statistics.epsilon.designs import OneRunCanaries
    from privaudit.statistics.epsilon.one_run import OneRunGuesses
    from privaudit.statistics.estimate import Estimate
    from privaudit.statistics.verdict import judge_leak
    from privaudit.tradeoff import sweep as tradeoff
    from privaudit.training import train

__all__ = [
    "Audit",
    "Auditor",
    "Estimate",
    "Guarantee",
    "OneRunCanaries",
    "OneRunGuesses",
    "Run",
    "blind_control",
    "claim",
    "compare",
    "gate",
    "judge_claim",
    "judge_leak",
    "lint",
    "load_run",
    "shadow_scores",
    "shift",
    "signals_of_logits",
    "tokens_of_logits",
    "tradeoff",
    "train",
]

_HOMES = {
    "Audit": "privaudit.audit:Audit",
    "Auditor": "privaudit.auditor:Auditor",
    "Estimate": "privaudit.statistics.estimate:Estimate",
    "Guarantee": "privaudit.statistics.claim:Guarantee",
    "OneRunCanaries": "privaudit.statistics.epsilon.designs:OneRunCanaries",
    "OneRunGuesses": "privaudit.statistics.epsilon.one_run:OneRunGuesses",
    "Run": "privaudit.runs:Run",
    "blind_control": "privaudit.blind:blind_control",
    "claim": "privaudit.claim_audit:audit_claim",
    "compare": "privaudit.compare:compare",
    "gate": "privaudit.gate:gate",
    "judge_claim": "privaudit.statistics.claim:judge_claim",
    "judge_leak": "privaudit.statistics.verdict:judge_leak",
    "lint": "privaudit.lint:lint",
    "load_run": "privaudit.runs:load_run",
    "shadow_scores": "privaudit.own_model:shadow_scores",
    "shift": "privaudit.shift:measure_shift",
    "signals_of_logits": "privaudit.own_model:signals_of_logits",
    "tokens_of_logits": "privaudit.own_model:tokens_of_logits",
    "tradeoff": "privaudit.tradeoff:sweep",
    "train": "privaudit.training:train",
}


def __getattr__(name: str) -> Any:
    """Import torch and all that needs it on first use: `privaudit --help` does not."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'privaudit' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(import_module(module), attribute)


class _Package(ModuleType):
    """A package whose functions come before its modules, whichever is asked for first.

    Importing a module binds its name in the package, so that `from privaudit import
    compare` would depend on who imported what before.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
