"""What may be said of an attack whose non-members are foreign, given its controls."""

from dataclasses import dataclass
from typing import Any

from privaudit.statistics.comparisons import Comparison
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.verdict import judge_leak

SHIFT = "distribution shift, not membership"
MEMBERSHIP = "membership shows beyond the distribution shift"
OUTSIDE = "these foreign records show shift only"  # and others membership


@dataclass(frozen=True)
class Shift:
    """One attack against non-members from elsewhere.

    Attributes:
        attack: Its name.
        inside: AUROC against non-members from the members' own distribution.
        foreign: Against the foreign ones.
        untuned: The same, of the model before any training: all of it is shift.
        beyond: ``foreign`` less ``untuned``, on the same records.
        blind: AUROC of an attacker that sees the records and no model of theirs.
        beyond_blind: ``foreign`` less ``blind``, on the same records.
    """

    attack: str
    inside: Estimate
    foreign: Estimate
    untuned: Estimate
    beyond: Comparison
    blind: Estimate
    beyond_blind: Comparison

    @property
    def sentence(self) -> str:
        """What may be said.

        Of membership only if training added to the AUROC *and* members stand out among
        records of their own distribution: tuning on anybody's records moves data sets
        apart.
        """
        gained = _is_above(self.beyond.estimate, 0.0)
        unbeaten = [] if gained else ["the untuned model"]
        if not _is_above(self.beyond_blind.estimate, 0.0):
            unbeaten.append("a blind attacker")
        if gained and _is_above(self.inside, 0.5):
            if unbeaten and _is_above(self.blind, 0.5):
                return f"{MEMBERSHIP}, though a blind attacker tells them as well"
            return MEMBERSHIP
        if not _is_above(self.foreign, 0.5):
            return "nothing tells members from these foreign records"
        if not unbeaten:
            return f"{SHIFT}: members do not stand out in their own distribution"
        if _is_above(self.untuned, 0.5) or _is_above(self.blind, 0.5):
            ending = "" if len(unbeaten) > 1 else "s"
            why = f"{' and '.join(unbeaten)} tell{ending} them as well"
            if _is_above(self.inside, 0.5):
                return f"{OUTSIDE}: {why}; members stand out in their own distribution"
            return f"{SHIFT}: {why}"
        return "undecided between distribution shift and membership"

    @property
    def estimates(self) -> dict[str, Estimate]:
        """Every number, by name, in the order to show them in."""
        return {
            "inside": self.inside,
            "foreign": self.foreign,
            "untuned": self.untuned,
            "beyond": self.beyond.estimate,
            "blind": self.blind,
            "beyond_blind": self.beyond_blind.estimate,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for a JSON file."""
        return {
            "attack": self.attack,
            **{name: estimate.to_dict() for name, estimate in self.estimates.items()},
            "p_value": self.beyond.p_value,
            "p_value_blind": self.beyond_blind.p_value,
            "sentence": self.sentence,
            "inside_sentence": judge_leak(self.inside).sentence,
        }


def _is_above(estimate: Estimate, value: float) -> bool:
    return estimate.excludes(value) and estimate.value > value


@dataclass(frozen=True)
class PrintedAttack:
    """One attack as :meth:`Shift.to_dict` gives it."""

    attack: str
    inside: Estimate
    foreign: Estimate
    untuned: Estimate
    beyond: Estimate
    blind: Estimate
    beyond_blind: Estimate
    p_value: float
    p_value_blind: float
    sentence: str
    inside_sentence: str


@dataclass(frozen=True)
class PrintedShift:
    """What the command prints of a run under ``--json``, and keeps at the path.

    What was asked is all but the run, by option.
    """

    run: str
    foreign: str
    asked: dict[str, Any]
    canaries_left_out: int
    path: str
    attacks: list[PrintedAttack]
