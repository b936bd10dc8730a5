"""How privaudit asks this federation's models: `--owner owner.py`."""

import torch
from texts.task import fit, texts, with_adapters

task = "generation"
ids, targets = texts()


def query(tensors, positions):
    """Return logits [records, length, vocabulary], and labels as for the loss."""
    chosen = torch.as_tensor(positions)
    with torch.no_grad():
        model = with_adapters(dict(tensors)).eval()
        return model(ids[chosen]).logits, targets[chosen]


def local_update(received, positions, seed):
    """Train as a client does: for attacks with shadow models."""
    return fit(dict(received), positions, epochs=15, seed=seed)[0]
