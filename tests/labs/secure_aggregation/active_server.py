"""A server that sends every client what it likes, with some of them on its side."""

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from privaudit.core.seeds import Seeds
from privaudit_labs.secure_aggregation.packets import (
    Arrays,
    FaultError,
    MaskingGraph,
    Party,
    Roster,
)
from privaudit_labs.secure_aggregation.primitives import (
    KEY,
    FixedPoint,
    KeyedSecrets,
    agree,
    combine,
    key_pair,
    pair_mask,
    pair_sign,
    self_mask,
)
from privaudit_labs.secure_aggregation.protocol import Client
from tests.labs.secure_aggregation.conftest import identities_of

Make = Callable[..., Client]
Whom = Mapping[Party, Collection[Party]]
ALL: Whom = MappingProxyType({})


class ActiveServer:
    """Drives clients by hand, and keeps all that they say.

    Args:
        parties: How many clients there are.
        threshold: What they want to see.
        colluders: Those that give it all they have, and sign whatever it wants.
        make: What clients are: a control leaves one of their checks out.
        graph: Who masks with whom; all pairs by default.
    """

    def __init__(
        self,
        parties: int,
        threshold: int,
        colluders: Collection[Party] = (),
        make: Make = Client,
        graph: MaskingGraph | None = None,
    ) -> None:
        self.parties, self.threshold, self.colluders = parties, threshold, colluders
        self.code, rng = FixedPoint(parties), np.random.default_rng(parties)
        self.updates = rng.normal(size=(parties, 10))
        self.identities = identities_of(parties)
        publics = tuple(identity.public for identity in self.identities)
        self.roster = Roster(publics, "run 1, round 0", graph)
        self.clients = [self._client(i, make) for i in range(parties)]
        self.uploads: dict[Party, NDArray[np.uint64]] = {}
        self.shares: dict[tuple[str, Party], dict[Party, bytes]] = {}

    @property
    def honest(self) -> list[Party]:
        return [c for c in range(self.parties) if c not in self.colluders]

    def advertised(self) -> tuple[dict[Party, bytes], dict[Party, bytes]]:
        """Return everybody's keys and signatures."""
        sent = {client.me: client.advertise() for client in self.clients}
        keys, signatures = (
            {me: arrays[name].tobytes() for me, arrays in sent.items()}
            for name in ("keys", "signature")
        )
        return keys, signatures

    def collect(self, keys_shown: Whom = ALL, sharers_shown: Whom = ALL) -> None:
        """Let all share out and upload.

        Args:
            keys_shown: Of whom a client gets keys; by default of all, or its neighbours.
            sharers_shown: Whom a client takes for sharers with it; likewise.
        """
        keys, signatures = self.advertised()
        everyone = range(self.parties)
        lists = {c: self.roster.among(c, keys_shown.get(c, everyone)) for c in everyone}
        sent_shares = {}
        for client in self.clients:
            some = lists[client.me]
            sent_shares[client.me] = client.share_out(
                {c: keys[c] for c in some}, {c: signatures[c] for c in some}
            )
        for client in self.clients:
            shown = set(sharers_shown.get(client.me, everyone)) & set(lists[client.me])
            self._upload(client, sorted(shown - {client.me}), sent_shares, lists)
        for colluder in self.colluders:
            for dealer, held in self.clients[colluder]._held.items():
                self._keep("own mask", dealer, colluder, held.self_mask)
                self._keep("mask key", dealer, colluder, held.mask_key)

    def signatures(self, lists: Mapping[Party, list[Party]]) -> dict[Party, bytes]:
        """Return the signatures of honest clients on the lists that each is shown."""
        found = {}
        for client, survivors in lists.items():
            try:
                arrays = self.clients[client].sign(survivors)
            except FaultError:
                continue
            found[client] = arrays["signature"].tobytes()
        return found

    def colluders_signatures(self, like: Party) -> dict[Party, bytes]:
        """Return colluders' signatures on what an honest client was shown."""
        text = self.clients[like]._lists_text()
        return {c: self.identities[c].sign(text) for c in self.colluders}

    def ask(self, client: Party, signatures: Mapping[Party, bytes]) -> bool:
        """Ask a client to reveal, and say whether it did."""
        there = self.clients[client]._near_survivors
        gone = [c for c in sorted(self.clients[client]._held) if c not in there]
        try:
            arrays = self.clients[client].reveal(signatures)
        except FaultError:
            return False
        for purpose, name, dealers in (
            ("own mask", "self_masks", there),
            ("mask key", "mask_keys", gone),
        ):
            for dealer, row in zip(dealers, arrays[name], strict=True):
                self._keep(purpose, dealer, client, row.tobytes())
        return True

    def unmasked(self, *victims: Party) -> bool:
        """Say whether some clients' sum comes out, from what clients gave away."""
        codes = np.zeros_like(self.uploads[victims[0]])
        for victim in victims:
            own = self._secret("own mask", victim)
            if own is None:
                return False
            codes = codes + self.uploads[victim] - self_mask(own, codes)
            for peer in [c for c in self.clients[victim]._held if c not in victims]:
                shared = self._shared(peer, victim) or self._shared(victim, peer)
                if shared is None:
                    return False
                mask = pair_mask(shared, codes, self.roster.label, peer, victim)
                codes = pair_sign(peer, victim)(codes, mask)
        plain = self.updates[[*victims]].sum(axis=0)
        error = np.abs(self.code.decode(codes) - plain).max()
        return bool(error <= len(victims) * self.code.step)

    def _client(self, me: Party, make: Make) -> Client:
        entropy = KeyedSecrets.of_seed(Seeds(self.parties), 0, f"c{me}")
        return make(me, self.identities[me], self.roster, self.threshold, entropy)

    def _upload(
        self,
        client: Client,
        peers: list[Party],
        sent_shares: Mapping[Party, Arrays],
        lists: Mapping[Party, list[Party]],
    ) -> None:
        me = client.me
        peers = [peer for peer in peers if me in lists[peer]]
        sealed = {
            peer: sent_shares[peer]["sealed"][
                [c for c in lists[peer] if c != peer].index(me)
            ].tobytes()
            for peer in peers
        }
        digests = {
            peer: sent_shares[peer]["digests"][lists[peer].index(me)].tobytes()
            for peer in peers
        }
        codes = self.code.encode(self.updates[me])
        self.uploads[me] = client.mask(codes, sealed, digests)["masked"]

    def _keep(self, purpose: str, dealer: Party, holder: Party, share: bytes) -> None:
        self.shares.setdefault((purpose, dealer), {})[holder] = share

    def _secret(self, purpose: str, dealer: Party) -> bytes | None:
        found = self.shares.get((purpose, dealer), {})
        if len(found) < self.threshold:
            return None
        return combine({c: found[c] for c in sorted(found)[: self.threshold]})

    def _shared(self, one: Party, other: Party) -> bytes | None:
        """Return what two agreed on, if the key of the first is known."""
        private = self._private(one)
        if private is None:
            return None
        return agree(private, self.clients[other]._masking_public)

    def _private(self, client: Party) -> X25519PrivateKey | None:
        if client in self.colluders:
            return self.clients[client]._masking
        seed = self._secret("mask key", client)
        if seed is None:
            return None
        private, public = key_pair(seed)
        assert public == self.clients[client]._advertised[KEY : 2 * KEY]
        return private
