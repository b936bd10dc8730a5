"""The protocol's server: it forwards, adds up, and takes off what it is given."""

from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np
from jaxtyping import UInt

from privaudit.privacy.secure_aggregation.client import digest_of, keys_fault
from privaudit.privacy.secure_aggregation.masks import pair_mask, pair_sign, self_mask
from privaudit.privacy.secure_aggregation.packets import (
    Arrays,
    Fault,
    Party,
    has_shape,
    positions,
)
from privaudit.privacy.secure_aggregation.primitives import (
    DIGEST,
    KEY,
    SEED,
    TAG,
    agree,
    commitment,
    key_pair,
)
from privaudit.privacy.secure_aggregation.sharing import combine

Codes = UInt[np.ndarray, " n"]


class Server:
    """What the server holds: keys, sealed shares, masked updates, revealed shares.

    Args:
        parties: How many were asked to take part.
        threshold: How many shares give a secret back.
        like: Gives number and type of the codes.
        label: Of the round.

    Attributes:
        keys: Who advertised what.
        shares: Who shared out secrets, sealed.
        masked: Who sent an update under masks.
        faults: What was wrong with what arrived.
    """

    def __init__(self, parties: int, threshold: int, like: Codes, label: str) -> None:
        self.parties, self.threshold = parties, threshold
        self._like, self._label = like, label
        self.keys: dict[Party, bytes] = {}
        self.shares: dict[Party, Arrays] = {}
        self.masked: dict[Party, Codes] = {}
        self.faults: list[Fault] = []
        self._revealed: dict[tuple[str, Party], dict[Party, bytes]] = {}
        self._answers = 0

    @property
    def survivors(self) -> tuple[Party, ...]:
        """Whose masked updates arrived: those who are in the sum."""
        return tuple(sorted(self.masked))

    @property
    def answers(self) -> int:
        """How many clients revealed shares that are right."""
        return self._answers

    def accept_keys(self, client: Party, arrays: Arrays) -> None:
        """Note what a client advertised, unless it cannot be used."""
        wrong = keys_fault(arrays["keys"])
        if wrong:
            self.faults.append(Fault(client, wrong))
        else:
            self.keys[client] = arrays["keys"].tobytes()

    def accept_shares(self, client: Party, arrays: Arrays) -> None:
        """Note what a client sealed for the others."""
        count = len(self.keys)
        right = has_shape(arrays["sealed"], count - 1, 2 * SEED + TAG)
        if right and has_shape(arrays["digests"], count, 2 * DIGEST):
            self.shares[client] = arrays
        else:
            self.faults.append(Fault(client, "its shares are not one for each client"))

    def forward(self, client: Party) -> Arrays:
        """Return what the others sealed for a client, and their digests of it."""
        peers = [peer for peer in sorted(self.shares) if peer != client]
        rows = [self.shares[peer] for peer in peers]
        everyone = sorted(self.keys)
        sealed = [
            arrays["sealed"][[k for k in everyone if k != peer].index(client)]
            for peer, arrays in zip(peers, rows, strict=True)
        ]
        place = everyone.index(client)
        digests = [arrays["digests"][place] for arrays in rows]
        return {
            "clients": positions(peers),
            "sealed": np.stack(sealed),
            "digests": np.stack(digests),
        }

    def accept_masked(self, client: Party, arrays: Arrays) -> None:
        """Note a masked update; whether its masks are right shows in the sum."""
        codes = arrays["masked"]
        if codes.shape == self._like.shape and codes.dtype == self._like.dtype:
            self.masked[client] = codes
        else:
            self.faults.append(Fault(client, "its masked update has another form"))

    def accept_revealed(self, client: Party, arrays: Arrays) -> None:
        """Note revealed shares, if all of them are those that were dealt."""
        shares = self._named_shares(arrays)
        if shares is None:
            self.faults.append(Fault(client, "it revealed other shares than asked"))
            return
        for (purpose, dealer), share in shares.items():
            if not self._is_as_dealt(purpose, dealer, client, share):
                fault = Fault(client, "a share that it revealed is wrong", about=dealer)
                self.faults.append(fault)
                return
        for secret, share in shares.items():
            self._revealed.setdefault(secret, {})[client] = share
        self._answers += 1

    def unmask(self) -> Codes | None:
        """Return the sum of the survivors' codes; None where a secret is not whole."""
        total: Codes = reduce(np.add, self.masked.values())
        for client in self.survivors:
            seed = self._secret("own mask", client)
            if commitment(seed, "own mask") != self.keys[client][2 * KEY :]:
                self._note_wrong_dealing(client)
                return None
            total = total - self_mask(seed, total)
        for client in sorted(self.shares.keys() - self.masked.keys()):
            private, public = key_pair(self._secret("mask key", client))
            if public != self.keys[client][KEY : 2 * KEY]:
                self._note_wrong_dealing(client)
                return None
            for peer in self.survivors:
                shared = agree(private, self.keys[peer][KEY : 2 * KEY])
                mask = pair_mask(shared, total, self._label)
                # What the survivor put on is taken off, as the lost one would have.
                total = pair_sign(client, peer)(total, mask)
        return total

    def _secret(self, purpose: str, client: Party) -> bytes:
        found = self._revealed[purpose, client]
        some = sorted(found)[: self.threshold]
        return combine({holder: found[holder] for holder in some})

    def _named_shares(self, arrays: Arrays) -> dict[tuple[str, Party], bytes] | None:
        """Return shares by purpose and dealer, if there are as many as asked."""
        gone = [peer for peer in sorted(self.shares) if peer not in self.masked]
        named = {}
        for purpose, name, dealers in (
            ("own mask", "self_masks", self.survivors),
            ("mask key", "mask_keys", gone),
        ):
            rows = arrays[name]
            if not has_shape(rows, len(dealers), SEED):
                return None
            for dealer, row in zip(dealers, rows, strict=True):
                named[purpose, dealer] = row.tobytes()
        return named

    def _is_as_dealt(
        self, purpose: str, dealer: Party, holder: Party, share: bytes
    ) -> bool:
        row = self.shares[dealer]["digests"][sorted(self.keys).index(holder)].tobytes()
        said = row[:DIGEST] if purpose == "mask key" else row[DIGEST:]
        return digest_of(purpose, dealer, holder, share) == said

    def _note_wrong_dealing(self, client: Party) -> None:
        what = "the shares that it dealt do not make up its secret"
        self.faults.append(Fault(client, what))


def list_keys(keys: Mapping[Party, bytes]) -> Arrays:
    """Return the list of keys that every client gets."""
    rows = [np.frombuffer(text, dtype=np.uint8) for text in keys.values()]
    return {"clients": positions(list(keys)), "keys": np.stack(rows)}


def rows_by_client(
    clients: Sequence[int], rows: UInt[np.ndarray, "n width"]
) -> dict[Party, bytes]:
    """Return each client's row as bytes."""
    return {int(c): row.tobytes() for c, row in zip(clients, rows, strict=True)}
