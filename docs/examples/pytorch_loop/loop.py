"""Federated averaging in a loop of one's own, recorded: python loop.py ledger.npz run."""

import sys

import torch
from owner import local_update, network

from privaudit import Ledger, Recorder

ROUNDS = 3


def train(ledger, recorder):
    """Average the clients' models, weighted by their records."""
    torch.manual_seed(0)
    for layer in (network[0], network[2]):
        layer.reset_parameters()
    server = {name: one.clone() for name, one in network.state_dict().items()}
    for round in range(ROUNDS):
        total, sums = 0, dict.fromkeys(server, 0)
        for client in ledger.clients:
            positions = ledger.members_of(client)  # half of what the client has
            recorder.broadcast(round, client, server)
            sent = local_update(server, positions, seed=round)
            recorder.update(round, client, sent, weight=len(positions))
            sums = {name: sums[name] + len(positions) * sent[name] for name in sums}
            total += len(positions)
        server = {name: one / total for name, one in sums.items()}
    for client in ledger.clients:
        recorder.broadcast(ROUNDS, client, server)  # the model that all end up with


if __name__ == "__main__":
    ledger = Ledger.load(sys.argv[1])
    with Recorder(
        sys.argv[2],
        ledger=ledger,  # left out, `privaudit import` joins the two later
        weight="records",
        trainer="FedAvg",
        model="MLP, 64-256-10",
        dataset="digits",
    ) as recorder:
        train(ledger, recorder)
