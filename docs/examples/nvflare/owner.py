"""What privaudit asks of this federation: privaudit attack run --owner owner.py."""

import torch
from sklearn.datasets import load_digits
from torch import nn

digits = load_digits()
pictures = torch.tensor(digits.data / 16, dtype=torch.float32)
labels = torch.tensor(digits.target)


class Network(nn.Sequential):
    """A small classifier; NVFlare builds it anew by its class."""

    def __init__(self):
        super().__init__(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


def local_update(received, positions, seed):
    """One client's training in one round; the client sends its whole model."""
    network = Network()
    network.load_state_dict({name: torch.as_tensor(x) for name, x in received.items()})
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5, momentum=0.9)
    for _ in range(20):
        optimizer.zero_grad()
        logits = network(pictures[positions])
        nn.functional.cross_entropy(logits, labels[positions]).backward()
        optimizer.step()
    return network.state_dict()


def query(tensors, positions):
    """What one model says of some records: logits [records, classes]."""
    with torch.no_grad():
        return torch.func.functional_call(
            Network().eval(), dict(tensors), pictures[positions]
        )
