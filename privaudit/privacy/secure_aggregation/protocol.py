"""A whole run of the protocol: four rounds between a server and its clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from jaxtyping import UInt

from privaudit.errors import ConfigError
from privaudit.privacy.secure_aggregation.client import Client
from privaudit.privacy.secure_aggregation.entropy import Entropy
from privaudit.privacy.secure_aggregation.fixed_point import FixedPoint
from privaudit.privacy.secure_aggregation.packets import (
    SERVER,
    Arrays,
    Carrier,
    Fault,
    FaultError,
    Packet,
    PacketKind,
    Party,
    Wire,
    positions,
)
from privaudit.privacy.secure_aggregation.server import (
    Server,
    list_keys,
    rows_by_client,
)

KEYS, SHARES, MASKED, REVEALED = range(4)  # the stages in which clients can be lost


@dataclass(frozen=True)
class Outcome:
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

    total: UInt[np.ndarray, " n"] | None
    survivors: tuple[Party, ...]
    packets: tuple[Packet, ...]
    faults: tuple[Fault, ...] = ()
    why_aborted: str = ""


class _AbortedError(Exception):
    """The run cannot go on."""


def threshold_of(parties: int) -> int:
    """Return the least threshold above half of the parties.

    Above half, because a server that tells some clients that u is gone and others that
    it is there then cannot collect enough shares of both of u's secrets.

    Raises:
        ConfigError: There are fewer than two parties: a sum over one is its update.
    """
    if parties < 2:
        raise ConfigError(
            f"A secure sum over {parties} client was asked for, and a sum over one is "
            "its update. Let more clients take part, or train with ideal secure "
            "aggregation."
        )
    return parties // 2 + 1


def aggregate(
    codes: Sequence[UInt[np.ndarray, " n"]],
    entropies: Sequence[Entropy],
    code: FixedPoint,
    *,
    label: str = "",
    lost: Mapping[Party, int] | None = None,
    carry: Carrier = lambda packet: packet,
) -> Outcome:
    """Sum the clients' codes so that the server learns the sum only.

    Args:
        codes: Each client's update in fixed point.
        entropies: Each client's own.
        code: Tells sums that honest clients can reach from others.
        label: Of the round.
        lost: From which of :data:`STAGES` on a client is gone.
        carry: What happens to packets on their way.

    Raises:
        ConfigError: There are fewer than two clients.
    """
    threshold, count = threshold_of(len(codes)), len(codes)
    clients = [
        Client(me, count, threshold, entropy, label)
        for me, entropy in enumerate(entropies)
    ]
    server = Server(count, threshold, codes[0], label)
    run = _Run(server, clients, Wire(lost or {}, carry))
    try:
        total = run.all_rounds(codes, code)
    except _AbortedError as reason:
        packets, faults = tuple(run.wire.packets), tuple(server.faults)
        return Outcome(None, (), packets, faults, str(reason))
    packets, faults = tuple(run.wire.packets), tuple(server.faults)
    return Outcome(total, server.survivors, packets, faults)


class _Run:
    def __init__(self, server: Server, clients: Sequence[Client], wire: Wire) -> None:
        self.server, self.clients, self.wire = server, clients, wire

    def all_rounds(
        self, codes: Sequence[UInt[np.ndarray, " n"]], code: FixedPoint
    ) -> UInt[np.ndarray, " n"]:
        server = self.server
        self._advertise()
        self._enough(len(server.keys))
        self._share_out()
        self._enough(len(server.shares))
        self._send_masked(codes)
        self._enough(len(server.masked))
        self._reveal()
        self._enough(server.answers)
        total = server.unmask()
        if total is None:
            raise _AbortedError(_LAST_FAULT)
        if not code.fits(total):
            what = "the masks do not cancel: a masked update does not fit"
            server.faults.append(Fault(None, what))
            raise _AbortedError(_LAST_FAULT)
        return total

    def _advertise(self) -> None:
        for client in self._there(KEYS, range(len(self.clients))):
            sent = self._up(client, "keys", client.advertise())
            self.server.accept_keys(client.me, sent)

    def _share_out(self) -> None:
        keys = list_keys(self.server.keys)
        for client in self._there(SHARES, sorted(self.server.keys)):
            got = self._down(client, "keys", keys)
            listed = rows_by_client(got["clients"].tolist(), got["keys"])
            try:
                sent = self._up(client, "shares", client.share_out(listed))
            except FaultError as error:
                self._complain(client, error)
            self.server.accept_shares(client.me, sent)

    def _send_masked(self, codes: Sequence[UInt[np.ndarray, " n"]]) -> None:
        for client in self._there(MASKED, sorted(self.server.shares)):
            got = self._down(client, "shares", self.server.forward(client.me))
            peers = got["clients"].tolist()
            sealed, digests = (
                rows_by_client(peers, got[name]) for name in ("sealed", "digests")
            )
            try:
                client.take(sealed, digests)
                masked = client.mask(codes[client.me])
            except FaultError as error:
                self._complain(client, error)
            sent = self._up(client, "masked", {"masked": masked})
            self.server.accept_masked(client.me, sent)

    def _reveal(self) -> None:
        named = {"clients": positions(self.server.survivors)}
        for client in self._there(REVEALED, self.server.survivors):
            got = self._down(client, "survivors", named)
            shares = client.reveal(got["clients"].tolist())
            if shares is not None:
                sent = self._up(client, "revealed-shares", shares)
                self.server.accept_revealed(client.me, sent)

    def _there(self, stage: int, whom: Sequence[Party]) -> list[Client]:
        """Return those who still take part in a stage."""
        return [self.clients[c] for c in whom if self.wire.is_there(c, stage)]

    def _up(self, client: Client, kind: PacketKind, arrays: Arrays) -> Arrays:
        return self.wire.send(Packet(client.me, SERVER, kind, arrays)).arrays

    def _down(self, client: Client, kind: PacketKind, arrays: Arrays) -> Arrays:
        return self.wire.send(Packet(SERVER, client.me, kind, arrays)).arrays

    def _complain(self, client: Client, error: FaultError) -> NoReturn:
        self._up(client, "complaint", {"clients": positions([error.whose])})
        fault = Fault(error.whose, error.what, accuser=client.me)
        self.server.faults.append(fault)
        raise _AbortedError(_LAST_FAULT)

    def _enough(self, count: int) -> None:
        if count < self.server.threshold:
            raise _AbortedError(
                f"too few survivors ({count} of {self.server.threshold})"
            )


_LAST_FAULT = "a message does not fit"
