"""RMIA: does the target prefer this record to most others more than shadows do?"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from jaxtyping import Float, Int
from pydantic import Field
from pydantic.dataclasses import dataclass

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.shadow_models import (
    ShadowSignals,
    SignalsWithMembership,
    Source,
    shadow_signals,
)
from privaudit.auditing.signals import PUBLIC_MEDIAN, public_threshold
from privaudit.core.errors import AttackError
from privaudit.statistics.roc import delong_components
from privaudit.statistics.shadow_comparison import (
    USUAL_A,
    dominated_shares,
    masked_mean,
    offline_mean,
    rows_left,
)

GRID = np.linspace(0, 1, 11)
FEWEST_TO_TUNE = 3  # shadows: each is the target of the others once
DIGITS = 4  # of a ratio's logarithm: float32 rounds logits of up to 100 by 1e-5
LEAST = 1e-12  # a probability below it is rounding, and may not divide


@ATTACKS.register("rmia")
@dataclass(frozen=True)
class Rmia:
    """RMIA: score a candidate by the share of reference records that it dominates.

    Its ratio is p_target(x) / p(x), with p(x) the mean over shadows that trained on x
    and that did not ("online": of a public record z, on which none did, of all that did
    not), or (1 + a)/2 of the latter's mean + (1 - a)/2 ("offline"). It dominates z if
    its ratio is more than gamma times z's. Public records score the same
    way: half of them lie above the threshold, classes weighted as among candidates.

    Source: Zarifzadeh, Liu and Shokri, "Low-cost high-power membership inference
    attacks", ICML 2024, equations 2 to 4 and 10 to 12. In their code the mean of p(z)
    is of the larger half of shadows only; here it is of all.

    Attributes:
        shadows: Shadow models for each attacked client; "online" at least two, offline
            one will do.
        mode: "online" shadows train on the candidates, "offline" on public records.
        gamma: Above 0. Published: 2, at which all records of a model that learned little
            tie at 0.
        a: In [0, 1], offline; None takes what tells shadows' own members best, of a
            grid of eleven values, or 0.3 where there are fewer than three shadows.
    """

    threshold: ClassVar[str] = PUBLIC_MEDIAN
    trains_shadows: ClassVar[bool] = True
    task: ClassVar[AnyTask] = "either"

    shadows: Annotated[int, Field(ge=1)] = 50
    mode: Literal["online", "offline"] = "online"
    gamma: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    a: Annotated[float, Field(ge=0, le=1)] | None = None

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates, in [0, 1].

        Raises:
            AttackError: One shadow cannot be in and out of a record.
        """
        if self.mode == "online" and self.shadows < 2:
            raise AttackError(
                "rmia was asked for with one shadow model that trains on the "
                "candidates: half of them would have none without. Use two, or "
                "rmia:shadows=1,mode=offline."
            )
        source: Source = "candidates" if self.mode == "online" else "public"
        known = shadow_signals(adversary, targets, self.shadows, source)
        return [self._score(of_target) for of_target in known]

    def _score(self, known: ShadowSignals) -> Scores:
        public = _Likelihoods.of(known.public)
        candidates = _Likelihoods.of(known.candidates)
        a = self.a if self.mode == "offline" else 0.0
        if a is None:
            a = USUAL_A
            if self.shadows >= FEWEST_TO_TUNE:
                a = tune_a(_Likelihoods.of(known.training_set), self.gamma)
        ratio, others = self._ratios(candidates, public, a)
        scores = dominated_shares(ratio, others, self.gamma)
        among = dominated_shares(others, others, self.gamma)
        labels = known.public.target.labels, known.candidates.target.labels
        left_out = [
            dominated_shares(
                *self._ratios(candidates.only(rows), public.only(rows), a), self.gamma
            )
            for rows in rows_left(self.shadows)
        ]
        return Scores(
            scores,
            scores > public_threshold(among, *labels),
            left_out=np.stack(left_out) if left_out else None,
        )

    def _ratios(
        self, candidates: "_Likelihoods", public: "_Likelihoods", a: float
    ) -> tuple[Float[np.ndarray, " candidates"], Float[np.ndarray, " public"]]:
        """Return p_target(x) / p(x) of candidates, and of public records."""
        if self.mode == "online":
            inside = masked_mean(candidates.shadows, candidates.is_in)
            outside = masked_mean(candidates.shadows, candidates.is_out)
            mean = np.maximum((inside + outside) / 2, LEAST)
            ratios = candidates.target / mean, public.target / public.mean_out()
        else:
            ratios = (
                candidates.target / offline_mean(candidates.mean_out(), a),
                public.target / offline_mean(public.mean_out(), a),
            )
        return _rounded(ratios[0]), _rounded(ratios[1])


def _rounded(ratios: Float[np.ndarray, " some"]) -> Float[np.ndarray, " some"]:
    """Let ratios tie that differ by rounding: untrained, the target is its shadows."""
    with np.errstate(divide="ignore"):
        logarithms = np.log(ratios)
    return np.asarray(np.exp(np.round(logarithms, DIGITS)))


@dataclass(frozen=True, config={"arbitrary_types_allowed": True})
class _Likelihoods:
    """Probabilities of the labels under the target and under the shadows."""

    target: np.ndarray
    shadows: np.ndarray
    is_in: np.ndarray
    is_out: np.ndarray

    @classmethod
    def of(cls, known: SignalsWithMembership) -> "_Likelihoods":
        return cls(
            known.target.likelihood[0].double().numpy(),
            known.signals.likelihood.double().numpy(),
            known.is_in.numpy(),
            known.is_out.numpy(),
        )

    def mean_out(self) -> Float[np.ndarray, " records"]:
        return np.maximum(masked_mean(self.shadows, self.is_out), LEAST)

    def only(self, rows: Int[np.ndarray, " some"]) -> "_Likelihoods":
        """Return them of some shadows."""
        return replace(
            self,
            shadows=self.shadows[rows],
            is_in=self.is_in[rows],
            is_out=self.is_out[rows],
        )


def tune_a(learned: _Likelihoods, gamma: float, most: int = 10) -> float:
    """Return the a at which shadows attack one another best, by mean AUROC.

    Each of some shadows is the target once; of the records that shadows may be trained
    on, those in are members, and those out non-members and population alike. The target
    itself has no part in it.
    """
    aurocs = np.zeros(len(GRID))
    for shadow in range(min(most, len(learned.shadows))):
        inside, outside = learned.is_in[shadow], learned.is_out[shadow]
        if not inside.any() or not outside.any():
            continue
        others = np.flatnonzero(np.arange(len(learned.shadows)) != shadow)
        mean_out = learned.only(others).mean_out()
        target = learned.shadows[shadow]
        for number, a in enumerate(GRID):
            ratio = target / offline_mean(mean_out, float(a))
            scores = dominated_shares(ratio, ratio[outside], gamma)
            placed = delong_components(scores[inside], scores[outside])
            aurocs[number] += placed.value
    return float(GRID[aurocs.argmax()])
