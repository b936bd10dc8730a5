"""Rules of clipping: each record before the mean, and every norm within its bound.

A clipped batch mean is a warning where the noise is so large that the claim holds all
the same: the certificate counts how far one record moves it. Where clients are
protected, it is asked whether their moves were clipped.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from scipy.stats import chi2
from torch import Tensor

from privaudit.checks.lint.accounting import event_unit
from privaudit.checks.lint.evidence import Evidence, Found, Severity, rule
from privaudit.checks.lint.recorded_uploads import (
    clips_later,
    is_recorded,
    recorded_uploads,
)
from privaudit.federation.transcript import Message
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
    yield from _moving(evidence)
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


def _moving(evidence: Evidence) -> Found:
    """Say where a clip norm moves, and no noise covers what it follows from."""
    alone: dict[str, list[float]] = defaultdict(list)
    for events in evidence.rounds:
        names = [event.release for event in events]
        for event in events:
            if event.noise_multiplier > 0 and names.count(event.release) == 1:
                alone[event.release].append(event.clip_norm)
    for release, norms in alone.items():
        if min(norms) < max(norms):
            yield (
                "warning",
                f"The clip norm of the {release} release moves from {norms[0]:.3g} to "
                f"{norms[-1]:.3g}, and no noise is declared of what it follows from. "
                "Unless it was fixed beforehand, that is a release of its own.",
                evidence.setting("clip_norm"),
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


LEVEL = 1e-6
"""Chance that noise makes an update of the clip norm too long, in a whole run."""
ROUNDING = 1e-4  # relative: sums and products in float32


@dataclass(frozen=True)
class _Length:
    """A norm, and what it may be, in the same units; where it was recorded."""

    norm: float
    bound: float
    what: str
    where: str


@rule
def clipped_norms(evidence: Evidence) -> Found:
    """Is every recorded norm within the bound?"""
    if not evidence.is_noised or evidence.engines:
        return
    grouped = defaultdict(list)
    for length in (*_noted(evidence), *_sent(evidence), *_noised_lengths(evidence)):
        grouped[length.what].append(length)
    for what, lengths in grouped.items():
        beyond = [one for one in lengths if one.norm > one.bound * (1 + ROUNDING)]
        if beyond:
            worst = max(beyond, key=lambda length: length.norm - length.bound)
            yield (
                "error",
                f"{len(beyond)} of {len(lengths)} {what} are longer than their bound: "
                f"the worst is {worst.norm:.4g} where {worst.bound:.4g} is the most "
                f"({worst.where}).",
                evidence.setting("mode", "clip_norm"),
            )
    if not grouped:
        yield (
            "note",
            "Whether anything was clipped cannot be determined: the owner's trace holds "
            "no norms, and every upload carries noise.",
        )


def _noted(evidence: Evidence) -> Iterator[_Length]:
    """Yield the largest norm after clipping of each client's round."""
    for index, client, notes in evidence.notes():
        for norm in notes.norms:
            event = evidence.event_of(index, norm.release)
            if event is not None:
                what = f"clipped {norm.release} gradients"
                where = f"round {index}, {client}"
                yield _Length(norm.largest, event.clip_norm, what, where)


def _sent(evidence: Evidence) -> Iterator[_Length]:
    """Yield the uploads' norms, where the server adds the noise behind them."""
    unit = event_unit(evidence)
    for index, messages in evidence.uploads.items():
        event = evidence.event_of(index, "global")
        if event is None or event.noise_at != "server" or clips_later(evidence):
            continue
        if evidence.is_declared and not is_recorded(evidence):
            continue  # what its uploads mean is its trainer's to say: that is tried out
        if is_recorded(evidence):
            yield from _moved(evidence, index, event.clip_norm)
            continue
        for message in messages:
            records = _records(evidence, index, message.sender)
            bound = event.clip_norm * (records if event.per_record else 1)
            for name, tensor in _moves(evidence, message).items():
                where = f"{name} of {message.sender}, round {index}"
                norm = unit * float(tensor.double().norm())
                yield _Length(norm, bound, "uploads without noise", where)


def _moved(evidence: Evidence, index: int, bound: float) -> Iterator[_Length]:
    """Yield how far clients that others trained moved, all tensors together."""
    for upload in recorded_uploads(evidence):
        if upload.index == index:
            where = f"{upload.sender}, round {index}"
            most = bound + upload.rounding
            yield _Length(upload.norm, most, "uploads without noise", where)


def _noised_lengths(evidence: Evidence) -> Iterator[_Length]:
    """Yield how far clients moved that clip, and add noise to what they send.

    By the triangle no farther than the clip norm and the noise, and noise so long is as
    rare as LEVEL among all of them.
    """
    lengths = [
        (upload, event)
        for upload in recorded_uploads(evidence)
        for event in (evidence.event_of(upload.index, "upload"),)
        if event and event.unit == "client" and event.noise_at == "client"
    ]
    for upload, event in lengths:
        values = sum(move.values for move in upload.moves.values())
        noise = math.sqrt(chi2.isf(LEVEL / len(lengths), max(values, 1)))
        most = event.clip_norm * (1 + event.noise_multiplier * noise)
        where = f"{upload.sender}, round {upload.index}"
        yield _Length(upload.norm, most, "uploads with noise", where)


def _moves(evidence: Evidence, message: Message) -> dict[str, Tensor]:
    """Return what was sent, less what had been received under the same name."""
    received = evidence.broadcasts.get(message.round, {})
    return {
        name: tensor - received[name] if name in received else tensor
        for name, tensor in message.tensors.items()
        if tensor.numel() > 1  # a single number is a weight
    }


def _records(evidence: Evidence, index: int, client: str) -> int:
    """Return how many records an upload is a sum over: of its batch, or at the most."""
    notes = evidence.trace[index].get(client) if evidence.trace is not None else None
    if notes is not None and notes.batches:
        return max(len(batch) for batch in notes.batches)
    return len(evidence.members[client])
