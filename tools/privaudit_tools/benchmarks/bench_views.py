"""What a view of many rounds and clients costs: its index, and every client's messages.

Run by ``make bench``; 4 numbers an upload, so that only the looking up is timed.
"""

import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from privaudit.federation.threat_models import View, server
from privaudit.federation.transcript import SERVER, ChainEnd, Message, TranscriptFolder
from privaudit_tools.benchmarks.measuring import in_own_process, machine, timed

ROUNDS, CLIENTS, SHADOWS = 50, (10, 100, 1_000), 16


def test_looking_up_a_client_costs_no_more_among_many() -> None:
    print(f"\n{machine()}\n{ROUNDS} rounds, {SHADOWS} shadows a client\n")
    print("| clients | read, s | look-ups, ms a client |\n|---|---|---|")
    spent = []
    for clients in CLIENTS:
        printed = in_own_process("bench_views", str(clients))
        read, looked = map(float, printed.split())
        spent.append(looked)
        print(f"| {clients:,} | {read:.2f} | {looked:.2f} |")
    assert spent[-1] < 3 * spent[0]


def measure(clients: int) -> tuple[float, float]:
    """Return seconds to read the transcript, and ms of look-ups a client.

    In a process of its own, without the type checks of the tests.
    """
    with TemporaryDirectory() as folder:
        end = write(Path(folder), clients)
        reading = partial(
            TranscriptFolder(Path(folder)).read, head=end.head, length=end.length
        )
        read = timed(reading)
        looked = timed(partial(look_up, server(read.result), clients))
    return read.seconds, 1e3 * looked.seconds / clients


def write(folder: Path, clients: int) -> ChainEnd:
    """Store rounds in which all clients take part."""
    stored, end = TranscriptFolder(folder), ChainEnd()
    names = [f"client-{n}" for n in range(clients)]
    for index in range(ROUNDS):
        model = {"w": torch.full((4,), float(index))}
        sent = [Message(index, SERVER, c, "broadcast", model) for c in names]
        for number, client in enumerate(names):
            upload = {"w": torch.full((4,), number + index / ROUNDS)}
            sent.append(Message(index, client, SERVER, "update", upload))
        end = stored.write(index, sent, end)
    return end


def look_up(view: View, clients: int) -> None:
    """Ask as an attack with shadow models does."""
    for client in (f"client-{n}" for n in range(clients)):
        uploads = view.updates_of(client)
        view.last_broadcast(client)
        for _ in range(SHADOWS):
            shadow = view.with_uploads(client, uploads[-1:])
            shadow.updates_of(client)
            shadow.received_in(client, ROUNDS - 1)
            shadow.has_release_of(client)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(*measure(int(sys.argv[1])))
