"""What is to be read of records: classes and features, or words, as numbers that add up.

A batch is described by the mean of its records' numbers, so that what uploads tell of a
batch is put in terms that a person knows.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from privaudit.core.errors import AttackError
from privaudit.datasets.dialogues import ANSWER
from privaudit.federated.trainer import Records, Task
from privaudit.models.interfaces import OwnersModel

LEAST_SHARE = 1e-3  # of the largest variance: directions below are left out


@dataclass(frozen=True)
class ClassesAndFeatures:
    """Which class a record has, and by what its feature differs from others of it.

    Attributes:
        centres: Mean feature of each class's public records.
        axes: Directions in which records of a class differ, of unit variance each.
        spread: Their standard deviations, largest first.
    """

    centres: Float[Tensor, "classes dim"]
    axes: Float[Tensor, "axes dim"]
    spread: Float[Tensor, " axes"]

    @classmethod
    def learn(cls, public: Records, reads_features: bool) -> "ClassesAndFeatures":
        """Return the description that public records give."""
        features = public.features.double()
        hot = one_hot(public.labels).double()
        counts = hot.sum(dim=0).clamp(min=1)
        centres = (hot.T @ features) / counts[:, None]
        _, spread, axes = torch.linalg.svd(
            features - centres[public.labels], full_matrices=False
        )
        spread = spread / len(public) ** 0.5
        kept = (spread**2 > LEAST_SHARE * spread[:1] ** 2) & reads_features
        return cls(centres, axes[kept], spread[kept].clamp(min=1e-12))

    def of(self, records: Records) -> Float[Tensor, "records numbers"]:
        """Return the class's indicators, and the feature's place within the class."""
        hot = one_hot(records.labels, len(self.centres)).double()
        inside = records.features.double() - self.centres[records.labels]
        places = inside @ self.axes.T / self.spread
        return torch.cat([hot, (hot[:, :, None] * places[:, None]).flatten(1)], dim=1)

    def shares(self, mean: Float[Tensor, " numbers"]) -> Float[Tensor, " classes"]:
        """Return the share of each class in a described batch; they sum to 1."""
        shares = mean[: len(self.centres)].clamp(min=0)
        return shares / shares.sum().clamp(min=1e-12)

    def features(self, mean: Float[Tensor, " numbers"]) -> Float[Tensor, "classes dim"]:
        """Return the mean feature of each class's records in a described batch."""
        classes = len(self.centres)
        places = mean[classes:].view(classes, len(self.axes))
        shares = mean[:classes, None].clamp(min=0.5 / len(self.centres) ** 2)
        return self.centres + (places / shares * self.spread) @ self.axes


@dataclass(frozen=True)
class Words:
    """Which tokens a record's answer holds.

    Attributes:
        ids: The tokens of public answers.
    """

    ids: Int[Tensor, " tokens"]

    @classmethod
    def learn(cls, public: Records) -> "Words":
        """Return the description that public records give."""
        if public.words is None:
            raise AttackError(
                "Texts were to be read out of uploads, but nothing is known of this "
                "run's texts. Attack its models instead: --scenario server-reconstruct."
            )
        return cls(public.words.ids[public.words.kinds == ANSWER].unique())

    def of(self, records: Records) -> Float[Tensor, "records numbers"]:
        """Return 1 where a record's answer holds a token, else 0."""
        assert records.words is not None
        ids, kinds = records.words.ids, records.words.kinds
        place = torch.searchsorted(self.ids, ids).clamp(max=len(self.ids) - 1)
        known = (kinds == ANSWER) & (self.ids[place] == ids)
        held = torch.zeros(len(ids), len(self.ids), dtype=torch.float64)
        return held.scatter_add(1, place, known.double()).clamp(max=1)


Description = ClassesAndFeatures | Words


def learn_description(task: Task) -> Description:
    """Return what can be read of a task's records."""
    if task.kind == "generation":
        return Words.learn(task.public)
    owners = isinstance(task.backbone, OwnersModel)
    return ClassesAndFeatures.learn(task.public, reads_features=not owners)
