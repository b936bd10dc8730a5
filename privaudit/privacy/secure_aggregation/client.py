"""One client of the protocol: its secrets, and what it is willing to say."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from privaudit.privacy.secure_aggregation.identities import Identity, Roster
from privaudit.privacy.secure_aggregation.masks import pair_mask, pair_sign, self_mask
from privaudit.privacy.secure_aggregation.packets import (
    KEYS,
    MASKED,
    REVEALED,
    SERVER,
    SHARES,
    SIGNED,
    Arrays,
    Codes,
    FaultError,
    Party,
    Table,
    as_rows,
)
from privaudit.privacy.secure_aggregation.primitives import (
    DIGEST,
    KEY,
    SEED,
    TAG,
    agree,
    commitment,
    derive,
    is_low_order,
    key_pair,
    seal,
    unseal,
)
from privaudit.privacy.secure_aggregation.randomness import SecretSource
from privaudit.privacy.secure_aggregation.sharing import split

ADVERTISED = 2 * KEY + DIGEST  # two public keys, and a commitment to the own mask
LOW_ORDER = "a public key of it is of low order"


@dataclass(frozen=True)
class Held:
    """What a client holds of another one's secrets.

    Attributes:
        mask_key: Its share of the seed of the other's private mask key.
        self_mask: Its share of the seed of the other's own mask.
    """

    mask_key: bytes
    self_mask: bytes


class Client:
    """A client that follows the protocol, and refuses what would expose somebody.

    It takes each step once, in their order, and none after it found a fault.

    Args:
        me: Its position in the roster.
        identity: Its long-term key.
        roster: Whom the round asks.
        threshold: How many shares give a secret back, and how many signatures on one
            list it wants to see before it reveals shares: of all clients, or on a
            graph of its neighbours and itself.
        entropy: The source of its own secrets.
    """

    def __init__(
        self,
        me: Party,
        identity: Identity,
        roster: Roster,
        threshold: int,
        entropy: SecretSource,
    ) -> None:
        self.me, self.roster, self.threshold = me, roster, threshold
        self._identity, self._entropy = identity, entropy
        self._mask_seed = entropy("mask key", SEED)
        self._self_seed = entropy("own mask", SEED)
        self._sealing, self._sealing_public = key_pair(entropy("sealing key", SEED))
        self._masking, self._masking_public = key_pair(self._mask_seed)
        self._keys: Table = {}
        self._held: dict[Party, Held] = {}
        self._survivors: tuple[Party, ...] = ()
        self._due: int | None = KEYS

    def advertise(self) -> Arrays:
        """Return its public keys and the commitment to its own mask, signed."""
        with self._step(KEYS):
            keys = self._advertised
            signature = self._identity.sign(self.roster.keys_text(self.me, keys))
            return {
                "keys": np.frombuffer(keys, dtype=np.uint8),
                "signature": np.frombuffer(signature, dtype=np.uint8),
            }

    def share_out(self, keys: Table, signatures: Table) -> Arrays:
        """Return a share of both secrets for all listed, sealed for their eyes only.

        Beside them stand digests of all shares, so that a wrong one has a name.

        Raises:
            FaultError: The list is too short, without the own keys, with keys of
                others than neighbours or that their owner did not sign, or with two of
                one kind; or a key is of low order.
        """
        with self._step(SHARES):
            self._check_keys(keys, signatures)
            self._keys = dict(keys)
            shares = self._deal()
            self._held[self.me] = shares[self.me]
            sealed = [
                seal(self._sealing_key(self.me, peer), share.mask_key + share.self_mask)
                for peer, share in shares.items()
                if peer != self.me
            ]
            digests = [
                digest_of("mask key", self.me, peer, share.mask_key)
                + digest_of("own mask", self.me, peer, share.self_mask)
                for peer, share in shares.items()
            ]
            return {
                "sealed": as_rows(sealed, 2 * SEED + TAG),
                "digests": as_rows(digests, 2 * DIGEST),
            }

    def mask(
        self,
        codes: Codes,
        sealed: Table,
        digests: Table,
    ) -> Arrays:
        """Return an update under its own mask, and one with each who shared secrets.

        ``sealed`` is what others sealed for it, and ``digests`` are theirs of that.

        Raises:
            FaultError: A share was not sealed by whom it is from, or its digests are
                those of another; or too few shared out; or a key is of low order.
        """
        with self._step(MASKED):
            self._take(sealed, digests)
            masked = codes + self_mask(self._self_seed, codes)
            for peer in self._held:
                if peer != self.me:
                    shared = self._agree(self._masking, peer, slice(KEY, 2 * KEY))
                    mask = pair_mask(shared, codes, self.roster.label, self.me, peer)
                    pair_sign(self.me, peer)(masked, mask, out=masked)
            return {"masked": masked}

    def sign(self, survivors: Sequence[Party]) -> Arrays:
        """Return its signature on the lists of keys, of sharers and of survivors.

        Survivors are those whose masked updates arrived, in rising order.

        Raises:
            FaultError: The list is too short, without the client, or it names others
                than those whose masks were used: on a graph, of its neighbours.
        """
        with self._step(SIGNED):
            there = tuple(survivors)
            near = self.roster.among(self.me, set(there))
            if len(near) < self.threshold or self.me not in near:
                raise FaultError(SERVER, "its list of survivors is short of a client")
            if there != tuple(sorted(set(there))) or not set(near) <= set(self._held):
                raise FaultError(SERVER, "its list of survivors names others, too")
            self._survivors = there
            signature = self._identity.sign(self._lists_text())
            return {"signature": np.frombuffer(signature, dtype=np.uint8)}

    def reveal(self, signatures: Table) -> Arrays:
        """Return shares of own masks of survivors, and of keys of those who are gone.

        Both shares of one client would uncover its update. So it reveals those that its
        own signed list asks for, and wants to see that a threshold of the survivors
        signed the same.

        Raises:
            FaultError: They are fewer, of others, or on other lists.
        """
        with self._step(REVEALED):
            self._check_agreement(signatures)
            there = self._near_survivors
            gone = [peer for peer in sorted(self._held) if peer not in there]
            return {
                "self_masks": as_rows([self._held[c].self_mask for c in there], SEED),
                "mask_keys": as_rows([self._held[c].mask_key for c in gone], SEED),
            }

    @contextmanager
    def _step(self, stage: int) -> Iterator[None]:
        due, self._due = self._due, None
        if due != stage:
            raise FaultError(SERVER, "it asks for a step out of order")
        yield
        self._due = stage + 1

    @property
    def _advertised(self) -> bytes:
        binding = commitment(self._self_seed, "own mask")
        return self._sealing_public + self._masking_public + binding

    @property
    def _near_survivors(self) -> list[Party]:
        return self.roster.among(self.me, set(self._survivors))

    def _check_keys(self, keys: Table, signatures: Table) -> None:
        if len(keys) < self.threshold:
            raise FaultError(SERVER, "its list of keys is shorter than the threshold")
        if keys.get(self.me) != self._advertised:
            raise FaultError(SERVER, "its list lacks a client's own keys")
        if len(self.roster.among(self.me, keys)) < len(keys):
            raise FaultError(SERVER, "its list has keys of others than neighbours")
        for peer, text in keys.items():
            signed = self.roster.keys_text(peer, text)
            if not self.roster.has_signed(peer, signed, signatures[peer]):
                raise FaultError(SERVER, "its list has keys that their owner disowns")
        _check_all_different(keys)

    def _check_agreement(self, signatures: Table) -> None:
        if len(signatures) < self.threshold:
            raise FaultError(SERVER, "too few signed its list of survivors")
        if not set(signatures) <= set(self._near_survivors):
            raise FaultError(SERVER, "others than survivors signed its list of them")
        text = self._lists_text()
        for peer, signature in signatures.items():
            if not self.roster.has_signed(peer, text, signature):
                raise FaultError(SERVER, "clients signed other lists, or none")

    def _lists_text(self) -> bytes:
        return self.roster.lists_text(self._keys, [*self._held], self._survivors)

    def _take(self, sealed: Table, digests: Table) -> None:
        if not set(sealed) <= set(self._keys) or len(sealed) + 1 < self.threshold:
            raise FaultError(SERVER, "it forwarded shares of too few, or of strangers")
        for peer, text in sealed.items():
            opened = unseal(self._sealing_key(peer, self.me), text)
            if opened is None or len(opened) != 2 * SEED:
                raise FaultError(peer, "a share that it sealed cannot be opened")
            held = Held(opened[:SEED], opened[SEED:])
            said = digest_of("mask key", peer, self.me, held.mask_key)
            said += digest_of("own mask", peer, self.me, held.self_mask)
            if said != digests[peer]:
                raise FaultError(peer, "a share that it sealed has another digest")
            self._held[peer] = held

    def _deal(self) -> dict[Party, Held]:
        count, holders = SEED * (self.threshold - 1), tuple(self._keys)
        mask_keys, self_masks = (
            split(secret, self.threshold, holders, self._entropy(purpose, count))
            for secret, purpose in (
                (self._mask_seed, "shares of the mask key"),
                (self._self_seed, "shares of the own mask"),
            )
        )
        return {peer: Held(mask_keys[peer], self_masks[peer]) for peer in holders}

    def _agree(self, private: X25519PrivateKey, peer: Party, which: slice) -> bytes:
        try:
            return agree(private, self._keys[peer][which])
        except ValueError:
            raise FaultError(peer, LOW_ORDER) from None

    def _sealing_key(self, sender: Party, receiver: Party) -> bytes:
        peer = receiver if sender == self.me else sender
        shared = self._agree(self._sealing, peer, slice(KEY))
        return derive(shared, f"seal|{self.roster.label}|{sender}|{receiver}", KEY)


def digest_of(purpose: str, dealer: Party, holder: Party, share: bytes) -> bytes:
    """Return the digest by which a share is known to be the dealer's."""
    return commitment(share, f"share of the {purpose}|{dealer}|{holder}")


def keys_fault(text: bytes) -> str:
    """Return what is wrong with public keys; nothing if nothing is."""
    low = is_low_order(text[:KEY]) or is_low_order(text[KEY : 2 * KEY])
    return LOW_ORDER if low else ""


def _check_all_different(keys: Table) -> None:
    seen: set[bytes] = set()
    for peer, text in keys.items():
        for key in (text[:KEY], text[KEY : 2 * KEY]):
            if key in seen:
                raise FaultError(peer, "a public key of it is another one's, too")
            seen.add(key)
