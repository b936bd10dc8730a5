"""A federation of somebody else's: small convolutional networks on digits, recorded."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.func import functional_call
from torch.nn import Conv2d, Flatten, Linear, MaxPool2d, ReLU, Sequential
from torch.nn.functional import cross_entropy

from privaudit.core.tensors import Tensors
from privaudit.datasets.split import PUBLIC, TEST
from privaudit.recording.recorder import Recorder
from privaudit.runs.ledger import Coin, Ledger

CLIENTS, CANDIDATES, REFERENCE, ROUNDS, STEPS, RATE = 4, 200, 400, 2, 30, 0.003


def network(seed: int) -> Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Sequential(
            Conv2d(1, 16, 3, padding=1), ReLU(), MaxPool2d(2),
            Conv2d(16, 32, 3, padding=1), ReLU(), Flatten(),
            Linear(512, 64), ReLU(), Linear(64, 10),
        )  # fmt: skip


@dataclass
class DigitsOwner:
    """The owner's side: what trains and asks the networks."""

    seed: int

    def __post_init__(self) -> None:
        digits = load_digits()
        self.pictures = torch.from_numpy(digits.images / 16).float()[:, None]
        self.labels = digits.target
        self.class_names = tuple(map(str, range(10)))
        self.network = network(self.seed)

    def query(self, tensors: Tensors, positions: np.ndarray) -> Tensor:
        chosen = self.pictures[torch.from_numpy(np.asarray(positions))]
        outputs: Tensor = functional_call(self.network, dict(tensors), chosen)
        return outputs

    def local_update(
        self, received: Tensors, positions: np.ndarray, seed: int
    ) -> dict[str, Tensor]:
        model = {n: t.clone().requires_grad_() for n, t in received.items()}
        optimiser = torch.optim.Adam(model.values(), RATE)
        labels = torch.from_numpy(self.labels[positions]).long()
        for _ in range(STEPS if len(positions) else 0):
            optimiser.zero_grad()
            cross_entropy(self.query(model, positions), labels).backward()
            optimiser.step()
        return {name: tensor.detach() for name, tensor in model.items()}

    def start(self) -> dict[str, Tensor]:
        return {n: t.detach().clone() for n, t in self.network.named_parameters()}


def record_network(folder: Path, seed: int) -> DigitsOwner:
    """Toss the coins, train and record."""
    owner, rng = DigitsOwner(seed), np.random.default_rng(seed)
    owners = np.full(len(owner.labels), TEST)
    order = rng.permutation(len(owner.labels))
    for number in range(CLIENTS):
        owners[order[number * CANDIDATES :][:CANDIDATES]] = number
    owners[order[CLIENTS * CANDIDATES :][:REFERENCE]] = PUBLIC
    is_member = (rng.random(len(owners)) < 0.5) & (owners >= 0)
    ledger = Ledger(owners.astype(np.int64), is_member, coin=Coin("seed", seed))
    names = [f"client-{number}" for number in range(CLIENTS)]
    server = owner.start()
    with Recorder(folder, ledger=ledger, weight="num-examples") as recorder:
        for index in range(ROUNDS):
            sums = {name: torch.zeros_like(t) for name, t in server.items()}
            total = 0
            for number, client in enumerate(names):
                members = ledger.members_of(number)
                recorder.broadcast(index, client, server)
                sent = owner.local_update(server, members, index)
                recorder.update(index, client, sent, weight=len(members))
                sums = {n: t + len(members) * sent[n] for n, t in sums.items()}
                total += len(members)
            server = {name: t / total for name, t in sums.items()}
        for client in names:
            recorder.broadcast(ROUNDS, client, server)
    return owner
