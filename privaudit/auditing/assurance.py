"""What stands behind a verdict: a proof, nothing, or a claim that was refuted.

An attack that finds nothing says nothing about the next attack, so "no leak found" is
good news only where a proof covers what no attack has tried.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from privaudit.privacy.certificate import REPEATABLE, is_repeatable
from privaudit.statistics.verdict import Sampling

_ROUNDING = 1e-9  # relative: an accountant's last digits


@dataclass(frozen=True)
class Assurance:
    """What is proved against an adversary, beside what is claimed.

    Attributes:
        kind: "proved": an epsilon, and no larger than the claimed one, if any is.
            "refuted": canaries show more than is claimed, or than is certified.
            "unproved": neither.
        short: What is missing, in two or three words; nothing where it is proved.
        sentence: The same with its numbers; nothing where it is proved.
        sampling: How members were chosen: no sentence says more where no coin did.
    """

    kind: Literal["proved", "unproved", "refuted"]
    short: str = ""
    sentence: str = ""
    sampling: Sampling = "coin"


def assure(
    claimed: float | None, certificate: Mapping[str, Any], *, refuted: bool
) -> Assurance:
    """Return what stands behind a run's verdict in one view.

    Args:
        claimed: Epsilon by the method's own formula; None where it claims none.
        certificate: Of the view, as in privacy.json.
        refuted: Whether canaries refuted the claim or raised an alarm.

    Example:
        >>> assure(8.0, {"epsilon": None}, refuted=False).short
        'claim not proved'
    """
    epsilon = certificate["epsilon"]
    if refuted:
        said = "Canaries show a larger epsilon than is claimed or certified."
        return Assurance("refuted", "claim refuted", said)
    if epsilon is None and claimed is None:
        said = "Nothing is claimed and nothing is proved: another attack may find more."
        return Assurance("unproved", "nothing proved", said)
    declared = certificate.get("declared")
    if claimed is not None and (epsilon is None or epsilon > claimed * (1 + _ROUNDING)):
        proved = "nothing" if epsilon is None else f"{epsilon:.3g}"
        if declared is not None:
            proved += f", declared is {declared:.3g}"
        said = (
            f"The claimed epsilon of {claimed:.3g} is not proved against this "
            f"adversary: proved is {proved}. Another attack may find more."
        )
        return Assurance("unproved", "claim not proved", said)
    if is_repeatable(certificate):
        said = (
            "The noise follows from the run's seed, and whoever guesses that removes "
            f"it: {REPEATABLE}."
        )
        return Assurance("unproved", "not private", said)
    return Assurance("proved")


def covering(
    certificate: dict[str, Any],
    unit: Literal["record", "client"],
    group: Int[np.ndarray, " records"] | None = None,
) -> dict[str, Any]:
    """Return a certificate as far as it covers what is asked about.

    One for a record covers no client, who has many, and no group of several records
    that share a coin; one for a client, its records and their groups too.
    """
    shared = group is not None and len(np.unique(group)) < len(group)
    if certificate["unit"] == "client" or (unit == "record" and not shared):
        return certificate
    whole = "a client" if unit == "client" else "a group that shares a coin"
    said = f"What is proved is for one record, and {whole} has many."
    proved = certificate["epsilon"] is not None
    why = f"{said} {certificate['why']}" if proved else certificate["why"]
    covered = {n: v for n, v in certificate.items() if n != "declared"}
    return {**covered, "epsilon": None, "why": why}
