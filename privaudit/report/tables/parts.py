"""What the parts of an audit say: sentences, and tables: epsilon of one run, single records."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

import numpy as np
from markupsafe import Markup

from privaudit.auditing.attack_result import AttackResult
from privaudit.auditing.audit import Audit
from privaudit.auditing.parts.closeness import CLOSENESS
from privaudit.auditing.parts.leakage_by_round import LEAKAGE_BY_ROUND, LeakageByRound
from privaudit.auditing.parts.one_run import BY_GRADIENT, BY_SECRET, ONE_RUN
from privaudit.auditing.parts.record_exposure import (
    RATE,
    RECORD_EXPOSURE,
    PrivacyLoss,
    PropertyExposure,
    RecordExposure,
    SharedExposure,
)
from privaudit.auditing.parts.server_model import SERVER_MODEL
from privaudit.auditing.parts.untrained_control import UNTRAINED_CONTROL
from privaudit.auditing.played_scenario import AuditPart, audit_parts
from privaudit.core.formatting import p_value, percent, small
from privaudit.datasets.canaries import CanaryKind
from privaudit.report.report_data import (
    ALPHA,
    ReportData,
    at_most_five,
    both_models,
    gain_of_rebuilding,
)
from privaudit.report.wording import (
    NOTHING,
    TableCell,
    TableRows,
    heading,
    interval,
    point,
    rate,
    setting,
)
from privaudit.statistics.comparisons import holm, p_above_chance
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.verdict import Sampling

_WHOLE = Markup('<span class="whole">{}</span>')


def bound_rows(data: ReportData) -> TableRows:
    """Return every lower bound of each run, the one named beforehand first."""
    return [
        (
            one.label,
            TableCell(bound.method, note="named beforehand" * (bound is found.bound)),
            f"{bound.value:.2f}",
            f"{bound.ceiling:.2f}",
            percent(bound.confidence),
            _WHOLE.format(small(bound.delta)),
            _WHOLE.format(f"{bound.n[0]} + {bound.n[1]}"),
            "any" if bound.can_refute else "of the assumed form; refutes nothing",
        )
        for one in data.runs
        if (found := one.audit.part(ONE_RUN))
        for bound in (found.bound, *found.others)
    ]


_CANARIES: Mapping[CanaryKind | Literal["candidates"], str] = {
    "candidates": "all candidates: real records as they are, and what is shown can "
    "befall them",
    "mislabelled": "real pictures with labels drawn wrong",
    "gradient": "crafted in gradient space: no real record is as strong",
    "drawn": "pictures of random patches of colour in a real record's class",
    "secret": "real pictures with made-up texts of random digits",
}
_SCORED_BY = {
    BY_SECRET: "likelihood of its secret beside others",
    BY_GRADIENT: "movement against its gradient",
}


def one_run_sentences(audit: Audit) -> list[str]:
    """Return the verdict on the claim, and what the canaries were."""
    one_run = audit.part(ONE_RUN)
    if one_run is None:
        return []
    return [
        one_run.verdict.sentence,
        f"Canaries: {_CANARIES[one_run.canaries]}. "
        f"Scored by: {_SCORED_BY.get(one_run.scored_by, one_run.scored_by)}.",
    ]


def card_paragraphs(audit: Audit) -> list[tuple[str, str]]:
    """Return headings and sentences of the parts that a run's card tells of.

    Epsilon from one run is none of them: it leads the card.
    """
    return [
        (part.title, heading(sentence))
        for part in audit_parts()
        if part.name != ONE_RUN.name
        for sentence in _sentences(part, audit) or ()
    ]


def part_remarks(audit: Audit) -> list[str]:
    """Return what the parts say in the terminal: sentences, or else their numbers."""
    remarks: list[str] = []
    for part in audit_parts():
        if (said := _sentences(part, audit)) is not None:
            remarks += said
        elif part.name in audit.parts:
            numbers = [f"{name} {value}" for name, value in _shown(part, audit)]
            remarks.append(f"{part.title}: {'; '.join(numbers)}")
    return remarks


def _sentences(part: AuditPart[Any], audit: Audit) -> list[str] | None:
    """Return what a part says; None where its numbers stand for themselves."""
    if part.says:
        found = part.name in audit.parts
        return part.says(audit.part(part), audit.run.sampling) if found else []
    return _SENTENCES[part.name](audit) if part.name in _SENTENCES else None


def part_tables(data: ReportData) -> dict[str, TableRows]:
    """Return the numbers of the parts without sentences here, or with both, by title."""
    return {
        part.title: [
            (one.label, name, value)
            for one in data.runs
            for name, value in _shown(part, one.audit)
        ]
        for part in audit_parts()
        if part.numbers or not (part.says or part.name in _SENTENCES)
        if any(a.parts.get(part.name) is not None for a in data.audits)
    }


def _shown(part: AuditPart[Any], audit: Audit) -> Iterator[tuple[str, str]]:
    """Yield names and texts of a part's numbers."""
    found = audit.part(part)
    yield from _leaves(part.numbers(found) if part.numbers and found else found)


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield names and texts of all numbers in a result."""
    if isinstance(value, AttackResult):
        value = value.auroc
    if isinstance(value, Mapping):
        below = dict(value)
    elif is_dataclass(value) and not isinstance(value, Estimate):
        below = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, list | tuple):
        below = dict(enumerate(value, start=1))
    else:
        yield name.strip().replace("_", " "), setting(value)
        return
    for key, entry in below.items():
        yield from _leaves(entry, f"{name} {key}")


def round_sentences(audit: Audit) -> list[str]:
    """Say of each attack when it leaked; nothing where single rounds were not asked."""
    return [
        _when(leakage, audit.run.sampling)
        for leakage in audit.part(LEAKAGE_BY_ROUND)
        if leakage.by_round
    ]


def corrected(leakage: LeakageByRound) -> dict[int, float]:
    """Return each round's p-value of an AUROC of 0.5, by Holm's method over rounds.

    Where none leaks, at most one audit in twenty has one of :data:`ALPHA` or less.
    """
    rounds = sorted(leakage.by_round)
    adjusted = holm([p_above_chance(leakage.by_round[index]) for index in rounds])
    return {index: float(p) for index, p in zip(rounds, adjusted, strict=True)}


def _when(leakage: LeakageByRound, sampling: Sampling) -> str:
    """Say when one attack leaked, and what the largest round is: no estimate."""
    count, worst = len(leakage.by_round), leakage.worst
    p_values = corrected(leakage)
    first = min((i for i, p in p_values.items() if p <= ALPHA), default=None)
    over = f"Holm-corrected over {count} rounds"
    if sampling == "unknown":
        when = "no round is named, as no coin is declared that chose the members"
    elif first is None:
        least = p_value(min(p_values.values()))
        when = f"no round can be named, {over} (smallest p {least})"
    else:
        when = (
            f"first above 0.5 in round {first}, {over} (p {p_value(p_values[first])})"
        )
    return (
        f"{leakage.attack}, {leakage.meaning}: {when}. The largest of {count} rounds, "
        f"{leakage.by_round[worst].value:.3f} in round {worst}, is a maximum, not an "
        "unbiased estimate."
    )


def rebuilding(audit: Audit) -> list[str]:
    """State what reconstruction reveals beyond the server's model, if both exist."""
    gain, found = gain_of_rebuilding(audit), both_models(audit)
    if gain is None or found is None:
        return []
    if audit.run.sampling == "unknown":
        learned = "of which no leak is said, as no coin is declared"
    elif not gain.excludes(0):
        learned = "no clear difference"
    else:
        more = "more" if gain.value > 0 else "less"
        learned = f"the reconstructed models leak {more}"
    clients, server = found
    return [
        f"On the server's own model, the average of all clients', “{clients.attack}” "
        f"has an AUROC of {point(server.auroc)} {interval(server.auroc)}; on their "
        f"reconstructed models {point(clients.auroc)} {interval(clients.auroc)}. "
        f"Paired difference on the same records: {point(gain, signed=True)} "
        f"{interval(gain)}, {learned}."
    ]


