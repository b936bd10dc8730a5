"""A whole run of the protocol: five rounds between a server and its clients."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from privaudit.core.errors import ConfigError
from privaudit.privacy.secure_aggregation.client import ADVERTISED, Client
from privaudit.privacy.secure_aggregation.fixed_point import FixedPoint
from privaudit.privacy.secure_aggregation.graph import MaskingGraph
from privaudit.privacy.secure_aggregation.identities import SIGNATURE, Identity, Roster
from privaudit.privacy.secure_aggregation.packets import (
    KEYS,
    MASKED,
    REVEALED,
    SERVER,
    SHARES,
    SIGNED,
    STAGES,
    Arrays,
    Carrier,
    Codes,
    Fault,
    FaultError,
    Packet,
    PacketKind,
    Party,
    Wire,
    positions,
    read_list,
)
from privaudit.privacy.secure_aggregation.primitives import DIGEST, SEED, TAG
from privaudit.privacy.secure_aggregation.randomness import SecretSource
from privaudit.privacy.secure_aggregation.server import Server


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


class _Run:
    def __init__(
        self,
        server: Server,
        clients: Sequence[Client],
        codes: Sequence[Codes],
        wire: Wire,
    ) -> None:
        self.server, self.clients, self.wire = server, clients, wire
        self.codes = codes

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
