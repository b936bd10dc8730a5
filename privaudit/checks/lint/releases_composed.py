"""Does the epsilon cover all releases of one record?"""

from privaudit.checks.lint.evidence import Evidence
from privaudit.checks.lint.finding import Found, rule
from privaudit.core.tensors import digest
from privaudit.privacy.certificate import certify
from privaudit.privacy.events import Release


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
