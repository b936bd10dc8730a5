"""Privacy audits of federated vision-language models.

A trainer writes a transcript, a threat model is a view of it, an attack turns the
view into one score per candidate, and an audit turns the scores into numbers with
confidence intervals.

The names below are all that a user needs, imported on first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privaudit.auditing.audit import Audit
    from privaudit.auditing.auditor import Auditor
    from privaudit.auditing.external_models import (
        shadow_scores,
        signals_of_logits,
        tokens_of_logits,
    )
    from privaudit.checks.dp_claim_audit import audit_claim as claim
    from privaudit.checks.gate.gate import gate
    from privaudit.checks.lint import lint
    from privaudit.checks.planted_canaries import plant_canaries
    from privaudit.core.devices import use_checkpointing, use_device, use_memory
    from privaudit.core.portable_bits import use_portable_bits
    from privaudit.evaluation.compare.compare import compare
    from privaudit.evaluation.tradeoff.sweep import sweep as tradeoff
    from privaudit.models.remote_code import trust_remote_code
    from privaudit.recording.importing import finish_recording
    from privaudit.recording.membership_split import split_membership
    from privaudit.recording.owner import use_owner
    from privaudit.recording.recorder import Recorder
    from privaudit.report.page import figure
    from privaudit.report.sweep import write_sweep as write_tradeoff
    from privaudit.runs.ledger import Ledger
    from privaudit.runs.run import Run, load_run
    from privaudit.runs.training import train
    from privaudit.statistics.claim import Guarantee, judge_claim
    from privaudit.statistics.epsilon.bound import OneRunCanaries
    from privaudit.statistics.epsilon.one_run import OneRunGuesses
    from privaudit.statistics.estimate import Estimate
    from privaudit.statistics.evidence import Limits
    from privaudit.statistics.verdict import judge_leak

__all__ = [
    "Audit",
    "Auditor",
    "Estimate",
    "Guarantee",
    "Ledger",
    "Limits",
    "OneRunCanaries",
    "OneRunGuesses",
    "Recorder",
    "Run",
    "claim",
    "compare",
    "figure",
    "finish_recording",
    "gate",
    "judge_claim",
    "judge_leak",
    "lint",
    "load_run",
    "plant_canaries",
    "shadow_scores",
    "signals_of_logits",
    "split_membership",
    "tokens_of_logits",
    "tradeoff",
    "train",
    "trust_remote_code",
    "use_checkpointing",
    "use_device",
    "use_memory",
    "use_owner",
    "use_portable_bits",
    "write_tradeoff",
]

_HOMES = {
    "Audit": "privaudit.auditing.audit:Audit",
    "Auditor": "privaudit.auditing.auditor:Auditor",
    "Estimate": "privaudit.statistics.estimate:Estimate",
    "Guarantee": "privaudit.statistics.claim:Guarantee",
    "Ledger": "privaudit.runs.ledger:Ledger",
    "Limits": "privaudit.statistics.evidence:Limits",
    "OneRunCanaries": "privaudit.statistics.epsilon.bound:OneRunCanaries",
    "OneRunGuesses": "privaudit.statistics.epsilon.one_run:OneRunGuesses",
    "Recorder": "privaudit.recording.recorder:Recorder",
    "Run": "privaudit.runs.run:Run",
    "claim": "privaudit.checks.dp_claim_audit:audit_claim",
    "compare": "privaudit.evaluation.compare.compare:compare",
    "figure": "privaudit.report.page:figure",
    "finish_recording": "privaudit.recording.importing:finish_recording",
    "gate": "privaudit.checks.gate.gate:gate",
    "judge_claim": "privaudit.statistics.claim:judge_claim",
    "judge_leak": "privaudit.statistics.verdict:judge_leak",
    "lint": "privaudit.checks.lint:lint",
    "load_run": "privaudit.runs.run:load_run",
    "plant_canaries": "privaudit.checks.planted_canaries:plant_canaries",
    "shadow_scores": "privaudit.auditing.external_models:shadow_scores",
    "signals_of_logits": "privaudit.auditing.external_models:signals_of_logits",
    "split_membership": "privaudit.recording.membership_split:split_membership",
    "tokens_of_logits": "privaudit.auditing.external_models:tokens_of_logits",
    "tradeoff": "privaudit.evaluation.tradeoff.sweep:sweep",
    "train": "privaudit.runs.training:train",
    "trust_remote_code": "privaudit.models.remote_code:trust_remote_code",
    "use_checkpointing": "privaudit.core.devices:use_checkpointing",
    "use_device": "privaudit.core.devices:use_device",
    "use_memory": "privaudit.core.devices:use_memory",
    "use_owner": "privaudit.recording.owner:use_owner",
    "use_portable_bits": "privaudit.core.portable_bits:use_portable_bits",
    "write_tradeoff": "privaudit.report.sweep:write_sweep",
}

_LABS = {
    "blind_baseline": "privaudit_labs.shift.blind_baseline.blind_baseline",
    "shift": "privaudit_labs.shift.distribution_shift.measure_shift",
}


def __getattr__(name: str) -> Any:
    """Import torch and all that needs it on first use: `privaudit --help` does not."""
    from importlib import import_module

    if name in _LABS:
        raise AttributeError(
            f"privaudit.{name} is {_LABS[name]} of privaudit-labs now. Import it from "
            "there; in a clone of the repository: pip install ./labs."
        )
    if name not in _HOMES:
        raise AttributeError(f"module 'privaudit' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(import_module(module), attribute)
