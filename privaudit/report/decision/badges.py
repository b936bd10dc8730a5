"""Two badges for each audit: one of what attacks found, one of what was promised.

Neither stands in for the other. An attack that finds nothing proves nothing, so "no
leak found" has the colour of good news only beside a promise that is kept.
"""

from dataclasses import dataclass
from typing import Literal

from privaudit.auditing.audit import Audit
from privaudit.report.tables.other_attacks import others_sentence

Kind = Literal["alarm", "open", "good", "neutral"]


@dataclass(frozen=True)
class Badge:
    """A status in words, with a colour and a sign: never the colour alone.

    Attributes:
        text: In two or three words.
        kind: Sets colour and outline: filled for an alarm and for good news, a dashed
            outline for what is open, a plain one for what is neither.
        sign: Drawn before the text.
    """

    text: str
    kind: Kind
    sign: str


_LEAKS: dict[str, Badge] = {
    "leaks": Badge("Leaks", "alarm", "▲"),
    "reversed": Badge("Separates, sign turned", "open", "?"),
    "underpowered": Badge("Undecided (underpowered)", "open", "?"),
    "sampling unknown": Badge("No verdict", "open", "?"),
    "no evidence": Badge("No leak found", "neutral", "○"),
}
_ANOTHER = Badge("Another attack shows a leak", "alarm", "▲")
REFUTED = Badge("Promise refuted", "alarm", "✕")
NOT_PROVED = Badge("Promise not proved", "open", "?")
KEPT = Badge("Promise kept", "good", "✓")
NO_PROMISE = Badge("No promise made", "neutral", "∅")


def leak_badge(audit: Audit) -> Badge:
    """Return what the attacks found, the others beside the one named beforehand."""
    kind = audit.headline.verdict.kind
    if kind != "leaks" and others_sentence(audit):
        return _ANOTHER
    if kind == "no evidence" and audit.assurance.kind == "proved":
        return Badge("No leak found", "good", "○")
    return _LEAKS[kind]


def promise_badge(audit: Audit) -> Badge:
    """Return what became of the claimed epsilon.

    Kept: an epsilon no larger is certified against this adversary, from noise that no
    seed repeats. Refuted: canaries show more. Not proved: neither. Where none is
    claimed there is nothing to keep, whatever is certified.
    """
    if audit.assurance.kind == "refuted":
        return REFUTED
    if audit.claimed_epsilon is None:
        return NO_PROMISE
    return KEPT if audit.assurance.kind == "proved" else NOT_PROVED


def leak_rank(audit: Audit) -> int:
    """Return how bad what was found is: the larger, the worse."""
    if leak_badge(audit) == _ANOTHER:
        return len(_LEAKS)
    return len(_LEAKS) - list(_LEAKS).index(audit.headline.verdict.kind)


def promise_rank(audit: Audit) -> int:
    """Return how bad it is what became of the promise: the larger, the worse."""
    return (KEPT, NO_PROMISE, NOT_PROVED, REFUTED).index(promise_badge(audit))


def audit_rank(audit: Audit) -> tuple[int, bool, float, str]:
    """Return what audits are sorted by, the worst first.

    What is said to leak, then what is open, then where nothing was found; among these
    refuted promises first; then the largest AUROC of the attack named beforehand.
    """
    refuted = promise_badge(audit) == REFUTED
    return -leak_rank(audit), not refuted, -audit.auroc.value, audit.run.name
