from dataclasses import replace

import numpy as np
import pytest
import torch

from privaudit.attacks.output_attacks import LossThreshold
from privaudit.auditing.attack import Adversary, Target
from privaudit.core.seeds import Seeds
from privaudit.federation.threat_models import View, server
from privaudit.federation.trainer import Reconstruction, Records, Task
from privaudit.trainers.zero_shot import ZeroShot


def test_scores_by_hand(task: Task) -> None:
    """Two orthogonal classes at scale 10: log p is -log(1 + e^-10) or 10 less."""
    text = torch.eye(2)
    records = Records(torch.eye(2)[[0, 0, 1]], torch.tensor([0, 1, 1]))
    blind = replace(task.classifier, zero_shot=text)
    world = replace(task, backbone=blind, public=records)
    adversary = Adversary(ZeroShot(), world, server, View("server", ()), Seeds(0))
    target = Target("client-0", Reconstruction({"text": text}), records)
    (found,) = LossThreshold()(adversary, [target])
    near = -np.log1p(np.exp(-10))
    assert found.scores == pytest.approx([near, near - 10, near], abs=1e-5)


def test_half_of_like_records_are_called_members(task: Task) -> None:
    """The threshold is the median of public records, by class share."""
    adversary = Adversary(ZeroShot(), task, server, View("server", ()), Seeds(0))
    target = Target("client-0", Reconstruction({"text": task.zero_shot}), task.public)
    (found,) = LossThreshold()(adversary, [target])
    assert abs(found.guesses.mean() - 0.5) <= 1 / len(task.public)
