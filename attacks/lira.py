"""LiRA: is this confidence one of models that saw the record, or that did not?"""

from collections.abc import Callable, Sequence
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
from privaudit.statistics.shadow_comparison import (
    MANY,
    Variance,
    offline_scores,
    online_scores,
    rows_left,
)

Scoring = Callable[[Int[np.ndarray, " some"]], Float[np.ndarray, " records"]]

LIKELIHOOD_RATIO = "a likelihood ratio of one"


@ATTACKS.register("lira")
@dataclass(frozen=True)
class Lira:
    """LiRA: likelihood ratio of a candidate's confidence under shadow models in and out.

    Shadows' logit-scaled confidences of a record are taken as normal. "online": the
    log-likelihood ratio of shadows that trained on the record to those that did not;
    above 0 is called a member. "offline": how improbably high the target's confidence
    is for shadows that did not, minus log Pr[N > confidence]; the threshold is the
    median public record's.

    Source: Carlini et al., "Membership inference attacks from first principles", IEEE
    S&P 2022, algorithm 1 and section IV. Medians in place of means, and deviations over
    models, as in their code. Its one fixed deviation is over models and records
    together, which records' own differences dominate ("global-published"); "global"
    here is over models, pooled over records. Of texts the signal is the mean
    log-likelihood.

    Attributes:
        shadows: Shadow models for each attacked client.
        mode: "online" shadows train on the candidates, "offline" on public records.
        signal: What is compared: log-odds of the label, its margin over the likeliest
            other, or, of texts, Min-K% or Min-K%++ of the answer.
        variance: Of one record's shadows, or of all; "auto" takes a common one for
            fewer than 64 shadows, as section VI-B of the source advises.
    """

    trains_shadows: ClassVar[bool] = True
    task: ClassVar[AnyTask] = "either"

    shadows: Annotated[int, Field(ge=5)] = 50
    mode: Literal["online", "offline"] = "online"
    signal: Literal["confidence", "margin", "min-k", "min-k-plus-plus"] = "confidence"
    variance: Variance = "auto"

    @property
    def threshold(self) -> str:
        """How guesses are made, in words."""
        return LIKELIHOOD_RATIO if self.mode == "online" else PUBLIC_MEDIAN

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates by a log-likelihood ratio, in nats."""
        source: Source = "candidates" if self.mode == "online" else "public"
        known = shadow_signals(adversary, targets, self.shadows, source)
        return [self._score(of_target) for of_target in known]

    def _score(self, known: ShadowSignals) -> Scores:
        score_candidates = self._scoring(known.candidates)
        scores = score_candidates(np.arange(self.shadows))
        left_out = [score_candidates(rows) for rows in rows_left(self.shadows)]
        threshold = 0.0
        if self.mode == "offline":
            reference = self._scoring(known.public)(np.arange(self.shadows))
            labels = known.public.target.labels, known.candidates.target.labels
            threshold = public_threshold(reference, *labels)
        return Scores(
            scores,
            scores > threshold,
            left_out=np.stack(left_out) if left_out else None,
        )

    def _scoring(self, known: SignalsWithMembership) -> Scoring:
        """Return the scores of records as a function of the shadows that are left."""
        target = known.target[self.signal][0].double().numpy()
        shadows = known.signals[self.signal].double().numpy()
        is_in, is_out = known.is_in.numpy(), known.is_out.numpy()
        variance = self.variance
        if variance == "auto":  # the same where some are left out
            variance = "per-record" if len(shadows) >= MANY else "global"

        def score(rows: Int[np.ndarray, " some"]) -> Float[np.ndarray, " records"]:
            if self.mode == "online":
                masks = is_in[rows], is_out[rows]
                return online_scores(target, shadows[rows], *masks, variance)
            return offline_scores(target, shadows[rows], is_out[rows], variance)

        return score
