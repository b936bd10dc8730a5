"""Quantile regression: is this confidence high for a record that looks like this one?"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
from jaxtyping import Float
from pydantic import Field
from pydantic.dataclasses import dataclass

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.signals import (
    PUBLIC_MEDIAN,
    SignalTable,
    public_threshold,
    target_signals,
)
from privaudit.core.errors import AttackError
from privaudit.federation.trainer import Records
from privaudit.models.interfaces import OwnersModel

FEWEST = 20  # public records to learn from
PENALTIES = tuple(10.0**power for power in range(-2, 5))
FLOOR = 1e-3  # least residual that counts, as a share of the deviation of all
LOG_CHI_SQUARE = -1.2703628454614782  # mean of the logarithm of a squared normal


@ATTACKS.register("quantile-regression")
@dataclass(frozen=True)
class QuantileRegression:
    """Score a candidate by the quantile of its confidence among records like it.

    One regression on public records, on which no model was trained, says how confident
    the target is in a record of such features and class, and how much that varies; no
    shadow model is trained. The score is the standardised excess, from which every
    quantile of a normal distribution follows.

    Source: Bertran et al., "Scalable membership inference attacks via quantile
    regression", NeurIPS 2023, with its Gaussian form. There the regression is a network
    on pictures; here it is a ridge regression on the frozen encoder's features, first
    of the mean, then of the logarithm of the squared residuals of held-out folds (the
    two-step estimator of Harvey, Econometrica 1976).

    Attributes:
        folds: Of the cross-validation that gives residuals and the penalty.
    """

    threshold: ClassVar[str] = PUBLIC_MEDIAN
    trains_shadows: ClassVar[bool] = False
    task: ClassVar[AnyTask] = "classification"

    folds: Annotated[int, Field(ge=2, le=20)] = 5

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates, in deviations.

        Raises:
            AttackError: There are too few public records.
        """
        public = adversary.task.public
        if len(public) < max(FEWEST, self.folds):
            raise AttackError(
                f"quantile-regression learns from public records, and there are "
                f"{len(public)}; it needs {max(FEWEST, self.folds)}. Use confidence."
            )
        looks = not isinstance(adversary.task.backbone, OwnersModel)
        return [self._score(adversary, target, looks) for target in targets]

    def _score(self, adversary: Adversary, target: Target, looks: bool) -> Scores:
        public = adversary.task.public
        classes = int(max(public.labels.max(), target.candidates.labels.max())) + 1
        candidates, reference = target_signals(adversary, target)
        learned, asked = (
            _inputs(records, classes, looks) for records in (public, target.candidates)
        )
        expected = _Expected.fit(learned, _confidence(reference), self.folds)
        scores = expected.standardised(asked, _confidence(candidates))
        labels = public.labels, target.candidates.labels
        threshold = public_threshold(expected.held_out, *labels)
        return Scores(scores, scores > threshold)


def _confidence(signals: SignalTable) -> Float[np.ndarray, " records"]:
    return np.asarray(signals.confidence[0].double())


def _inputs(
    records: Records, classes: int, looks: bool
) -> Float[np.ndarray, "records inputs"]:
    """Return classes as ones and zeros, beside what the records look like."""
    hot = np.eye(classes)[records.labels.numpy()]
    if not looks:  # nobody but their owner sees the records
        return hot
    return np.concatenate([hot, records.features.double().numpy()], axis=1)


@dataclass(frozen=True, config={"arbitrary_types_allowed": True})
class _Expected:
    """What a model's confidence in a record is, if it was not trained on it.

    Attributes:
        mean: Regression of the confidence.
        spread: Regression of the logarithm of its squared residuals.
        low: Lower bound of that logarithm: nothing is said beyond what was seen.
        high: Upper bound of it.
        held_out: Of the records that it was learned from, each by the folds without it.
    """

    mean: Any
    spread: Any
    low: float
    high: float
    held_out: np.ndarray

    @classmethod
    def fit(
        cls,
        inputs: Float[np.ndarray, "records inputs"],
        values: Float[np.ndarray, " records"],
        folds: int,
    ) -> "_Expected":
        from sklearn.linear_model import RidgeCV
        from sklearn.model_selection import KFold, cross_val_predict

        mean, spread = RidgeCV(PENALTIES), RidgeCV(PENALTIES)
        # Shuffled: data sets are often sorted by class, and a fold must not lack one.
        parts = KFold(folds, shuffle=True, random_state=0)
        residuals = values - cross_val_predict(mean, inputs, values, cv=parts)
        least = max(FLOOR * float(values.std()), np.finfo(float).tiny ** 0.5)
        logs = np.log(np.maximum(residuals**2, least**2))
        low, high = float(logs.min()), float(logs.max())
        guessed = cross_val_predict(spread, inputs, logs, cv=parts)
        held_out = residuals / _deviation(guessed, low, high)
        return cls(
            mean.fit(inputs, values), spread.fit(inputs, logs), low, high, held_out
        )

    def standardised(
        self,
        inputs: Float[np.ndarray, "records inputs"],
        values: Float[np.ndarray, " records"],
    ) -> Float[np.ndarray, " records"]:
        deviation = _deviation(self.spread.predict(inputs), self.low, self.high)
        return np.asarray((values - self.mean.predict(inputs)) / deviation)


def _deviation(
    logs: Float[np.ndarray, " records"], low: float, high: float
) -> Float[np.ndarray, " records"]:
    return np.asarray(np.exp((np.clip(logs, low, high) - LOG_CHI_SQUARE) / 2))
