"""A gate's result in codes: what JUnit, SARIF and summaries say, for they may be public.

An exact number about members is an equation about them, and few are enough (see
docs/export.md). So no number that a membership enters is here, nor the run's name, which
may hold its seed. Epsilons may follow from how many are members, where whole clients are
or where a run was recorded, so that none is here. The terminal, ``--json`` and the report
have the numbers, for the owner.
"""

from privaudit.checks.gate.checks import AnyCheck, GateCheck
from privaudit.checks.gate.gate import GateResult
from privaudit.checks.gate.guarantees import GuaranteeCheck
from privaudit.statistics.verdict import UNKNOWN_SAMPLING

_SAID = {
    "pass": "Pass: what it looks for is ruled out",
    "regression": "Regression: found",
    "underpowered": "Underpowered: not decided",
}


def coded(check: AnyCheck) -> str:
    """Return a check's outcome in a sentence."""
    if isinstance(check, GateCheck):
        said = _SAID[check.outcome]
        if check.question.sampling == "unknown":
            said = (
                "No verdict on membership: no coin is declared that chose the members"
            )
        return f"{said} ({check.title}, {line_of(check)})."
    if isinstance(check, GuaranteeCheck):
        said = "is weaker" if check.outcome == "regression" else "is no weaker"
        return f"{check.outcome.capitalize()}: {check.name} {said} than before."
    return f"{str(check.outcome).capitalize()}: {check.title} ({check.setting})."


def line_of(check: AnyCheck) -> str:
    """Return what a check is held to."""
    if isinstance(check, GateCheck):
        question = check.question
        return f"{question.setting.replace('_', ' ')} {question.limit:g}"
    return "no rise" if isinstance(check, GuaranteeCheck) else "no less"


def unproved(result: GateResult) -> str:
    """Return what is missing from a proof, without epsilons; nothing where one is."""
    short, sampling = result.assurance.short, result.assurance.sampling
    coins = UNKNOWN_SAMPLING if sampling == "unknown" else ""
    return f"{short.capitalize()}. {coins}".strip() if short else coins


def summary(result: GateResult) -> str:
    """Return what came of all checks in a sentence."""
    same = sum(check.outcome == result.outcome for check in result.checks)
    audits = result.tried.different
    among = f"; one of {audits} audits of the run" if audits > 1 else ""
    said = f"{str(result.outcome).capitalize()}: {same} of {len(result.checks)} checks"
    beside = "against a baseline" if result.baseline else "against limits"
    return f"{said} ({beside}, {result.settings.scenario}{among})."
