"""The protocol's server: it forwards, adds up, and takes off what it is given."""

from collections.abc import Mapping, Sequence
from functools import cached_property, reduce

import numpy as np

from privaudit.privacy.secure_aggregation.client import (
    ADVERTISED,
    digest_of,
    keys_fault,
)
from privaudit.privacy.secure_aggregation.identities import SIGNATURE, Roster
from privaudit.privacy.secure_aggregation.masks import pair_mask, pair_sign, self_mask
from privaudit.privacy.secure_aggregation.packets import (
    Arrays,
    Codes,
    Fault,
    Party,
    Table,
    as_list,
    has_form,
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


class Server:
    """What the server holds: keys, sealed shares, masked updates, revealed shares.

    Args:
        roster: Whom the round asks.
        threshold: How many shares give a secret back.
        like: Gives number and type of the codes.

    Attributes:
        keys: Who advertised what.
        shares: Who shared out secrets, sealed.
        masked: Who sent an update under masks.
        signatures: Who signed the lists, of those.
        answers: Who revealed shares that are right.
        faults: What was wrong with what arrived.
    """

    def __init__(self, roster: Roster, threshold: int, like: Codes) -> None:
        self.roster, self.threshold, self._like = roster, threshold, like
        self.keys: dict[Party, bytes] = {}
        self.shares: dict[Party, Arrays] = {}
        self.masked: dict[Party, Codes] = {}
        self.signatures: dict[Party, bytes] = {}
        self.answers: list[Party] = []
        self.faults: list[Fault] = []
        self._keys_signatures: dict[Party, bytes] = {}
        self._revealed: dict[tuple[str, Party], dict[Party, bytes]] = {}

    @property
    def survivors(self) -> tuple[Party, ...]:
        """Whose masked updates arrived: those who are in the sum."""
        return tuple(sorted(self.masked))

    def accept_keys(self, client: Party, arrays: Arrays) -> None:
        """Note what a client advertised, unless it cannot be used."""
        bytes_of = {"keys": ADVERTISED, "signature": SIGNATURE}
        if not has_form(arrays, **{n: (np.uint8, (c,)) for n, c in bytes_of.items()}):
            what = "its keys are not two public keys, a commitment and a signature"
            self.faults.append(Fault(client, what))
            return
        text, signature = (arrays[name].tobytes() for name in bytes_of)
        signed = self.roster.keys_text(client, text)
        wrong = keys_fault(text)
        if not self.roster.has_signed(client, signed, signature):
            wrong = "its keys do not bear its signature"
        if wrong:
            self.faults.append(Fault(client, wrong))
        else:
            self.keys[client], self._keys_signatures[client] = text, signature

    def list_keys(self, client: Party) -> Arrays:
        """Return the list of signed keys that a client gets: of its neighbours."""
        return as_list(
            keys=self._near(client, self.keys),
            signatures=self._near(client, self._keys_signatures),
        )

    def accept_shares(self, client: Party, arrays: Arrays) -> None:
        """Note what a client sealed for the others."""
        count = len(self._rows[client])
        sealed, digests = (count - 1, 2 * SEED + TAG), (count, 2 * DIGEST)
        if has_form(arrays, sealed=(np.uint8, sealed), digests=(np.uint8, digests)):
            self.shares[client] = arrays
        else:
            self.faults.append(Fault(client, "its shares are not one for each client"))

    def forward(self, client: Party) -> Arrays:
        """Return what the others sealed for a client, and their digests of it."""
        peers = [p for p in self.roster.among(client, self.shares) if p != client]
        places = [self._rows[peer] for peer in peers]
        sealed = [  # without a row for the dealer itself
            self.shares[peer]["sealed"][rows[client] - (peer < client)]
            for peer, rows in zip(peers, places, strict=True)
        ]
        digests = [
            self.shares[peer]["digests"][rows[client]]
            for peer, rows in zip(peers, places, strict=True)
        ]
        return {
            "clients": positions(peers),
            "sealed": np.stack(sealed),
            "digests": np.stack(digests),
        }

    def accept_masked(self, client: Party, arrays: Arrays) -> None:
        """Note a masked update; whether its masks are right shows in the sum."""
        if has_form(arrays, masked=(self._like.dtype.type, self._like.shape)):
            self.masked[client] = arrays["masked"]
        else:
            self.faults.append(Fault(client, "its masked update has another form"))

    def list_survivors(self) -> Arrays:
        """Return the list that every client signs."""
        return {"clients": positions(self.survivors)}

    def accept_signature(self, client: Party, arrays: Arrays) -> None:
        """Note a survivor's signature, if it is on the lists that all were sent."""
        if has_form(arrays, signature=(np.uint8, (SIGNATURE,))):
            signature = arrays["signature"].tobytes()
            if self.roster.has_signed(client, self._lists_text, signature):
                self.signatures[client] = signature
                return
        self.faults.append(Fault(client, "it did not sign the lists that it was sent"))

    def list_signatures(self, client: Party) -> Arrays:
        """Return the signatures that a client checks: of its neighbours."""
        return as_list(signatures=self._near(client, self.signatures))

    def accept_revealed(self, client: Party, arrays: Arrays) -> None:
        """Note revealed shares, if all of them are those that were dealt."""
        shares = self._named_shares(client, arrays)
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
        self.answers.append(client)

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
            for peer in self.roster.among(client, self.masked):
                shared = agree(private, self.keys[peer][KEY : 2 * KEY])
                mask = pair_mask(shared, total, self.roster.label, client, peer)
                # What the survivor put on is taken off, as the lost one would have.
                total = pair_sign(client, peer)(total, mask)
        return total

    def _secret(self, purpose: str, client: Party) -> bytes:
        shares = self._revealed[purpose, client]
        holders = sorted(shares)[: self.threshold]
        return combine({holder: shares[holder] for holder in holders})

    @cached_property
    def _lists_text(self) -> bytes:
        return self.roster.lists_text(self.keys, [*self.shares], self.survivors)

    @cached_property
    def _rows(self) -> Mapping[Party, Mapping[Party, int]]:
        """By dealer: which row of what it dealt is whose."""
        if self.roster.graph is None:
            return dict.fromkeys(self.keys, _numbered(sorted(self.keys)))
        return {c: _numbered(self.roster.among(c, self.keys)) for c in self.keys}

    def _near(self, client: Party, table: Table) -> Table:
        return {party: table[party] for party in self.roster.among(client, table)}

    def _named_shares(
        self, client: Party, arrays: Arrays
    ) -> dict[tuple[str, Party], bytes] | None:
        """Return shares by purpose and dealer, if there are as many as asked."""
        there = self.roster.among(client, self.masked)
        sharers = self.roster.among(client, self.shares)
        gone = [peer for peer in sharers if peer not in self.masked]
        dealers = {"self_masks": there, "mask_keys": gone}
        forms = {n: (np.uint8, (len(parties), SEED)) for n, parties in dealers.items()}
        if not has_form(arrays, **forms):
            return None
        return {
            (purpose, dealer): row.tobytes()
            for name, purpose in (("self_masks", "own mask"), ("mask_keys", "mask key"))
            for dealer, row in zip(dealers[name], arrays[name], strict=True)
        }

    def _is_as_dealt(
        self, purpose: str, dealer: Party, holder: Party, share: bytes
    ) -> bool:
        row = self.shares[dealer]["digests"][self._rows[dealer][holder]].tobytes()
        said = row[:DIGEST] if purpose == "mask key" else row[DIGEST:]
        return digest_of(purpose, dealer, holder, share) == said

    def _note_wrong_dealing(self, client: Party) -> None:
        what = "the shares that it dealt do not make up its secret"
        self.faults.append(Fault(client, what))


def _numbered(parties: Sequence[Party]) -> dict[Party, int]:
    return {party: number for number, party in enumerate(parties)}
