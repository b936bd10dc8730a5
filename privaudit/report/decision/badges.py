"""Two badges for each audit: one of what attacks found, one of what was promised.

Neither stands in for the other. An attack that finds nothing proves nothing, so "no
leak found" has the colour of good news only beside a proof that bounds something, of a
run whose mechanism is on record and not its owner's word.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from privaudit.auditing.attack_result import AttackResult
from privaudit.auditing.audit import Audit
from privaudit.core.formatting import epsilon
from privaudit.report.tables.leak_by_class import ClassLeak, leak_by_class
from privaudit.report.tables.other_attacks import (
    OtherLeak,
    both_models,
    either_sign,
    gain_of_rebuilding,
    separation,
    strongest_attack,
    strongest_other,
)
from privaudit.statistics.estimate import Estimate

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
_PROMISES = (KEPT, KEPT_LOOSE, NO_PROMISE, DECLARED, NOT_PROVED, REFUTED)


@dataclass(frozen=True, eq=False)
class Findings:
    """An audit with what is said of it everywhere, each found out once.

    Attributes:
        label: Names the run among those that it is shown with.
        class_names: Of the data set, which is loaded for them where this is None.
    """

    audit: Audit
    label: str = ""
    class_names: Sequence[str] | None = None

    @property
    def attack(self) -> str:
        """The name of the headline attack."""
        return self.audit.headline.attack

    @cached_property
    def classes(self) -> list[ClassLeak]:
        """The headline attack's leak per class."""
        run, names = self.audit.run, self.class_names
        known = run.class_names if names is None else names
        return leak_by_class(self.audit.headline, known, run.sampling)

    @cached_property
    def both(self) -> tuple[AttackResult, AttackResult] | None:
        """The first attack that was made on clients' models and on the server's."""
        return both_models(self.audit)

    @cached_property
    def gain(self) -> Estimate | None:
        """That attack's AUROC on clients less that on the server's own model."""
        return gain_of_rebuilding(self.audit)

    @cached_property
    def other(self) -> OtherLeak | None:
        """The strongest attack beside the headline, of those that show a leak."""
        return strongest_other(self.audit)

    @property
    def others(self) -> str:
        """Which other attack shows a leak, in a sentence; empty if none does."""
        return self.other.sentence if self.other else ""

    @cached_property
    def strongest(self) -> tuple[AttackResult, float]:
        """The attack that separates best, with either sign, and its p-value."""
        return strongest_attack(self.audit)

    @cached_property
    def leak(self) -> Badge:
        """What the attacks found, the others beside the one named beforehand."""
        kind, is_proved = self.audit.verdict.kind, self.audit.assurance.kind == "proved"
        if kind != "leaks" and self.other:
            return ANOTHER
        if kind == "no evidence" and is_proved and not self.is_large:
            return Badge(NO_LEAK, "good", "○", self._certified)
        return _LEAKS[kind]

    @cached_property
    def promise(self) -> Badge:
        """What became of the claimed epsilon.

        Kept: an epsilon no larger is certified against this adversary, from noise that
        no seed repeats; no good news where it is large. Declared: the mechanisms would
        give that, and nothing here applied them. Refuted: canaries show more. Not
        proved: neither. Where none is claimed there is nothing to keep, whatever is
        certified.
        """
        audit, declared = self.audit, self.audit.declared_epsilon
        if audit.assurance.kind == "refuted":
            return REFUTED
        if audit.claimed_epsilon is None:
            return NO_PROMISE
        if declared is not None and declared <= audit.claimed_epsilon:
            return replace(DECLARED, beside=f"ε = {epsilon(declared)}")
        if audit.assurance.kind != "proved":
            return NOT_PROVED
        return replace(KEPT_LOOSE if self.is_large else KEPT, beside=self._certified)

    @property
    def is_large(self) -> bool:
        """Whether what is certified bounds too little to be good news."""
        proved = self.audit.certified_epsilon
        return proved is not None and proved > GREEN_EPSILON

    @property
    def _certified(self) -> str:
        return f"ε = {epsilon(self.audit.certified_epsilon)}"

    @property
    def leak_rank(self) -> int:
        """How bad what was found is: the larger, the worse."""
        if self.leak == ANOTHER:
            return len(_LEAKS)
        return len(_LEAKS) - list(_LEAKS).index(self.audit.verdict.kind)

    @property
    def promise_rank(self) -> int:
        """How bad it is what became of the promise: the larger, the worse."""
        return _PROMISES.index(self.promise)

    @cached_property
    def rank(self) -> tuple[bool, bool, int, float, str]:
        """What audits are sorted by, the worst first.

        What is said to leak, then refuted promises, then what is open, then where
        nothing was found; among those that leak refuted promises first; then the
        largest AUROC of the attack that is named, of turned scores where they are. One
        without an AUROC is the last of its kind.
        """
        no_leak, kept = self.leak.kind != "alarm", self.promise != REFUTED
        return no_leak, kept, -self.leak_rank, -self._shown, self.audit.run.name

    @property
    def named_auroc(self) -> Estimate:
        """The AUROC of the attack that the badge is about."""
        another = self.other if self.leak == ANOTHER else None
        return another.leak.auroc if another else self.audit.auroc

    @property
    def _shown(self) -> float:
        """What runs of one badge are sorted by: its AUROC, of turned scores or not."""
        auroc = self.named_auroc
        if self.leak == ANOTHER:
            return either_sign(auroc).value
        if self.audit.verdict.kind in ("reversed", "sampling unknown"):
            return separation(auroc)
        return -1.0 if math.isnan(auroc.value) else auroc.value
