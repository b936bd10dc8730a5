"""The model, the pictures and the training: nothing here knows of privaudit."""

import os
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn


@cache
def pictures() -> tuple[Tensor, Tensor]:
    """Return pictures [n, 3, 32, 32] in [0, 1] and their classes [n].

    From CIFAR-10's binary batches: a byte for the class, then 3072 of the picture.
    """
    folder = Path(os.environ.get("PICTURES", "cifar-10-batches-bin"))
    files = sorted(folder.glob("data_batch_*.bin"))
    rows = np.concatenate([np.fromfile(f, np.uint8).reshape(-1, 3073) for f in files])
    found = torch.from_numpy(rows[:, 1:].reshape(-1, 3, 32, 32))
    return found.float() / 255, torch.from_numpy(rows[:, 0]).long()


class Net(nn.Sequential):
    """Two convolutions and two layers."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(),
            nn.Linear(32 * 5 * 5, 64), nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip


def fit(net: Net, positions: np.ndarray, epochs: int, seed: int) -> float:
    """Train on the pictures at those positions; return the last batch's loss."""
    x, y = (values[torch.as_tensor(positions)] for values in pictures())
    order = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(epochs):
        for batch in torch.randperm(len(y), generator=order).split(16):
            loss = nn.functional.cross_entropy(net(x[batch]), y[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return loss.item()
