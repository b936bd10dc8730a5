"""What a card shows by itself: checked, recomputed from it, and taken on trust.

No run is needed, no network and no torch. Certified epsilons are accounted for again from
the mechanisms by dp-accounting alone, whichever accountant the card names; they agree
within :data:`privaudit.privacy.accountant.AGREEMENT`.
"""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privaudit.core.errors import PrivauditError
from privaudit.core.formatting import epsilon as epsilon_text
from privaudit.core.storage import file_hash, read_bytes
from privaudit.evaluation.card import Card, Certified, SignedCard
from privaudit.privacy.accountant import AGREEMENT
from privaudit.privacy.certificate import CertifiedView, certify, events_by_round
from privaudit.privacy.events import MechanismEvent
from privaudit.report.export.export import CODE, code_digest

# What others gave for the file lies beside it.
TOKENS = {".tsr": "RFC 3161 time stamp", ".sigstore.json": "Sigstore bundle"}

TRUE_SCORES = (
    "that its numbers are those of scores and coins, which stay with the owner"
)
COUNTED = "that every audit that was made is counted"


@dataclass(frozen=True)
class Mismatch:
    """One entry in which a card and its run, or the card and itself, differ.

    Attributes:
        entry: In the card, keys and positions joined by slashes.
        why: What stands in the one and in the other, or what is wrong with the run.
    """

    entry: str
    why: str

    def __str__(self) -> str:
        return f"{self.entry}: {self.why}"


@dataclass(frozen=True)
class CardCheck:
    """What became of a card that was checked by itself.

    Attributes:
        checked: Held against keys, files and the schema.
        recomputed: Followed from other values of the card.
        mismatches: What does not hold; empty if all does.
    """

    card: SignedCard
    checked: tuple[str, ...]
    recomputed: tuple[str, ...]
    trusted: tuple[str, ...]
    mismatches: tuple[Mismatch, ...]

    @property
    def matches(self) -> bool:
        """Whether all that could be checked holds."""
        return not self.mismatches


def check_card(
    signed: SignedCard, keys: Sequence[str] = (), files: Sequence[Path] = ()
) -> CardCheck:
    """Check a card by itself.

    Args:
        signed: The card; reading it has checked schema, signatures and verdicts.
        keys: Public keys that must all have signed it; by default one that is trusted.
        files: What a subject of the card must be.

    Raises:
        TrustError: Another key signed.
        MissingFileError: A file is not there.
    """
    columns = ("checked", "recomputed", "trusted", "mismatches")
    found: dict[str, list[Any]] = {column: [] for column in columns}
    for signer in signed.signers(keys):
        found["checked"].append(f"signature of {signer}")
    found["checked"].append("schema of version 3: no field is missing or unknown")
    for kind, said in (*_subjects(signed, files), *_tokens(signed.place)):
        found[kind].append(said)
    card = signed.card
    found["recomputed"] += _verdicts(card)
    for view, stated in card.privacy.certified.items():
        kind, said = _certified(card, view, stated)
        found[kind].append(said)
    found["recomputed"].append(
        f"epsilon {card.ledger.epsilon:.3g} of the {card.ledger.numbers} numbers that all "
        "cards of the ledger say"
    )
    found["trusted"] += _on_trust(card)
    return CardCheck(signed, **{name: tuple(lines) for name, lines in found.items()})


def _subjects(
    signed: SignedCard, files: Sequence[Path]
) -> Iterator[tuple[str, str | Mismatch]]:
    """Yield what files and the code here show of a card's subjects."""
    names = {
        digest: one.name
        for one in signed.statement.subject
        for digest in one.digest.values()
    }
    for path in files:
        name = names.pop(file_hash(path), None)
        if name is None:
            why = f"{path} is none of them: it has another SHA-256"
            yield "mismatches", Mismatch("subject", why)
        else:
            yield "checked", f"{path} is its subject {name}"
    if names.pop(code_digest(), None):
        yield "checked", f"the code that made it is the one here ({CODE})"
    for name in names.values():
        yield "trusted", f"the digest of its subject {name}: no such file was named"


def _tokens(place: Path) -> Iterator[tuple[str, str | Mismatch]]:
    """Yield what was given for the card's file, whose own signatures others check."""
    for ending, kind in TOKENS.items():
        token = place.with_name(place.name + ending)
        if not token.exists():
            continue
        content, digest = read_bytes(token), hashlib.sha256(read_bytes(place)).digest()
        if digest in content or base64.b64encode(digest) in content:
            yield "checked", f"{token.name} is about this file"
            yield "trusted", f"{kind} {token.name}, until openssl or cosign verifies it"
        else:
            why = f"{token.name} is about another file than {place.name}"
            yield "mismatches", Mismatch(kind, why)


def _verdicts(card: Card) -> Iterator[str]:
    for name, one in card.audits.items():
        if one.auroc is None:
            yield f"{name}: {one.in_words}, as there is no number"
            continue
        yield (
            f"{name}: {one.in_words}, from AUROC {one.auroc.value:.4f} and an interval "
            f"[{one.auroc.low:.4f}, {one.auroc.high:.4f}] that holds among "
            f"{one.corrected_for} audits"
        )


def _certified(
    card: Card, view: CertifiedView, stated: Certified
) -> tuple[str, str | Mismatch]:
    """Return what a view's epsilon is worth, and the column that it stands in."""
    value = stated.epsilon if stated.declared is None else stated.declared
    entry = f"privacy/certified/{view}"
    if value is None:
        return "trusted", f"{view}: nothing is certified"
    mechanisms = card.privacy.mechanisms
    if not mechanisms:
        if value == 0:
            return "trusted", f"{view}: epsilon 0, that it holds nothing of any record"
        return "mismatches", Mismatch(entry, "no mechanism gives its epsilon")
    try:
        given = certify(_events(card), view, stated.delta, without_opacus=True)
    except (PrivauditError, IndexError, OverflowError) as error:
        return "mismatches", Mismatch(entry, f"the mechanisms give none: {error}")
    same = (given.unit, given.adjacency) == (stated.unit, stated.adjacency)
    off = abs((given.epsilon or 0) - value) / max(1, value)
    if given.epsilon is None or not same or off > AGREEMENT:
        why = (
            f"the card says {value:.4g} for a {stated.unit}, {stated.adjacency}; the "
            f"mechanisms give {epsilon_text(given.epsilon)} for a {given.unit}, "
            f"{given.adjacency}"
        )
        return "mismatches", Mismatch(entry, why)
    kind = "certified" if stated.declared is None else "declared"
    return "recomputed", (
        f"{view}: {kind} epsilon {value:.4g} at delta {stated.delta:g}, from the "
        f"mechanisms {given.epsilon:.4g} by {given.accountant}"
    )


def _events(card: Card) -> list[list[MechanismEvent]]:
    plain = [
        {
            **one,
            "rounds": [
                n for first, last in one["rounds"] for n in range(first, last + 1)
            ],
        }
        for one in card.privacy.model_dump()["mechanisms"]
    ]
    return events_by_round(plain, card.training.rounds)


def _on_trust(card: Card) -> Iterator[str]:
    if card.audits:
        yield TRUE_SCORES
        yield COUNTED
    if card.privacy.mechanisms:
        yield "that the mechanisms were applied as the events say"
    if card.utility:
        yield "its utility, on the owner's test records"
    yield "that members were trained on, and others not; and the day"
