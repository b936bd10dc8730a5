"""Verdicts on a claimed and a certified epsilon, by a bound from below."""

import math
from dataclasses import dataclass
from typing import Literal

from privaudit.core.errors import ConfigError
from privaudit.statistics.epsilon.bound import Adjacency, EpsilonBound

ClaimKind = Literal["REFUTED", "NOT REFUTED", "UNDERPOWERED", "UNTESTABLE"]


@dataclass(frozen=True)
class Guarantee:
    """An epsilon that somebody claims or proves.

    Attributes:
        epsilon: At least 0, finite.
        delta: Of the guarantee, in [0, 1).
        adjacency: Which data sets count as neighbours.
        unit: What is protected: "record" or "client".
    """

    epsilon: float
    delta: float
    adjacency: Adjacency = "add/remove-one"
    unit: str = "record"

    def __post_init__(self) -> None:
        if not (0 <= self.epsilon < math.inf and 0 <= self.delta < 1):
            raise ConfigError(
                f"An epsilon of {self.epsilon:g} at delta {self.delta:g} guarantees "
                "nothing. Give a finite epsilon of at least 0 and a delta in [0, 1), "
                "or None where nothing is guaranteed."
            )

    @classmethod
    def stated(
        cls,
        epsilon: float | None,
        delta: float | None,
        adjacency: Adjacency = "add/remove-one",
        unit: str = "record",
    ) -> "Guarantee | None":
        """Return what a run states; None where it states no epsilon."""
        if epsilon is None:
            return None
        return cls(float(epsilon), float(delta or 0.0), adjacency, unit)

    def __str__(self) -> str:
        return (
            f"epsilon {self.epsilon:.4g} at delta {self.delta:g} "
            f"({self.adjacency}, per {self.unit})"
        )

    def contradicted_by(self, bound: EpsilonBound) -> bool:
        """Return whether the bound is evidence against this guarantee."""
        return not why_untestable(self, bound) and bound.value > self.epsilon


@dataclass(frozen=True)
class ClaimVerdict:
    """A judgement on a claim, and the numbers that its sentence is made of.

    Attributes:
        kind: "REFUTED": the bound is above the claim. "UNDERPOWERED": it could not have
            been, whatever the scores. "NOT REFUTED": it could have been, and is not;
            that proves nothing for the claim. "UNTESTABLE": nothing is claimed, or this
            bound cannot speak about it.
        claimed: As in :func:`judge_claim`, and so ``certified`` and ``bound``.
        alarm: The bound is above what was *proved*: the accountant is wrong, or the
            implementation is not what it accounts for, or (with a chance of one less
            the confidence, at most) the bound is.

    Raises:
        ConfigError: Kind or alarm do not follow from the numbers.
    """

    kind: ClaimKind
    claimed: Guarantee | None
    certified: Guarantee | None
    bound: EpsilonBound
    alarm: bool = False

    def __post_init__(self) -> None:
        kind, _ = _kind(self.claimed, self.bound)
        alarm = _is_beyond(self.certified, self.bound)
        if (kind, alarm) != (self.kind, self.alarm):
            raise ConfigError(
                f"A claim is {self.kind} (alarm: {self.alarm}), and by its numbers it "
                f"is {kind} (alarm: {alarm}). It was altered: audit it again."
            )

    @property
    def sentence(self) -> str:
        """The judgement with claim, certificate, bound, ceiling, n, delta and unit."""
        claimed, certified, bound = self.claimed, self.certified, self.bound
        claim = "no epsilon" if claimed is None else str(claimed)
        reason = _kind(claimed, bound)[1]
        sentence = f"{self.kind}: claimed is {claim}{reason}; shown is {bound}"
        if claimed is None:
            sentence += f" ({bound.adjacency}, per {bound.unit})"
        proof = "none" if certified is None else str(certified)
        sentence += f". Certified: {proof}"
        if certified is not None and why_untestable(certified, bound):
            sentence += f", not tested: {why_untestable(certified, bound)}"
        if self.alarm:
            sentence += (
                ". ALARM: the bound is beyond what was certified, so the accountant or "
                "the implementation is wrong"
            )
        return f"{sentence}."

    def __str__(self) -> str:
        return self.sentence


def judge_claim(
    claimed: Guarantee | None, certified: Guarantee | None, bound: EpsilonBound
) -> ClaimVerdict:
    """Return what the bound says about a claim, and whether it passes a proof.

    (epsilon, delta)-DP implies (epsilon, delta')-DP for every larger delta', and for no
    smaller one. A bound at delta' says that (epsilon, delta')-DP does not hold for any
    epsilon below it. So it speaks about claims at its own delta and at smaller ones,
    where it shows less than a bound at the claim's own would, and about no claim at a
    larger delta: that may allow what the bound saw. Adjacency and unit must be the
    same, as neither of the two adjacencies implies the other at the same epsilon. But
    whoever may replace all of a client's records may add one, remove one or change one:
    a guarantee for clients that are replaced covers records of either adjacency. (One
    for clients that are added or removed does not: a record less leaves a client whose
    part points elsewhere, up to twice as far away as no part at all.) A bound that
    assumes the form of the noise refutes nothing.

    A true claim is refuted in at most one less the bound's confidence of audits. That
    is for one bound, chosen before the scores were seen; of several bounds on one claim
    the best is no bound. One bound may be held against claim and certificate both.

    Args:
        claimed: By the method's own formula; None where nothing is claimed.
        certified: What an accountant proves in the adversary's view; None where nothing
            is proved.
        bound: From canaries, seen by the same adversary.

    Example:
        >>> bound = EpsilonBound(1.2, 0.95, 1e-5, (50, 50), 2.57, "many runs",
        ...                      "Clopper-Pearson", can_refute=True)
        >>> judge_claim(Guarantee(0.4, 1e-5), None, bound).kind
        'REFUTED'
    """
    kind, _ = _kind(claimed, bound)
    return ClaimVerdict(kind, claimed, certified, bound, _is_beyond(certified, bound))


def _is_beyond(certified: Guarantee | None, bound: EpsilonBound) -> bool:
    return certified is not None and certified.contradicted_by(bound)


def why_untestable(guarantee: Guarantee, bound: EpsilonBound) -> str:
    """Say why the bound cannot speak about the guarantee; nothing if it can."""
    if not bound.can_refute:
        return "the bound assumes the form of the noise, so it cannot refute"
    replaced = (guarantee.unit, guarantee.adjacency) == ("client", "replace-one")
    covered = replaced and bound.unit == "record"
    if bound.adjacency != guarantee.adjacency and not covered:
        return f"the canaries are {bound.adjacency}"
    if bound.unit != guarantee.unit and not covered:
        return f"a canary stands for one {bound.unit}"
    if bound.delta < guarantee.delta:
        return f"the bound is at delta {bound.delta:g}; audit at {guarantee.delta:g}"
    return ""


def _kind(claimed: Guarantee | None, bound: EpsilonBound) -> tuple[ClaimKind, str]:
    """Return the judgement, and what to say of it beside the numbers."""
    if claimed is None:
        return "UNTESTABLE", ""
    reason = why_untestable(claimed, bound)
    if reason:
        return "UNTESTABLE", f", and {reason}"
    if bound.value > claimed.epsilon:
        return "REFUTED", ""
    if bound.ceiling <= claimed.epsilon:
        return "UNDERPOWERED", ", above all that so few canaries can show"
    return "NOT REFUTED", ""
