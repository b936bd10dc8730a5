"""Label-only: how far must a record be moved until its predicted label is wrong?"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from jaxtyping import Float
from pydantic import Field
from pydantic.dataclasses import dataclass

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.signals import (
    CLASS_MEDIANS,
    class_medians,
)
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.tensors import Tensors, stack
from privaudit.federation.query import ask
from privaudit.federation.trainer import Records, Task, Trainer
from privaudit_labs.attacks.moved_features import (
    directions,
    moved_records,
    reads_features_alone,
    refuse_unmovable,
)


@ATTACKS.register("label-only")
@dataclass(frozen=True)
class LabelOnly:
    """Score a candidate by the distance from the boundary at which its label changes.

    Only the predicted label is looked at. The feature, of length 1, is moved by noise of
    ever larger radius, and the score is the mean over directions of the share of radii
    at which the label is still right: in units of the largest radius, the distance that
    a walk in a random direction has before it leaves the record's class. A record that
    is classified wrongly begins outside of it. What a candidate has above the median
    public record of its class counts.

    Source: Choquette-Choo, Tramèr, Carlini and Papernot, "Label-only membership
    inference attacks", ICML 2021, section 4.3 (robustness to random noise), and Li and
    Zhang, "Membership leakage in label-only exposures", CCS 2021. There pictures are
    moved, and the distance is searched by a boundary attack; here it is the frozen
    encoder's feature, which whoever asks by pictures reaches only roughly.

    Attributes:
        directions: In which each record is moved.
        radii: At how many distances, evenly spaced.
        largest: The largest, above 0; a feature's length is 1.
    """

    threshold: ClassVar[str] = CLASS_MEDIANS
    trains_shadows: ClassVar[bool] = False
    task: ClassVar[AnyTask] = "classification"

    directions: Annotated[int, Field(ge=1, le=1000)] = 20
    radii: Annotated[int, Field(ge=1, le=100)] = 10
    largest: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 4.0

    @staticmethod
    def applies_to(trainer: Trainer, task: Task | None) -> bool:
        """Return whether features can be moved that a trainer's models read alone."""
        if task is None:
            return not trainer.image_tokens
        return reads_features_alone(trainer, task)

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates, in [-1, 1].

        Raises:
            AttackError: The model reads more of a record than its feature.
        """
        refuse_unmovable(adversary, "label-only")
        public, scored = adversary.task.public, []
        for target in targets:
            model, labels = target.reconstructed.model, target.candidates.labels
            distances, others = (
                self._distances(adversary, model, records).numpy()
                for records in (target.candidates, public)
            )
            usual = class_medians(others, public.labels.numpy(), labels.numpy())
            scored.append(Scores(distances - usual, distances > usual))
        return scored

    def _distances(
        self, adversary: Adversary, model: Tensors, records: Records
    ) -> Float[Tensor, " records"]:
        ways = directions(adversary, "label-only", self.directions)
        distances = torch.zeros(len(records), dtype=torch.float64)
        for radius in torch.linspace(0, self.largest, self.radii + 1):
            steps = radius * (ways if radius else ways[:1])
            moved = moved_records(records, steps)
            answers = ask(adversary.trainer, adversary.task, stack([model]), moved)[0]
            right = answers.argmax(dim=1) == moved.labels
            distances += right.view(len(records), -1).double().mean(dim=1)
        return distances / (self.radii + 1)
