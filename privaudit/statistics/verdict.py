"""Verdict on a leak by an AUROC, in one sentence."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.special import expit, logit

from privaudit.core.errors import ConfigError
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.intervals import normal_quantile
from privaudit.statistics.power import up_to_two_digits

Sampling = Literal["coin", "unknown"]
"""How members were chosen: by an independent fair coin each, or nobody says how."""

_TURNED = (
    "lies below 0.5: members have the lower scores. The direction was named beforehand, "
    "so this is no all-clear, but a finding to look into. Turn the sign of a signal "
    "that is low for members, such as a loss; a sign turned because of this number is "
    "tested on other records."
)
_ALONE = (
    " Had this been the run's only audit, it would say “leaks”, as the best of five "
    "that find nothing does in 12 % of runs; a plan before training keeps other audits "
    "from hiding a leak."
)
UNKNOWN_SAMPLING = (
    "Whether that is membership cannot be said: nobody declares that a fair coin chose "
    "each member, so members and non-members may differ without any training."
)


@dataclass(frozen=True)
class Verdict:
    """A judgement and the sentence that carries its evidence.

    Attributes:
        kind: "leaks": members score higher than chance allows. "reversed": members
            score *lower* than chance allows. "no evidence": neither, and a leak beyond
            the margin would have been seen. "underpowered": none of these can be said.
            "sampling unknown": the number stands, and nothing is said of membership.
        sentence: With the number, its interval and n.
    """

    kind: Literal[
        "leaks", "reversed", "no evidence", "underpowered", "sampling unknown"
    ]
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def judge_leak(
    auroc: Estimate,
    margin: float = 0.05,
    sampling: Sampling = "coin",
    tried: int = 1,
) -> Verdict:
    """Return whether an attack tells members from non-members.

    "leaks" needs an interval wholly above 0.5: at 95 % two-sided a run that cannot
    leak is called so in at most 2.5 % of audits. An interval wholly below 0.5 is
    "reversed": the scores do tell members, who have the lower ones. That is a sign to
    turn, as of a loss, or chance in as many audits; in no case is it an all-clear. "no
    evidence" is about the direction that was named; the sentence says what turned
    scores may reach, where that would matter.

    Args:
        auroc: Of an attack whose direction was fixed beforehand.
        margin: The smallest excess over 0.5 that matters, in (0, 0.5].
        sampling: "coin" if an independent fair coin chose each member. Otherwise
            the two groups may differ from the start, and no verdict is given.
        tried: How many audits there were to choose from, at least 1: the interval is
            then one that holds for all of them at once.

    Example:
        >>> print(judge_leak(Estimate(0.531, 0.502, 0.560, (640, 640), "AUROC")))
        Leaks: AUROC 0.531 [0.502, 0.560], n = 640 + 640, lies above 0.5.
    """
    if not 0 < margin <= 0.5:
        raise ConfigError(
            f"A margin of {margin} is not between 0 and 0.5. It is an excess over an "
            "AUROC of 0.5: try 0.05."
        )
    verdict = _judge(auroc, margin, tried)
    if sampling == "coin":
        return verdict
    said = f"No verdict on membership: AUROC {auroc}. {UNKNOWN_SAMPLING}"
    return Verdict("sampling unknown", said)


def at_confidence(auroc: Estimate, confidence: float) -> Estimate:
    """Return an AUROC of resolved interval with that at another confidence.

    The interval is taken to be symmetrical on the logit scale, as that of
    :func:`privaudit.statistics.roc.pooled_auroc` is; at 0 and 1 it is the exact one.

    Example:
        >>> print(at_confidence(Estimate(0.6, 0.5, 0.6923, (50, 50), "AUROC"), 0.99))
        0.600 [0.468, 0.719], n = 50 + 50
    """
    if auroc.value in (0, 1):
        power = math.log((1 - confidence) / 2) / math.log((1 - auroc.confidence) / 2)
        ends = [auroc.low**power, 1 - (1 - auroc.high) ** power]
    else:
        scale = normal_quantile(confidence) / normal_quantile(auroc.confidence)
        centre = logit(auroc.value)
        shifts = logit(np.array([auroc.low, auroc.high])) - centre
        ends = expit(centre + scale * shifts).tolist()
    low, high = min(ends[0], auroc.value), max(ends[1], auroc.value)
    return replace(auroc, low=low, high=high, confidence=confidence)


def _judge(found: Estimate, margin: float, tried: int) -> Verdict:
    if found.unresolved:
        return Verdict("underpowered", f"Underpowered: AUROC {found}.")
    auroc, shown = found, f"{found}"
    if tried > 1:
        auroc = at_confidence(found, 1 - (1 - found.confidence) / tried)
        shown += (
            f", corrected for {tried} audits of the run "
            f"[{auroc.low:.3f}, {auroc.high:.3f}]"
        )
    if auroc.low > 0.5:
        return Verdict("leaks", f"Leaks: AUROC {shown}, lies above 0.5.")
    if auroc.high < 0.5:
        said = f"Separates, with the sign turned: AUROC {shown}, {_TURNED}"
        return Verdict("reversed", said)
    alone = _ALONE if tried > 1 and found.low > 0.5 else ""
    limit = 0.5 + margin
    if auroc.high <= limit:
        reach = f"includes 0.5 and nothing above {limit:g}{_other_side(auroc, limit)}"
        said = f"No evidence of a leak: AUROC {shown}, {reach}.{alone}"
        return Verdict("no evidence", said)
    more = f"about {_enough(auroc, margin)} would decide, in place of {sum(auroc.n)}"
    reach = f"includes both 0.5 and values above {limit:g}"
    said = f"Underpowered: AUROC {shown}, {reach}; {more}.{alone}"
    return Verdict("underpowered", said)


def _other_side(auroc: Estimate, limit: float) -> str:
    """Say what scores with the sign turned may reach, where that would matter."""
    turned = 1 - auroc.low
    if turned <= limit:
        return ""
    return f"; with the sign turned, up to {turned:.3f} is not ruled out"


def _enough(auroc: Estimate, margin: float) -> int:
    """Return the n at which the interval is as narrow as the margin, to two digits.

    Such an interval cannot hold 0.5 and reach beyond the margin, whatever the truth.
    Widths are taken to fall with the root of n, in the present proportions.
    """
    return up_to_two_digits(sum(auroc.n) * ((auroc.high - auroc.low) / margin) ** 2)
