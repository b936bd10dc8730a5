"""Distances from the boundary, against a model whose boundary is a line."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from pydantic.dataclasses import dataclass

from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.scenario import answering
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked
from privaudit.federation.threat_models import View, released
from privaudit.federation.trainer import Reconstruction, Records, Signal, Signals, Task
from privaudit.trainers.promptfl import PromptFL
from privaudit.trainers.zero_shot import ZeroShot
from privaudit_labs.attacks.label_only import LabelOnly
from privaudit_labs.attacks.moved_features import directions
from tests.toy_federation import Play


@dataclass(frozen=True)
class Line(ZeroShot):
    """Class 1 right of the line, class 0 left of it."""

    def query(
        self,
        task: Task,
        models: Stacked,
        records: Records,
        want: frozenset[Signal] = frozenset(),
    ) -> Iterator[Signals]:
        logits = records.features @ models["line"].mT
        logits = torch.cat([-logits, logits], dim=-1)
        yield {"log_probabilities": logits.log_softmax(dim=-1)}


def in_a_circle(task: Task, count: int = 36) -> tuple[Adversary, Target]:
    """Records all around; half of them are called what they are not."""
    angles = torch.arange(count) * 2 * np.pi / count + 0.1
    features = torch.stack([angles.cos(), angles.sin()], dim=1)
    labels = (features[:, 0] > 0).long() ^ (torch.arange(count) % 2)
    records = Records(features, labels)
    world = replace(task, public=records)
    view = View("released", ())
    adversary = Adversary(Line(), world, released, view, Seeds(0))
    model = {"line": torch.tensor([[1.0, 0.0]])}
    return adversary, Target("client-0", Reconstruction(model), records)


def test_distances_are_those_from_the_line(task: Task) -> None:
    adversary, target = in_a_circle(task)
    attack = LabelOnly(directions=50, radii=20, largest=2.0)
    found = attack._distances(
        adversary, target.reconstructed.model, target.candidates
    ).numpy()
    ways = directions(adversary, "label-only", 50)[:, 0].numpy()
    side = np.where(target.candidates.labels.numpy() == 1, 1.0, -1.0)
    start = target.candidates.features[:, 0].numpy()
    radii = np.linspace(0, 2, 21)
    right = side[:, None, None] * (start[:, None, None] + radii[:, None] * ways) > 0
    np.testing.assert_allclose(found, right.mean(axis=(1, 2)), atol=1e-9)


def test_nothing_but_the_label_is_looked_at(play: Play) -> None:
    """The scores are the same where models answer with bare labels."""
    adversary, targets = play(PromptFL(epochs=2)).watched()
    bare = answering(adversary.trainer, "labels", "classification")
    quiet = replace(adversary, trainer=bare)
    for one, other in zip(
        LabelOnly()(adversary, targets), LabelOnly()(quiet, targets), strict=True
    ):
        np.testing.assert_array_equal(one.scores, other.scores)
        np.testing.assert_array_equal(one.guesses, other.guesses)
