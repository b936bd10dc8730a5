"""What privaudit asks of this federation: privaudit attack ... --owner owner.py."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.func import functional_call

digits = load_digits()
pictures = torch.tensor(digits.data / 16, dtype=torch.float32)
labels = torch.tensor(digits.target)
class_names = [f"digit {number}" for number in range(10)]
network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


def local_update(received, positions, seed):
    """One client's training in one round; the client sends its whole model."""
    network.load_state_dict(dict(received))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5, momentum=0.9)
    for _ in range(20):
        optimizer.zero_grad()
        logits = network(pictures[positions])
        nn.functional.cross_entropy(logits, labels[positions]).backward()
        optimizer.step()
    return {name: one.clone() for name, one in network.state_dict().items()}


def query(tensors, positions):
    """What one model says of some records: logits [records, classes]."""
    with torch.no_grad():
        return functional_call(network.eval(), dict(tensors), (pictures[positions],))
