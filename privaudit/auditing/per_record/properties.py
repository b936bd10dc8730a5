"""What exposed records have in common: their class, rarity, isolation, or length."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from privaudit.datasets.dialogues import ANSWER, PADDING
from privaudit.datasets.records import Records
from privaudit.statistics.comparisons import holm, p_above_chance
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.roc import pooled_auroc, sign_turned

RARE, ISOLATED, LONG = "rare class", "isolated", "long text"
CLASS = "class "  # in front of a class's number
FEWEST = 10  # records with a property, and as many without: fewer say nothing
_ROWS = 1024  # compared with all others at once


@dataclass(frozen=True)
class PropertyExposure:
    """Whether records with a property are more exposed than others of their client.

    Attributes:
        name: "class cat", "rare class", "isolated" or "long text".
        n: Records with it, and without, in clients that have both.
        auroc: The chance that one with it is more exposed than one without, within a
            client: above 0.5 where the property goes with exposure; None where there
            are too few.
        p_value: Two-sided, of 0.5, by Holm's method over all properties with enough.
    """

    name: str
    n: tuple[int, int]
    auroc: Estimate | None
    p_value: float = 1.0


def numbers_of(records: Records) -> dict[str, Float[np.ndarray, " records"]]:
    """Return what is measured of one client's candidates, by property: more is more so.

    "isolated" is the distance to the client's next record, 1 - cosine of what the frozen
    model makes of both; "long text" counts an answer's tokens, or a text's.
    """
    found = {}
    features = torch.nn.functional.normalize(records.features.float(), dim=-1)
    if len(records) > 1 and features.abs().amax() > 0:
        found[ISOLATED] = 1 - _nearest(features)
    if records.words is not None:
        kinds = records.words.kinds
        is_counted = kinds == ANSWER if (kinds == ANSWER).any() else kinds != PADDING
        found[LONG] = is_counted.sum(dim=-1).double().numpy()
    return found


def _nearest(features: torch.Tensor) -> Float[np.ndarray, " records"]:
    """Return each record's cosine with the one most like it."""
    best = []
    for start in range(0, len(features), _ROWS):
        cosines = features[start : start + _ROWS] @ features.T
        rows = torch.arange(len(cosines))
        cosines[rows, start + rows] = -1
        best.append(cosines.amax(dim=1))
    return torch.cat(best).double().numpy()


def properties_of(
    labels: Int[np.ndarray, " records"],
    numbers: Mapping[str, Float[np.ndarray, " records"]],
) -> dict[str, Bool[np.ndarray, " records"]]:
    """Return which of one client's records have which property.

    A number is one where it lies above the client's median; a class is rare where fewer
    of the client's records are of it than of the median record's class.
    """
    classes, place, counts = np.unique(labels, return_inverse=True, return_counts=True)
    found = {}
    if len(classes) > 1:
        found = {f"{CLASS}{label}": labels == label for label in classes}
        found[RARE] = _above_median(-counts[place].astype(np.float64))
    return found | {name: _above_median(of) for name, of in numbers.items()}


def _above_median(numbers: Float[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    return numbers > np.median(numbers)


def compare_properties(
    clients: Sequence[tuple[Float[np.ndarray, " _"], Mapping[str, np.ndarray]]],
    classes: Sequence[str] = (),
) -> tuple[PropertyExposure, ...]:
    """Return each property's part in exposure, corrected for their number.

    Of each client: how exposed its records are, and which have which property.
    """
    names = sorted({name for _, properties in clients for name in properties}, key=_key)
    found = [_compare(name, clients) for name in names]
    tested = [one for one in found if one.auroc is not None]
    sides = [(one.auroc, sign_turned(one.auroc)) for one in tested if one.auroc]
    adjusted = holm([min(map(p_above_chance, both)) for both in sides])
    p_values = {one.name: float(p) for one, p in zip(tested, adjusted, strict=True)}
    return tuple(
        replace(
            one, name=_named(one.name, classes), p_value=p_values.get(one.name, 1.0)
        )
        for one in found
    )


def _named(name: str, classes: Sequence[str]) -> str:
    is_class, number, _ = _key(name)
    return f"{CLASS}{classes[number]}" if is_class and number < len(classes) else name


def _key(name: str) -> tuple[bool, int, str]:
    """Sort classes by number, and behind all else."""
    is_class = name.startswith(CLASS)
    return is_class, int(name.removeprefix(CLASS)) if is_class else 0, name


def _compare(
    name: str,
    clients: Sequence[tuple[Float[np.ndarray, " _"], Mapping[str, np.ndarray]]],
) -> PropertyExposure:
    groups = [
        (exposed[has[name]], exposed[~has[name]])
        for exposed, has in clients
        if name in has and has[name].any() and not has[name].all()
    ]
    having, lacking = (sum(len(group[side]) for group in groups) for side in (0, 1))
    enough = min(having, lacking) >= FEWEST
    return PropertyExposure(
        name, (having, lacking), pooled_auroc(groups) if enough else None
    )