def control_sentences(audit: Audit) -> list[str]:
    """Say what the attack finds before any training; nothing where a coin was tossed."""
    control = audit.part(UNTRAINED_CONTROL)
    if control is None:
        return []
    differ = control.before.excludes(0.5)
    found = (
        "members and others differ before any training" if differ else "no difference"
    )
    return [
        f"No coin chose the members. On the model before training “{control.attack}” has "
        f"an AUROC of {point(control.before)} {interval(control.before)}: {found}"
        f"{'' if differ else ' is found there, which does not rule one out'}. Training "
        f"changes it by {point(control.change, signed=True)} {interval(control.change)}: "
        "that may be membership, or a difference that training sharpens."
    ]


_SENTENCES: Mapping[str, Callable[[Audit], list[str]]] = {
    CLOSENESS.name: lambda audit: [],  # has a section of its own
    RECORD_EXPOSURE.name: lambda audit: [],  # likewise
    SERVER_MODEL.name: rebuilding,
    LEAKAGE_BY_ROUND.name: round_sentences,
    UNTRAINED_CONTROL.name: control_sentences,
    ONE_RUN.name: lambda audit: one_run_sentences(audit)[:1],  # the verdict
}

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
    named = at_most_five((one.name, one.auroc) for one in clear)
    return [f"Exposure goes with, {over}: {named} (below 0.5: less exposed)."]


def _standing(one: PropertyExposure) -> str:
    """Say what may be said of a property."""
    if one.auroc is None:
        return "unresolved: too few records"
    finding = "not distinguishable from 0.5"
    if one.p_value <= ALPHA:
        finding = f"{'more' if one.auroc.value > 0.5 else 'less'} exposed"
    return f"{finding}, p {p_value(one.p_value)}"
