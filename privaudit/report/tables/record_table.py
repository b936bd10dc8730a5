"""Single records as a page shows them: how many fall to several attacks, and which."""

from dataclasses import dataclass

import numpy as np

from privaudit.auditing.audit import Audit
from privaudit.auditing.parts.record_exposure import (
    RATE,
    RECORD_EXPOSURE,
    PrivacyLoss,
    RecordExposure,
)
from privaudit.auditing.per_record.properties import PropertyExposure
from privaudit.auditing.per_record.shared_exposure import SharedExposure
from privaudit.core.formatting import p_value
from privaudit.report.report_data import ReportData
from privaudit.report.tables.other_attacks import ALPHA
from privaudit.report.wording import (
    NOTHING,
    TableCell,
    TableRows,
    interval,
    point,
    rate,
)
from privaudit.statistics.estimate import Estimate

SHOWN = 20  # of the most exposed records, on a page that shows records
NO_GUARANTEE = "That is what this signal shows of a record, and no guarantee."


@dataclass(frozen=True)
class NamedRecord:
    """One of the most exposed records, for the data's owner alone."""

    client: str
    record: int
    member: str
    seen: str
    loss: str


def record_sentences(audit: Audit) -> list[str]:
    """Say how single records fare; nothing where that was not asked."""
    found = audit.part(RECORD_EXPOSURE)
    if found is None:
        return []
    sentences = [_shared(found.shared)]
    if found.loss is not None:
        sentences.append(_losses(found.loss))
    return [*sentences, *_common(found)]


def level_rows(data: ReportData) -> TableRows:
    """Return the shares of records that at least so many attacks point at."""
    return [
        (
            one.label,
            f"{level.attacks} of {len(exposure.shared.levels)}",
            TableCell.of(level.members),
            TableCell.of(level.others),
            TableCell.of(level.beyond, signed=True),
            f"{level.independent:.2g}",
        )
        for one in data.runs
        if (exposure := one.audit.part(RECORD_EXPOSURE)) is not None
        for level in exposure.shared.levels
    ]


def property_rows(data: ReportData) -> TableRows:
    """Return what may go with exposure, also properties of too few records."""
    return [
        (
            one.label,
            found.name,
            f"{found.n[0]} + {found.n[1]}",
            TableCell.of(found.auroc) if found.auroc else NOTHING,
            _standing(found),
        )
        for one in data.runs
        if (exposure := one.audit.part(RECORD_EXPOSURE)) is not None
        for found in exposure.properties
    ]


def most_exposed_of(audit: Audit) -> list[NamedRecord]:
    """Return the most exposed records by their loss; without it, by how many see them."""
    found = audit.part(RECORD_EXPOSURE)
    if found is None:
        return []
    table, attacks = found.records, len(found.shared.levels)
    keys = (
        table.seen if found.loss is None else np.nan_to_num(table.losses, nan=-np.inf)
    )
    order = np.argsort(-np.asarray(keys, np.float64), kind="stable")[:SHOWN].tolist()
    return [
        NamedRecord(
            table.client[n],
            table.record[n],
            "member" if table.is_member[n] else "not a member",
            f"{table.seen[n]} of {attacks}",
            _loss(table.loss[n], table.low[n], table.high[n]),
        )
        for n in order
    ]


def _loss(*numbers: float | None) -> str:
    """Return a loss with its interval; nothing where there is none."""
    known = [f"{number:.2f}" for number in numbers if number is not None]
    return f"{known[0]} [{known[1]}, {known[2]}]" if len(known) == 3 else ""


def tested_properties(data: ReportData) -> list[tuple[str, dict[str, Estimate]]]:
    """Return the properties with enough records, by run."""
    found = [(one.label, one.audit.part(RECORD_EXPOSURE)) for one in data.runs]
    return [
        (label, {p.name: p.auroc for p in part.properties if p.auroc} if part else {})
        for label, part in found
    ]


def _shared(shared: SharedExposure) -> str:
    every, most = shared.all, shared.most
    return (
        f"Among the likeliest {shared.top} % of their client by all {every.attacks} "
        f"attacks are {rate(every.members)} of {every.members.n[0]} members and "
        f"{rate(every.others)} of {every.others.n[0]} others; by {most.attacks} or more, "
        f"{rate(most.members)} and {rate(most.others)}, a difference of "
        f"{point(most.beyond, signed=True)} {interval(most.beyond)}."
    )


def _losses(loss: PrivacyLoss) -> str:
    text = (
        f"By {loss.shadows} shadow models, {loss.exposed} of {loss.n} candidates would "
        f"lose something by being trained on (false discovery rate {100 * RATE:.0f} %)."
    )
    if loss.worst is not None and loss.rest is not None:
        text += (
            " The tenth that one half of these models ranks highest loses "
            f"{point(loss.worst)} {interval(loss.worst)} deviations by the other half, "
            f"the rest {point(loss.rest)} {interval(loss.rest)}."
        )
    if loss.members is not None and loss.others is not None:
        text += (
            f" Members lose {point(loss.members)} {interval(loss.members)} on average, "
            f"others {point(loss.others)} {interval(loss.others)}: shadow models may "
            "start from broadcasts that hold what members did, so the two may differ."
        )
    return f"{text} {NO_GUARANTEE}"


def _common(found: RecordExposure) -> list[str]:
    """Say what goes with exposure, and over how many properties that is corrected."""
    tested = [one for one in found.properties if one.auroc is not None]
    if not tested:
        return []
    clear = [one for one in tested if one.p_value <= ALPHA]
    over = (
        f"Holm-corrected over {len(tested)} propert{'ies' if len(tested) > 1 else 'y'}"
    )
    if not clear:
        return [f"No property goes with exposure, {over}."]
    named = ", ".join(_property_text(one) for one in clear[:5])
    more = f" and {len(clear) - 5} more" if len(clear) > 5 else ""
    return [f"Exposure goes with, {over}: {named}{more} (below 0.5: less exposed)."]


def _property_text(one: PropertyExposure) -> str:
    assert one.auroc is not None
    return f"{one.name} {point(one.auroc)} {interval(one.auroc)}"


def _standing(one: PropertyExposure) -> str:
    """Say what may be said of a property."""
    if one.auroc is None:
        return "unresolved: too few records"
    finding = "not distinguishable from 0.5"
    if one.p_value <= ALPHA:
        finding = f"{'more' if one.auroc.value > 0.5 else 'less'} exposed"
    return f"{finding}, p {p_value(one.p_value)}"
