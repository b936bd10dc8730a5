"""Rules of accounting: claims, delta, copies, seeds, weights, releases, steps and sums."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import get_args

from privaudit.checks.lint.evidence import Evidence, Found, rule
from privaudit.core.formatting import epsilon
from privaudit.core.tensors import digest
from privaudit.privacy.certificate import CertifiedView, certify
from privaudit.privacy.events import MechanismEvent, Release
from privaudit.runs.ledger import known_by
from privaudit.tuning.prompts.private_training import PrivateTrainer


@rule
def claim_covers_certificate(evidence: Evidence) -> Found:
    """Is the claimed epsilon at least the certified one, in each view?"""
    claimed, certified = evidence.claim.epsilon, evidence.certified
    table = ", ".join(f"{v} {epsilon(c.stated)}" for v, c in certified.items())
    if claimed is None:
        yield (
            "note",
            f"Nobody claims an epsilon. {evidence.word.capitalize()} at delta "
            f"{evidence.claim.delta:g}: {table}. To check one: --claim "
            f"'epsilon=8 delta={evidence.claim.delta:g}'.",
        )
        return
    beyond = [v for v, c in certified.items() if c.stated and c.stated > claimed]
    nothing = [v for v, c in certified.items() if c.stated is None]
    summary = (
        f"Claimed is {claimed:g} at delta {evidence.claim.delta:g}; "
        f"{evidence.word}: {table}"
    )
    if not evidence.claim_holds:
        yield (
            "error",
            f"{summary}. No epsilon as low as the claimed one is {evidence.given} for "
            f"{', '.join(beyond) or 'any view'}.",
            evidence.setting("mode", "clip"),
        )
    elif claimed == 0 and evidence.is_declared and evidence.sends:
        yield (
            "error",
            f"{summary}. Clients sent what they trained, no mechanism is declared, and "
            "nothing shows that no record has any influence on it.",
        )
    elif beyond or nothing:
        more = [f"it does not hold for {', '.join(beyond)}"] if beyond else []
        if nothing:
            why = certified[nothing[0]].why.rstrip(".")
            more.append(f"nothing is {evidence.given} for {', '.join(nothing)} ({why})")
        holds = [view for view in certified if view not in (*beyond, *nothing)]
        yield (
            "warning",
            f"{summary}. The claim holds for {', '.join(holds)}; {'; '.join(more)}.",
            evidence.setting("mode", "noise_at"),
        )


@rule
def delta_below_one_record(evidence: Evidence) -> Found:
    """Is delta below one over the number of members?"""
    records, units = sum(len(prints) for prints in evidence.members.values()), "members"
    if evidence.unit == "client":
        records, units = len(evidence.members), "clients"
    delta = evidence.claim.delta
    is_private = evidence.claim.epsilon or evidence.is_noised
    if is_private and records * delta >= 1:
        yield (
            "error",
            f"Delta is {delta:g}, and there are {records} {units}: giving away "
            f"{records * delta:.1f} of them entirely, on average, would keep the "
            f"promise. Take a delta far below {1 / records:.2g}.",
            evidence.setting("delta"),
        )


@rule
def duplicate_records(evidence: Evidence) -> Found:
    """Is any record there more than once among members?"""
    owners: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for client, prints in evidence.members.items():
        for position, fingerprint in enumerate(prints):
            owners[fingerprint].append((client, position))
    copies = [where for where in owners.values() if len(where) > 1]
    if evidence.unit == "client":  # copies in one client are hidden together
        copies = [where for where in copies if len({client for client, _ in where}) > 1]
    if not copies or not evidence.claim.epsilon:
        return
    most = max(copies, key=len)
    inside = max(
        max(Counter(client for client, _ in where).values()) for where in copies
    )
    across = sum(len({client for client, _ in where}) > 1 for where in copies)
    first = ", ".join(f"member {position} of {client}" for client, position in most[:3])
    yield (
        "error",
        f"{len(copies)} records are trained on more than once, {across} of them by "
        f"several clients; the most frequent {len(most)} times ({first}), at most "
        f"{inside} times by one client. Epsilon is for one copy: {len(most)} copies "
        f"may lose up to {len(most)} times {evidence.claim.epsilon:g}, at a larger "
        "delta.",
        (f"dataset={evidence.dataset}",),
    )


@rule
def stored_seeds(evidence: Evidence) -> Found:
    """Do noise or members follow from a seed that can be guessed?"""
    known = known_by(evidence.coin_seed)
    repeats = evidence.is_noised and evidence.randomness == "seed"
    if known and not repeats:
        yield "warning", known, ("seed",)  # a secret one may be, and this a job's log
    if not evidence.is_noised:
        return
    if evidence.is_open:
        yield (
            "error",
            "Others than its owner may enter the run's folder, which holds the ledger, "
            "the trace and private states. Take their rights away (chmod 700).",
            ("folder=open to others",),
        )
    if not repeats:
        return
    yield (
        "error",
        "Repeatable, not private: all noise follows from the seed in run.json, and "
        "whoever guesses it subtracts the noise from what was sent. Keep the run to "
        "yourself; train what others will see without --seed, or with --randomness "
        f"system. {known}".strip(),
        (f"seed={evidence.seed}", "randomness=seed"),
    )


def event_unit(evidence: Evidence) -> float:
    """Return what 1 in an upload is in the units of the mechanisms' clip norms."""
    if isinstance(evidence.trainer, PrivateTrainer):
        return evidence.trainer.event_unit(evidence.task)
    return 1.0


