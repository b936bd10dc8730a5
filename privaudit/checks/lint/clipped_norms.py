"""Is every recorded norm within the bound?"""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from scipy.stats import chi2
from torch import Tensor

from privaudit.checks.lint.evidence import Evidence
from privaudit.checks.lint.finding import Found, rule
from privaudit.checks.lint.recorded_uploads import (
    clips_later,
    is_recorded,
    recorded_uploads,
)
from privaudit.checks.lint.small_rules import event_unit
from privaudit.federated.transcripts.transcript import Message

LEVEL = 1e-6
"""Chance that noise makes an update of the clip norm too long, in a whole run."""
ROUNDING = 1e-4  # relative: sums and products in float32


@dataclass(frozen=True)
class _Length:
    """A norm, and what it may be, in the same units; where it was recorded."""

    norm: float
    bound: float
    what: str
    place: str

    @property
    def is_beyond(self) -> bool:
        return self.norm > self.bound * (1 + ROUNDING)


@rule
def clipped_norms(evidence: Evidence) -> Found:
    """Is every recorded norm within the bound?"""
    if not evidence.is_noised:
        return
    grouped = defaultdict(list)
    for length in (*_noted(evidence), *_sent(evidence), *_noised_lengths(evidence)):
        grouped[length.what].append(length)
    for what, lengths in grouped.items():
        beyond = [length for length in lengths if length.is_beyond]
        if beyond:
            worst = max(beyond, key=lambda length: length.norm - length.bound)
            yield (
                "error",
                f"{len(beyond)} of {len(lengths)} {what} are longer than their bound: "
                f"the worst is {worst.norm:.4g} where {worst.bound:.4g} is the most "
                f"({worst.place}).",
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
                place = f"round {index}, {client}"
                yield _Length(norm.largest, event.clip_norm, what, place)


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
                place = f"{name} of {message.sender}, round {index}"
                norm = unit * float(tensor.double().norm())
                yield _Length(norm, bound, "uploads without noise", place)


def _moved(evidence: Evidence, index: int, bound: float) -> Iterator[_Length]:
    """Yield how far clients that others trained moved, all tensors together."""
    for upload in recorded_uploads(evidence):
        if upload.index == index:
            place = f"{upload.sender}, round {index}"
            most = bound + upload.rounding
            yield _Length(upload.norm, most, "uploads without noise", place)


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
        place = f"{upload.sender}, round {upload.index}"
        yield _Length(upload.norm, most, "uploads with noise", place)


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
