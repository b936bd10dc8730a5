"""RaMIA: was anything near this record trained on?"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import numpy as np
from jaxtyping import Float
from pydantic import Field
from pydantic.dataclasses import dataclass

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.signals import (
    PUBLIC_MEDIAN,
    ask_signals,
    public_threshold,
)
from privaudit.core.lazy_torch import torch
from privaudit.core.tensors import Tensors
from privaudit.federation.trainer import Records
from privaudit_labs.attacks.before_training import models_before_training, slope_of
from privaudit_labs.attacks.moved_features import (
    directions,
    moved_records,
    refuse_unmovable,
)


@ATTACKS.register("ramia")
@dataclass(frozen=True)
class Ramia:
    """Score a candidate's range: all that lies within a radius of what is known of it.

    The adversary has no candidate itself, only one that was moved by the radius. Of
    that centre and of records around it each gets the log-likelihood of the label less
    what that before training explains, by least squares over public records; the range
    gets the mean of the highest of them: it is trained on if any of its records was.
    With one sample it is the attack on the moved record alone, as if that were the one
    in question.

    Source: Tao and Shokri, "Range membership inference attacks", 2024, the trimmed mean
    of samples' scores, of which the lower ones are cut off here. There the score is
    RMIA's, and ranges are of pictures, rows and texts; here it is with the model before
    training for its reference, and ranges are of the frozen encoder's features.

    Attributes:
        radius: Of the range, above 0; a feature's length is 1.
        samples: Drawn from each range, at least 1.
        kept: Share of the samples whose scores are averaged, the highest ones.
    """

    threshold: ClassVar[str] = PUBLIC_MEDIAN
    trains_shadows: ClassVar[bool] = False
    task: ClassVar[AnyTask] = "classification"

    radius: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.3
    samples: Annotated[int, Field(ge=1, le=1000)] = 20
    kept: Annotated[float, Field(gt=0, le=1)] = 0.5

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's ranges, in nats.

        Raises:
            AttackError: The model reads more of a record than its feature.
        """
        refuse_unmovable(adversary, "ramia")
        public, scored = adversary.task.public, []
        start = models_before_training(adversary, [t.client for t in targets])
        for target in targets:
            models = target.reconstructed.model, start[target.client]
            now, reference = (
                self._of_samples(adversary, models, records)
                for records in (target.candidates, public)
            )
            slope = slope_of(reference[1].flatten(), reference[0].flatten())
            scores, others = (
                self._of_ranges(after - slope * before)
                for after, before in (now, reference)
            )
            labels = public.labels, target.candidates.labels
            scored.append(Scores(scores, scores > public_threshold(others, *labels)))
        return scored

    def _of_samples(
        self, adversary: Adversary, models: tuple[Tensors, Tensors], records: Records
    ) -> Float[np.ndarray, "models records samples"]:
        """Return log-likelihoods of what lies in each record's range."""
        ways = self.radius * directions(adversary, "ramia", self.samples)
        centres = moved_records(records, ways[:1])
        steps = torch.cat([torch.zeros_like(ways[:1]), ways[1:]])
        inside = moved_records(centres, steps)
        logs = [ask_signals(adversary, [m], inside).log_likelihood for m in models]
        shape = len(models), len(records), self.samples
        return torch.cat(logs).double().numpy().reshape(shape)

    def _of_ranges(
        self, gains: Float[np.ndarray, "records samples"]
    ) -> Float[np.ndarray, " records"]:
        count = max(1, round(self.kept * self.samples))
        return np.sort(gains, axis=1)[:, -count:].mean(axis=1)
