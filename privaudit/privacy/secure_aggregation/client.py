"""One client of the protocol: its secrets, and what it is willing to say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from jaxtyping import UInt, UInt8

from privaudit.privacy.secure_aggregation.entropy import Entropy
from privaudit.privacy.secure_aggregation.masks import pair_mask, pair_sign, self_mask
from privaudit.privacy.secure_aggregation.packets import (
    SERVER,
    Arrays,
    FaultError,
    Party,
    as_rows,
    has_shape,
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
from privaudit.privacy.secure_aggregation.sharing import split

ADVERTISED = 2 * KEY + DIGEST  # two public keys, and a commitment to the own mask
LOW_ORDER = "a public key of it is of low order"
Keys = Mapping[Party, bytes]


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

    Args:
        me: Its position.
        parties: How many were asked to take part.
        threshold: How many shares give a secret back.
        entropy: Its own.
        label: Of the round: keys of one round are good for no other.
    """

    def __init__(
        self, me: Party, parties: int, threshold: int, entropy: Entropy, label: str
    ) -> None:
        self.me, self.parties, self.threshold = me, parties, threshold
        self._entropy, self._label = entropy, label
        self._mask_seed = entropy("mask key", SEED)
        self._self_seed = entropy("own mask", SEED)
        self._sealing, self._sealing_public = key_pair(entropy("sealing key", SEED))
        self._masking, self._masking_public = key_pair(self._mask_seed)
        self._keys: Keys = {}
        self._held: dict[Party, Held] = {}
        self._answered: tuple[Party, ...] | None = None

    def advertise(self) -> Arrays:
        """Return its public keys, and the commitment to its own mask."""
        binding = commitment(self._self_seed, "own mask")
        text = self._sealing_public + self._masking_public + binding
        return {"keys": np.frombuffer(text, dtype=np.uint8)}

    def share_out(self, keys: Keys) -> Arrays:
        """Return a share of both secrets for every client, sealed for its eyes only.

        Beside them stand digests of all shares, so that a wrong one has a name.

        Args:
            keys: What clients advertised, its own among it.

        Raises:
            FaultError: The list is too short, without the own keys, or with two of one
                kind; or a key is of low order.
        """
        if len(keys) < self.threshold:
            raise FaultError(SERVER, "its list of keys is shorter than the threshold")
        if keys.get(self.me) != self.advertise()["keys"].tobytes():
            raise FaultError(SERVER, "its list lacks a client's own keys")
        self._keys = _all_different(keys)
        shares = self._deal()
        self._held[self.me] = shares[self.me]
        sealed = [
            seal(self._sealing_key(self.me, peer), dealt.mask_key + dealt.self_mask)
            for peer, dealt in shares.items()
            if peer != self.me
        ]
        digests = [
            digest_of("mask key", self.me, peer, dealt.mask_key)
            + digest_of("own mask", self.me, peer, dealt.self_mask)
            for peer, dealt in shares.items()
        ]
        return {
            "sealed": as_rows(sealed, 2 * SEED + TAG),
            "digests": as_rows(digests, 2 * DIGEST),
        }

    def take(
        self, sealed: Mapping[Party, bytes], digests: Mapping[Party, bytes]
    ) -> None:
        """Open what the others sealed for it.

        Raises:
            FaultError: A share was not sealed by whom it is from, or its digests are
                those of another; or too few shared out.
        """
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

    def mask(self, codes: UInt[np.ndarray, " n"]) -> UInt[np.ndarray, " n"]:
        """Return an update under its own mask, and one with each who shared secrets.

        Raises:
            FaultError: A key is of low order.
        """
        masked = codes + self_mask(self._self_seed, codes)
        for peer in self._held:
            if peer != self.me:
                shared = self._agree(self._masking, peer, slice(KEY, 2 * KEY))
                mask = pair_mask(shared, codes, self._label)
                pair_sign(self.me, peer)(masked, mask, out=masked)
        return masked

    def reveal(self, survivors: Sequence[Party]) -> Arrays | None:
        """Return shares of own masks of survivors, and of keys of those who are gone.

        None is a refusal: of two lists, of a list that is too short, and of one that
        names others than those whose masks were used. Both shares of one client would
        uncover its update.

        Args:
            survivors: Whose masked updates arrived.
        """
        there = tuple(survivors)
        known = len(set(there)) == len(there) and set(there) <= set(self._held)
        too_short = len(there) < self.threshold or self.me not in there
        if not known or too_short or self._answered not in (None, there):
            return None
        self._answered = there
        gone = [peer for peer in sorted(self._held) if peer not in there]
        return {
            "self_masks": _rows([self._held[peer].self_mask for peer in there]),
            "mask_keys": _rows([self._held[peer].mask_key for peer in gone]),
        }

    def _deal(self) -> dict[Party, Held]:
        count = SEED * (self.threshold - 1)
        parts = [
            split(secret, self.threshold, self.parties, self._entropy(purpose, count))
            for secret, purpose in (
                (self._mask_seed, "shares of the mask key"),
                (self._self_seed, "shares of the own mask"),
            )
        ]
        return {peer: Held(parts[0][peer], parts[1][peer]) for peer in self._keys}

    def _agree(self, private: X25519PrivateKey, peer: Party, which: slice) -> bytes:
        try:
            return agree(private, self._keys[peer][which])
        except ValueError:
            raise FaultError(peer, LOW_ORDER) from None

    def _sealing_key(self, sender: Party, receiver: Party) -> bytes:
        peer = receiver if sender == self.me else sender
        shared = self._agree(self._sealing, peer, slice(KEY))
        return derive(shared, f"seal|{self._label}|{sender}|{receiver}", KEY)


def digest_of(purpose: str, dealer: Party, holder: Party, share: bytes) -> bytes:
    """Return the digest by which a share is known to be the dealer's."""
    return commitment(share, f"share of the {purpose}|{dealer}|{holder}")


def keys_fault(array: UInt8[np.ndarray, "..."]) -> str:
    """Return what is wrong with what a client advertised; nothing if nothing is."""
    if not has_shape(array, ADVERTISED):
        return "its keys are not two public keys and a commitment"
    text = array.tobytes()
    if is_low_order(text[:KEY]) or is_low_order(text[KEY : 2 * KEY]):
        return LOW_ORDER
    return ""


def _all_different(keys: Keys) -> Keys:
    seen: dict[bytes, Party] = {}
    for peer, text in keys.items():
        for key in (text[:KEY], text[KEY : 2 * KEY]):
            if key in seen:
                raise FaultError(peer, "a public key of it is another one's, too")
            seen[key] = peer
    return keys


def _rows(shares: Sequence[bytes]) -> UInt8[np.ndarray, "rows 16"]:
    return as_rows(shares, SEED)
