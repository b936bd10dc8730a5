"""Is each record's gradient clipped, before the mean?

A clipped batch mean is a warning where the noise is so large that the claim holds all
the same: the certificate counts how far one record moves it. Where clients are
protected, it is asked whether their moves were clipped.
"""

from collections.abc import Iterator

from privaudit.checks.lint.evidence import Evidence
from privaudit.checks.lint.finding import Found, Severity, rule
from privaudit.privacy.events import MechanismEvent, Release


@rule
def clip_per_record(evidence: Evidence) -> Found:
    """Is each record's gradient clipped, before the mean?"""
    causes = (*evidence.setting("mode"), "clip=batch")
    for events in _noised(evidence).values():
        loose = [event for event in events if not event.per_record]
        if loose:
            severity: Severity = "warning" if evidence.claim_holds else "error"
            yield severity, _sentence(evidence, loose[0], len(loose)), causes
    yield from _unclipped(evidence)
    for release in _contradicted(evidence):
        yield (
            "error",
            f"The record says that the {release} release clips every record, and the "
            "owner's trace notes the clipped mean of a batch.",
            causes,
        )


def _unclipped(evidence: Evidence) -> Found:
    """Say where noise hides something of no bounded length."""
    names = {event.release for _, event in evidence.events() if not event.bounded}
    for release in sorted(names):
        yield (
            "error",
            f"What the noise of the {release} release hides was not clipped: nothing "
            "bounds it, and no noise is enough.",
            evidence.setting("mode", "clip_norm"),
        )


def _noised(evidence: Evidence) -> dict[Release, list[MechanismEvent]]:
    """Return what hides records, by release: without noise nothing is promised."""
    by_release: dict[Release, list[MechanismEvent]] = {}
    for _, event in evidence.events():
        if event.noise_multiplier > 0 and event.unit == "record":
            by_release.setdefault(event.release, []).append(event)
    return by_release


def _sentence(evidence: Evidence, event: MechanismEvent, rounds: int) -> str:
    moves = event.sensitivity * event.clip_norm
    text = (
        f"The {event.release} release clips the mean over a batch to "
        f"{event.clip_norm:g}, not each record: one record moves it by up to "
        f"{moves:.3g} ({event.sensitivity:.3g} clip norms) in each of {rounds} rounds"
    )
    batch = getattr(evidence.trainer, "batch", None)
    if batch is None:
        return text + "."
    share = event.clip_norm / batch
    return text + (
        f"; the claimed formula counts {share:.3g} (clip norm over {batch} records)."
    )


def _contradicted(evidence: Evidence) -> Iterator[Release]:
    noted = {
        norm.release
        for index, _, notes in evidence.notes()
        for norm in notes.norms
        if norm.by == "batch"
        and (event := evidence.event_of(index, norm.release)) is not None
        and event.per_record
    }
    yield from sorted(noted)


@rule
def sensitivity_covers_unit(evidence: Evidence) -> Found:
    """Is the sensitivity as large as the clip, the unit and the adjacency allow?

    Of the mechanisms on one release in one round, that which is declared first: others
    are on something else beside it, such as a count, and only add to epsilon.
    """
    low: dict[str, list[int]] = {}
    for index, events in enumerate(evidence.rounds):
        first = {event.release: event for event in reversed(events)}
        for event in first.values():
            least = least_sensitivity(event)
            if event.noise_multiplier > 0 and event.sensitivity < least * (1 - 1e-9):
                low.setdefault(_too_low(event, least), []).append(index)
    for sentence, rounds in low.items():
        yield (
            "error",
            f"{sentence} (in {len(rounds)} rounds, first round {rounds[0]}).",
            evidence.setting("adjacency", "clip_norm"),
        )


def least_sensitivity(event: MechanismEvent) -> float:
    """Return how many clip norms one unit may move a release at the least.

    What is clipped lies in a ball: with or without it a sum moves by a radius, another
    in its place by a diameter. So it is with one record of a client or a batch that is
    clipped as a whole, whichever adjacency counts.
    """
    in_one_piece = event.unit == "record" and not event.per_record
    if event.release not in ("global", "upload") or event.bounded is False:
        return 0.0
    return 2.0 if event.adjacency == "replace-one" or in_one_piece else 1.0


def _too_low(event: MechanismEvent, least: float) -> str:
    clipped = "each" if event.per_record or event.unit == "client" else "not each"
    return (
        f"The {event.release} release declares that one {event.unit} "
        f"({event.adjacency}) moves it by {event.sensitivity:.3g} clip norms; {clipped} "
        f"{event.unit} is clipped by itself, so it may be {least:g}"
    )
