import numpy as np
import torch

from privaudit.auditing.signals.thresholds import public_threshold


def test_each_class_weighs_as_among_the_candidates() -> None:
    """Class 0 is rare in public and common among candidates: its median decides."""
    scores = np.array([0.0, 1.0, 2.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0])
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 1])
    assert public_threshold(scores, labels, torch.tensor([0, 0, 0])) == 1
    assert public_threshold(scores, labels, torch.tensor([1])) == 12
    assert public_threshold(scores, labels, torch.tensor([0, 1])) == 2