@rule
def weights_by_size(evidence: Evidence) -> Found:
    """Do aggregation weights tell how many records there are?

    Look at the single numbers that clients send: are they sizes, up to a factor?
    """
    if not evidence.claim.epsilon:
        return
    sizes = {client: len(prints) for client, prints in evidence.members.items()}
    for name, sent in _numbers(evidence).items():
        pairs = [(sizes[c], v) for c, values in sent.items() for v in values if v != 0]
        shares = {round(value / size, 6) for size, value in pairs if size}
        if len({value for _, value in pairs}) > 1 and len(shares) == 1:
            (share,) = shares
            yield (
                "error",
                f"Clients send {name!r} beside their updates: {share:g} times the "
                f"number of their members ({min(pairs)[0]} to {max(pairs)[0]}), "
                "without noise. One record more or less shows in it exactly.",
                (f"sent={name}",),
            )


def _numbers(evidence: Evidence) -> dict[str, dict[str, list[float]]]:
    """Return the single numbers in uploads, by name and client."""
    numbers: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for messages in evidence.uploads.values():
        for message in messages:
            for name, tensor in message.tensors.items():
                if tensor.numel() == 1:
                    numbers[name][message.sender].append(float(tensor))
    return numbers


@rule
def releases_composed(evidence: Evidence) -> Found:
    """Are the local and the global release of a record composed?"""
    if not evidence.is_noised:
        return
    yield from _unnamed_private_part(evidence)
    yield from _claimed_apart(evidence)


def _unnamed_private_part(evidence: Evidence) -> Found:
    """Say where personal models hold more than was broadcast, and no record of it."""
    shared = {digest(t) for b in evidence.broadcasts.values() for t in b.values()}
    given = [m for m in evidence.messages if m.kind == "release"]
    personal = [m for m in given if {digest(t) for t in m.tensors.values()} - shared]
    bare = [
        index
        for index, events in enumerate(evidence.rounds)
        if not any(event.release != "global" for event in events)
    ]
    if personal and bare:
        yield (
            "error",
            f"{len(personal)} of {len(given)} released models hold more than what was "
            f"broadcast, and {len(bare)} of {len(evidence.rounds)} rounds name no "
            "mechanism for it: the local release is not in the epsilon.",
            evidence.setting("mode"),
        )


def _claimed_apart(evidence: Evidence) -> Found:
    """Say where the claim covers less than all releases, composed."""
    claimed = evidence.claim.epsilon
    names: list[Release] = sorted({e.release for _, e in evidence.events()})
    both = certify(evidence.rounds, "released", evidence.claim.delta).epsilon
    if len(names) < 2 or both is None or claimed is None or claimed >= both:
        return
    alone = {
        name: certify(
            [[e for e in events if e.release == name] for events in evidence.rounds],
            "released",
            evidence.claim.delta,
        )
        for name in names
    }
    parts = ", ".join(f"{name} {proved}" for name, proved in alone.items())
    yield (
        "error",
        f"One record enters {len(names)} releases of a round. Each by itself is "
        f"{evidence.word} (view released) at epsilon {parts}, composed at {both:.3g}; "
        f"claimed is {claimed:.3g}.",
        evidence.setting("mode"),
    )


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
