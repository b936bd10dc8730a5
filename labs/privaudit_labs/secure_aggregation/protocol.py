"""A whole run of the protocol: five rounds between a server and its clients.

A client has its secrets, and says what it is willing to; the server forwards, adds up, and
takes off what it is given.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import NoReturn

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from privaudit.core.errors import ConfigError
from privaudit_labs.secure_aggregation.packets import (
    KEYS,
    MASKED,
    REVEALED,
    SERVER,
    SHARES,
    SIGNATURE,
    SIGNED,
    STAGES,
    Arrays,
    Carrier,
    Codes,
    Fault,
    FaultError,
    Identity,
    MaskingGraph,
    Packet,
    PacketKind,
    Party,
    Roster,
    Table,
    Wire,
    as_list,
    as_rows,
    has_form,
    positions,
    read_list,
)
from privaudit_labs.secure_aggregation.primitives import (
    DIGEST,
    KEY,
    SEED,
    TAG,
    FixedPoint,
    SecretSource,
    agree,
    combine,
    commitment,
    derive,
    is_low_order,
    key_pair,
    pair_mask,
    pair_sign,
    seal,
    self_mask,
    split,
    unseal,
)

ADVERTISED = 2 * KEY + DIGEST  # two public keys, and a commitment to the own mask
LOW_ORDER = "a public key of it is of low order"
EQUAL = "its two public keys are one"
SHARED = "two clients advertised one public key"


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
        identity: Its long-term signing key.
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
        public = [key for text in keys.values() for key in _public_keys(text)]
        if len(set(public)) < len(public):
            raise FaultError(SERVER, "its list has a public key twice")

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
            if opened is None:
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


def _public_keys(advertised: bytes) -> tuple[bytes, bytes]:
    return advertised[:KEY], advertised[KEY : 2 * KEY]


class Server:
    """What the server holds: keys, sealed shares, masked updates, revealed shares.

    Args:
        threshold: How many shares give a secret back.
        like: Gives number and type of the codes.

    Attributes:
        keys: The public keys that each party advertised.
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
        self._first: dict[bytes, Party] = {}  # who advertised a public key first
        self._revealed: dict[tuple[str, Party], dict[Party, bytes]] = {}

    @property
    def survivors(self) -> tuple[Party, ...]:
        """Whose masked updates arrived: those who are in the sum."""
        return tuple(sorted(self.masked))

    def accept_keys(self, client: Party, arrays: Arrays) -> None:
        """Note what a client advertised, unless it cannot be used.

        Which of two with one key has copied it, nobody can tell: neither takes part.
        """
        bytes_of = {"keys": ADVERTISED, "signature": SIGNATURE}
        if not has_form(arrays, **{n: (np.uint8, (c,)) for n, c in bytes_of.items()}):
            what = "its keys are not two public keys, a commitment and a signature"
            self.faults.append(Fault(client, what))
            return
        text, signature = (arrays[name].tobytes() for name in bytes_of)
        signed = self.roster.keys_text(client, text)
        public = _public_keys(text)
        wrong = EQUAL if public[0] == public[1] else ""
        if any(map(is_low_order, public)):
            wrong = LOW_ORDER
        if not self.roster.has_signed(client, signed, signature):
            wrong = "its keys do not bear its signature"
        if wrong:
            self.faults.append(Fault(client, wrong))
            return
        self.keys[client], self._keys_signatures[client] = text, signature
        owners = {self._first.setdefault(key, client) for key in public} | {client}
        if len(owners) > 1:
            for one in sorted(owners & self.keys.keys()):
                self.faults.append(Fault(None, SHARED, about=one))
                del self.keys[one], self._keys_signatures[one]

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


@dataclass(frozen=True)
class ProtocolOutcome:
    """What came of a run.

    Attributes:
        total: The sum of the survivors' codes; None if the run was aborted. If it was
            because clients were lost, nobody learned a sum. If it was a faulty message,
            a server may still find one: where it holds a threshold of good shares.
        survivors: Those whose updates are in the sum; nobody if it was aborted.
        packets: All that was sent, in order.
        faults: What was wrong, and whose fault it was.
        why_aborted: In words; empty if the sum is there.
    """

    total: Codes | None
    survivors: tuple[Party, ...]
    packets: tuple[Packet, ...]
    faults: tuple[Fault, ...] = ()
    why_aborted: str = ""


class _AbortedError(Exception):
    """The run cannot go on."""


def threshold_of(parties: int) -> int:
    """Return the least threshold above two thirds of the parties.

    Two groups of that size have more than a third of all in common. So if at most a
    third break the rules, an honest client is in both, and signs one list only.

    Raises:
        ConfigError: There are fewer than two parties: a sum over one is its update.
    """
    if parties < 2:
        raise ConfigError(
            f"A secure sum over {parties} client was requested, but a sum over one is "
            "its update. Let more clients take part, or train with ideal secure "
            "aggregation."
        )
    return 2 * parties // 3 + 1


