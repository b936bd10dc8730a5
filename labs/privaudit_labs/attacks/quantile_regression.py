"""Quantile regression: is this confidence high for a record that looks like this one?"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float
from pydantic import Field
from pydantic.dataclasses import dataclass
from scipy.special import ndtri

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
LEVELS = (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95)  # of the quantiles that trees give
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
    two-step estimator of Harvey, Econometrica 1976). Or boosted trees give seven
    quantiles by the pinball loss, between which the score is interpolated.

    Attributes:
        folds: Of the cross-validation that gives residuals and the penalty.
        learner: Ridge regression, or trees, which take ten times as long.
    """

    threshold: ClassVar[str] = PUBLIC_MEDIAN
    trains_shadows: ClassVar[bool] = False
    task: ClassVar[AnyTask] = "classification"

    folds: Annotated[int, Field(ge=2, le=20)] = 5
    learner: Literal["ridge", "trees"] = "ridge"

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
        own, known = _confidence(candidates), _confidence(reference)
        if self.learner == "trees":
            scores = between_quantiles(learned, known, asked, own)
            held_out = _held_out_quantiles(learned, known, self.folds)
        else:
            expected = _Expected.fit(learned, known, self.folds)
            scores, held_out = expected.standardised(asked, own), expected.held_out
        labels = public.labels, target.candidates.labels
        return Scores(scores, scores > public_threshold(held_out, *labels))


def between_quantiles(
    learned: Float[np.ndarray, "records inputs"],
    known: Float[np.ndarray, " records"],
    asked: Float[np.ndarray, "others inputs"],
    own: Float[np.ndarray, " others"],
) -> Float[np.ndarray, " others"]:
    """Return the normal quantile of each value's level; beyond the last it is linear."""
    at = np.sort(
        [_trees(learned, known, level).predict(asked) for level in LEVELS], axis=0
    )
    normal = ndtri(np.array(LEVELS))
    within = [np.interp(one, row, normal) for one, row in zip(own, at.T, strict=True)]
    spread = at[-1] - at[0] + FLOOR * at.std() + 1e-9
    beyond = np.maximum(own - at[-1], 0) - np.maximum(at[0] - own, 0)
    return np.array(within) + (normal[-1] - normal[0]) / spread * beyond


def _trees(
    inputs: Float[np.ndarray, "records inputs"],
    values: Float[np.ndarray, " records"],
    level: float,
) -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(
        loss="quantile", quantile=level, max_iter=50, max_leaf_nodes=8, random_state=0
    )
    return model.fit(inputs, values)


def _held_out_quantiles(
    inputs: Float[np.ndarray, "records inputs"],
    values: Float[np.ndarray, " records"],
    folds: int,
) -> Float[np.ndarray, " records"]:
    """Return each record's quantile by trees of the other folds."""
    from sklearn.model_selection import KFold

    found = np.empty_like(values)
    for rest, fold in KFold(folds, shuffle=True, random_state=0).split(inputs):
        parts = inputs[rest], values[rest], inputs[fold], values[fold]
        found[fold] = between_quantiles(*parts)
    return found


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
