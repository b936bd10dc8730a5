"""Does the accountant count every release that was made?"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import get_args

from privaudit.checks.lint.evidence import Evidence
from privaudit.checks.lint.finding import Found, rule
from privaudit.privacy.certificate import CertifiedView, certify
from privaudit.privacy.events import MechanismEvent

TOLERANCE = 1e-3  # relative: an accountant's own, between versions


@rule
def steps_counted(evidence: Evidence) -> Found:
    """Does the accountant count every release of the transcript?"""
    causes = evidence.setting("mode", "steps")
    if not evidence.is_noised:
        return
    sent = evidence.participants
    bare = [index for index in sorted(sent) if not _shared(evidence, index)]
    if bare:
        yield (
            "error",
            f"Clients sent updates in {len(sent)} rounds, and the record names a "
            f"mechanism for {len(sent) - len(bare)} of them (first without: round "
            f"{bare[0]}).",
            causes,
        )
    yield from _parties(evidence)
    yield from _more_than_counted(evidence, causes)
    for sentence in _too_low(evidence):
        yield "error", sentence, causes


def _shared(evidence: Evidence, index: int) -> Sequence[MechanismEvent]:
    """Return the mechanisms of what was sent in a round."""
    events = evidence.rounds[index] if index < len(evidence.rounds) else ()
    return [event for event in events if event.release != "local"]


def _parties(evidence: Evidence) -> Found:
    """Say where mechanisms count on more clients than sent something."""
    for index, clients in evidence.participants.items():
        for event in _shared(evidence, index):
            if event.parties != len(clients):
                yield (
                    "error",
                    f"Round {index} counts on the noise or the shares of "
                    f"{event.parties} clients, and {len(clients)} sent an update.",
                    evidence.setting("noise_at"),
                )
                return


def _more_than_counted(evidence: Evidence, causes: tuple[str, ...]) -> Found:
    """Say where the trace notes more batches or draws than the steps on record."""
    for index, client, notes in evidence.notes():
        for event in evidence.rounds[index] if index < len(evidence.rounds) else ():
            draws = sum(drawn.release == event.release for drawn in notes.noise)
            most = max(draws, len(notes.batches) if event.noise_multiplier > 0 else 0)
            if most > event.steps:
                yield (
                    "error",
                    f"Round {index} of {client} took {len(notes.batches)} batches and "
                    f"{draws} draws of noise for the {event.release} release, and the "
                    f"accountant counts {event.steps} steps.",
                    causes,
                )
                return


def _too_low(evidence: Evidence) -> Iterator[str]:
    """Yield what certificates say less than the mechanisms on record give."""
    for view in get_args(CertifiedView):
        stored = evidence.certified.get(view)
        if stored is None or stored.stated is None or not any(evidence.rounds):
            continue
        again = certify(evidence.rounds, view, stored.delta)
        if again.epsilon is None or again.epsilon > stored.stated * (1 + TOLERANCE):
            yield (
                f"The certificate for the view {view} says {stored.stated:.3g} "
                f"({stored.mechanism}), and the mechanisms on record give {again} "
                f"({again.mechanism})."
            )


@rule
def secure_sum(evidence: Evidence) -> Found:
    """Is every sum that the server learned over two clients or more?"""
    for index, sums in evidence.sums.items():
        for _, voices in sums:
            if len(set(voices)) < max(2, len(voices)):
                yield (
                    "error",
                    f"The sum that the server learned in round {index} is over "
                    f"{len(voices)} updates of {len(set(voices))} clients: what one "
                    "client sent shows in it.",
                    evidence.setting("noise_at"),
                )
                return
        for (_, one), (_, other) in combinations(sums, 2):
            if len(set(one) ^ set(other)) == 1:
                yield (
                    "error",
                    f"The server learned two sums in round {index} that differ in one "
                    "client: their difference is what that one sent.",
                    evidence.setting("noise_at"),
                )
                return