def aggregate(
    codes: Sequence[Codes],
    identities: Sequence[Identity],
    entropies: Sequence[SecretSource],
    code: FixedPoint,
    *,
    label: str = "",
    graph: MaskingGraph | None = None,
    lost: Mapping[Party, int] | None = None,
    carry: Carrier = lambda packet: packet,
) -> ProtocolOutcome:
    """Sum the clients' codes so that the server learns the sum only.

    Args:
        codes: Each client's update in fixed point.
        identities: Each client's long-term key; all know the public ones beforehand.
        entropies: Each client's source of secrets.
        code: Tells sums that honest clients can reach from others.
        label: Of the run and the round.
        graph: Who masks with whom, and the threshold; by default all pairs.
        lost: From which of :data:`STAGES` on a client is gone.
        carry: What happens to packets on their way.
    """
    threshold = threshold_of(len(codes))
    if graph is not None:
        threshold = graph.density.threshold
    roster = Roster(tuple(identity.public for identity in identities), label, graph)
    clients = [
        Client(me, identity, roster, threshold, entropy)
        for me, (identity, entropy) in enumerate(
            zip(identities, entropies, strict=True)
        )
    ]
    server = Server(roster, threshold, codes[0])
    run = _Run(server, clients, codes, Wire(lost or {}, carry))
    try:
        total, why = run.all_rounds(code), ""
    except _AbortedError as reason:
        total, why = None, str(reason)
    survivors = () if total is None else server.survivors
    packets, faults = tuple(run.wire.packets), tuple(server.faults)
    return ProtocolOutcome(total, survivors, packets, faults, why)


@dataclass(frozen=True)
class _Run:
    server: Server
    clients: Sequence[Client]
    codes: Sequence[Codes]
    wire: Wire

    def all_rounds(self, code: FixedPoint) -> Codes:
        server = self.server
        self._ask(KEYS, range(len(self.clients)), Client.advertise, server.accept_keys)
        self._enough(server.keys, server.keys)
        self._ask(SHARES, [*server.keys], self._share_out, server.accept_shares)
        self._enough(server.shares, server.shares)
        self._ask(MASKED, [*server.shares], self._mask, server.accept_masked)
        self._enough(server.masked, server.shares)
        self._ask(SIGNED, server.survivors, self._sign, server.accept_signature)
        self._enough(server.signatures, server.shares)
        self._ask(REVEALED, [*server.signatures], self._reveal, server.accept_revealed)
        self._enough(set(server.answers), server.shares)
        total = server.unmask()
        if total is None:
            raise _AbortedError(_LAST_FAULT)
        if not code.fits(total):
            what = "the masks do not cancel: a masked update does not fit"
            server.faults.append(Fault(None, what))
            raise _AbortedError(_LAST_FAULT)
        return total

    def _ask(
        self,
        stage: int,
        whom: Sequence[Party],
        step: Callable[[Client], Arrays],
        accept: Callable[[Party, Arrays], None],
    ) -> None:
        """Let those who are still there take a step; a fault that one finds ends all."""
        for client in (self.clients[c] for c in whom if self.wire.is_there(c, stage)):
            try:
                sent = step(client)
            except FaultError as error:
                self._complain(client, error)
            packet = Packet(client.me, SERVER, STAGES[stage], sent)
            accept(client.me, self.wire.send(packet).arrays)

    def _share_out(self, client: Client) -> Arrays:
        keys = self.server.list_keys(client.me)
        return client.share_out(
            *self._tables(client, "keys", keys, keys=ADVERTISED, signatures=SIGNATURE)
        )

    def _mask(self, client: Client) -> Arrays:
        forwarded = self.server.forward(client.me)
        widths = {"sealed": 2 * SEED + TAG, "digests": 2 * DIGEST}
        sealed, digests = self._tables(client, "shares", forwarded, **widths)
        return client.mask(self.codes[client.me], sealed, digests)

    def _sign(self, client: Client) -> Arrays:
        survivors = self.server.list_survivors()
        return client.sign(self._listed(client, "survivors", survivors)[0])

    def _reveal(self, client: Client) -> Arrays:
        signed = self.server.list_signatures(client.me)
        return client.reveal(
            *self._tables(client, "signatures", signed, signatures=SIGNATURE)
        )

    def _tables(
        self, client: Client, kind: PacketKind, arrays: Arrays, **widths: int
    ) -> list[dict[Party, bytes]]:
        return self._listed(client, kind, arrays, **widths)[1]

    def _listed(
        self, client: Client, kind: PacketKind, arrays: Arrays, **widths: int
    ) -> tuple[list[Party], list[dict[Party, bytes]]]:
        """Send a list down, and return it as the client reads it."""
        got = self.wire.send(Packet(SERVER, client.me, kind, arrays)).arrays
        return read_list(got, len(self.clients), **widths)

    def _complain(self, client: Client, error: FaultError) -> NoReturn:
        arrays = {"clients": positions([error.whose])}
        self.wire.send(Packet(client.me, SERVER, "complaint", arrays))
        fault = Fault(error.whose, error.what, accuser=client.me)
        self.server.faults.append(fault)
        raise _AbortedError(_LAST_FAULT)

    def _enough(self, there: Collection[Party], whose: Collection[Party]) -> None:
        """Abort unless a threshold is left to give each one's secrets back."""
        count = self.server.roster.fewest(there, whose)
        if count < self.server.threshold:
            raise _AbortedError(
                f"too few survivors ({count} of {self.server.threshold})"
            )


_LAST_FAULT = "a message does not fit"
