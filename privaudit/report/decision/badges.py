"""Two badges for each audit: one of what attacks found, one of what was promised.

Neither stands in for the other. An attack that finds nothing proves nothing, so "no
leak found" has the colour of good news only beside a proof that bounds something, of a
run whose mechanism is on record and not its owner's word.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from privaudit.auditing.audit import Audit
from privaudit.core.formatting import epsilon
from privaudit.report.tables.other_attacks import (
    either_sign,
    others_sentence,
    separation,
    strongest_other,
)

Kind = Literal["alarm", "open", "good", "neutral"]
GREEN_EPSILON = 10.0
"""The largest epsilon of good news: a larger one lets the odds of membership grow more
than 20 000-fold (e^10 = 22 026), which bounds little."""


@dataclass(frozen=True)
class Badge:
    """A status in words, with a colour and a sign: never the colour alone.

    Attributes:
        text: In two or three words.
        kind: Sets colour and outline: filled for an alarm and for good news, a dashed
            outline for what is open, a plain one for what is neither.
        sign: Drawn before the text.
        beside: Drawn after the text, such as an epsilon; no part of what it says.
    """

    text: str
    kind: Kind
    sign: str
    beside: str = field(default="", compare=False)


NO_LEAK = "No leak found"
_LEAKS: dict[str, Badge] = {
    "leaks": Badge("Leaks", "alarm", "▲"),
    "reversed": Badge("Separates, sign turned", "open", "?"),
    "sampling unknown": Badge("No verdict", "open", "?"),
    "underpowered": Badge("Undecided (underpowered)", "open", "?"),
    "no evidence": Badge(NO_LEAK, "neutral", "○"),
}
ANOTHER = Badge("Another attack shows a leak", "alarm", "▲")
REFUTED = Badge("Promise refuted", "alarm", "✕")
NOT_PROVED = Badge("Promise not proved", "open", "?")
KEPT = Badge("Promise kept", "good", "✓")
KEPT_LOOSE = Badge("Promise kept, but ε is large", "neutral", "✓")
DECLARED = Badge("Promise only declared", "open", "?")
NO_PROMISE = Badge("No promise made", "neutral", "∅")


def leak_badge(audit: Audit) -> Badge:
    """Return what the attacks found, the others beside the one named beforehand."""
    kind = audit.headline.verdict.kind
    if kind != "leaks" and others_sentence(audit):
        return ANOTHER
    if (
        kind == "no evidence"
        and audit.assurance.kind == "proved"
        and not is_large(audit)
    ):
        return Badge(NO_LEAK, "good", "○", _epsilon(audit))
    return _LEAKS[kind]


def promise_badge(audit: Audit) -> Badge:
    """Return what became of the claimed epsilon.

    Kept: an epsilon no larger is certified against this adversary, from noise that no
    seed repeats; no good news where it is large. Declared: the mechanisms would give
    that, and nothing here applied them. Refuted: canaries show more. Not proved:
    neither. Where none is claimed there is nothing to keep, whatever is certified.
    """
    if audit.assurance.kind == "refuted":
        return REFUTED
    if audit.claimed_epsilon is None:
        return NO_PROMISE
    declared = audit.declared_epsilon
    if declared is not None and declared <= audit.claimed_epsilon:
        return replace(DECLARED, beside=f"ε = {epsilon(declared)}")
    if audit.assurance.kind != "proved":
        return NOT_PROVED
    return replace(KEPT_LOOSE if is_large(audit) else KEPT, beside=_epsilon(audit))


def is_large(audit: Audit) -> bool:
    """Say whether what is certified bounds too little to be good news."""
    proved = audit.certified_epsilon
    return proved is not None and proved > GREEN_EPSILON


def _epsilon(audit: Audit) -> str:
    return f"ε = {epsilon(audit.certified_epsilon)}"


def leak_rank(audit: Audit) -> int:
    """Return how bad what was found is: the larger, the worse."""
    if leak_badge(audit) == ANOTHER:
        return len(_LEAKS)
    return len(_LEAKS) - list(_LEAKS).index(audit.headline.verdict.kind)


def promise_rank(audit: Audit) -> int:
    """Return how bad it is what became of the promise: the larger, the worse."""
    kept = (KEPT, KEPT_LOOSE)
    return (*kept, NO_PROMISE, DECLARED, NOT_PROVED, REFUTED).index(
        promise_badge(audit)
    )


def audit_rank(audit: Audit) -> tuple[bool, bool, int, float, str]:
    """Return what audits are sorted by, the worst first.

    What is said to leak, then refuted promises, then what is open, then where nothing
    was found; among those that leak refuted promises first; then the largest AUROC of
    the attack that is named, of turned scores where they are. One without an AUROC
    is the last of its kind.
    """
    leaks = leak_badge(audit).kind == "alarm"
    refuted = promise_badge(audit) == REFUTED
    return (not leaks, not refuted, -leak_rank(audit), -_shown(audit), audit.run.name)


def _shown(audit: Audit) -> float:
    """Return the AUROC of what a badge is about."""
    if leak_badge(audit) == ANOTHER and (other := strongest_other(audit)):
        return either_sign(other.leak.auroc).value
    if audit.verdict.kind in ("reversed", "sampling unknown"):
        return separation(audit.auroc)
    return -1.0 if math.isnan(audit.auroc.value) else audit.auroc.value
