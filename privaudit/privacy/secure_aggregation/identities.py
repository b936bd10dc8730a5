"""Signatures: long-term keys, the list of them, and what a signature is bound to."""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from privaudit.core.errors import ConfigError
from privaudit.privacy.secure_aggregation.graph import MaskingGraph
from privaudit.privacy.secure_aggregation.packets import Party, Table, positions

SIGNATURE = 64  # bytes


@dataclass(frozen=True)
class Identity:
    """A client's long-term key for signatures by Ed25519; 32 bytes stand for it."""

    seed: bytes = field(repr=False)

    @cached_property
    def _private(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.seed)

    @property
    def public(self) -> bytes:
        """The key that checks its signatures, 32 bytes."""
        return self._private.public_key().public_bytes_raw()

    def sign(self, text: bytes) -> bytes:
        """Return its signature, the same for the same text."""
        return self._private.sign(text)


@dataclass(frozen=True)
class Roster:
    """Whom a round asks, as each of them knows it before the server says a word.

    It stands for a public-key infrastructure: somebody other than the server vouches
    for it. All of it goes into every signature, so none is good for another run, round,
    number of clients or order of them.

    Attributes:
        keys: Each client's :attr:`Identity.public`, by position.
        label: Of the run and the round; no two rounds have the same.
        graph: Who masks with whom; None if all pairs do. Who vouches for the keys
            draws it, when it stands who takes part.

    Raises:
        ConfigError: Two clients have one key.
    """

    keys: tuple[bytes, ...]
    label: str
    graph: MaskingGraph | None = None

    def __post_init__(self) -> None:
        if len(set(self.keys)) < len(self.keys):
            raise ConfigError(
                f"{len(self.keys)} clients were listed with "
                f"{len(set(self.keys))} keys for signatures. Give each one its own."
            )

    def among(self, client: Party, parties: Collection[Party]) -> list[Party]:
        """Return those who mask with a client, and itself, in rising order."""
        if self.graph is None:
            return sorted(parties)
        return [party for party in self.graph.near(client) if party in parties]

    def fewest(self, there: Collection[Party], whose: Collection[Party]) -> int:
        """Return how many masked with the one of ``whose`` that has the fewest left."""
        if self.graph is None:
            return len(there)
        return min((len(self.among(client, there)) for client in whose), default=0)

    def keys_text(self, client: Party, keys: bytes) -> bytes:
        """Return what a client signs that advertises its keys for a round."""
        return _digest(b"keys", self._context, positions([client]).tobytes(), keys)

    def lists_text(
        self,
        keys: Table,
        shared: Sequence[Party],
        survivors: Sequence[Party],
    ) -> bytes:
        """Return what a client signs before it helps to unmask: all that it received.

        That is who advertised what, who shared out secrets, and whose masked updates
        arrived; on a graph the last only: neighbours receive other keys, and compare
        nevertheless.
        """
        if self.graph is not None:
            keys, shared = {}, ()
        who = [
            positions(sorted(parties)).tobytes()
            for parties in (keys, shared, survivors)
        ]
        advertised = [keys[client] for client in sorted(keys)]
        return _digest(b"lists", self._context, *who, *advertised)

    def has_signed(self, client: Party, text: bytes, signature: bytes) -> bool:
        """Say whether a signature is the client's, and of this text."""
        try:
            key = Ed25519PublicKey.from_public_bytes(self.keys[client])
            key.verify(signature, text)
        except InvalidSignature:
            return False
        return True

    @cached_property
    def _context(self) -> bytes:
        graph = [] if self.graph is None else [self.graph.text]
        return _digest(self.label.encode(), *self.keys, *graph)


def _digest(*parts: bytes) -> bytes:
    """Return the hash of all parts and of where each one ends."""
    ends = b"".join(len(part).to_bytes(8) + part for part in parts)
    return hashlib.sha256(b"privaudit secure sum|" + ends).digest()
