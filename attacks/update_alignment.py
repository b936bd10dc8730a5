"""Update alignment: does what a client sent point along this record's gradient?"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from jaxtyping import Float
from pydantic import Field
from pydantic.dataclasses import dataclass

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.record_gradients import single_moves
from privaudit.auditing.signals import CLASS_MEDIANS, class_medians, reference_records
from privaudit.core.lazy_torch import functional, torch
from privaudit.core.tensors import Stacked, Tensors, equal
from privaudit.federation.trainer import Records, Round
from privaudit.federation.transcript import Message
from privaudit.federation.uploads import update_deltas


@ATTACKS.register("update-alignment")
@dataclass(frozen=True)
class UpdateAlignment:
    """Score a candidate by the cosine of uploads with the update of it alone.

    A client with nothing but that record takes one noiseless step from what the target
    received: along its gradient, or, where clients run AdamW, along the gradient's
    signs. Where an upload has no counterpart in what was received (FedAMP's prompts,
    gradients), it is compared as a whole. The cosine's excess over the median public
    record of the class is averaged over the rounds in which the target sent something.
    Private state that the adversary does not know is drawn as a client would.

    Source: after Nasr, Shokri and Houmansadr, "Comprehensive privacy analysis of deep
    learning", IEEE S&P 2019, and Melis et al., "Exploiting unintended feature leakage
    in collaborative learning", IEEE S&P 2019; no formula of theirs is copied.

    Attributes:
        reference: Public records that say what no member looks like, at most.
    """

    threshold: ClassVar[str] = CLASS_MEDIANS
    trains_shadows: ClassVar[bool] = False
    task: ClassVar[AnyTask] = "either"
    reads_uploads: ClassVar[Literal[True]] = True

    reference: Annotated[int, Field(ge=1)] = 200

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates, in [-2, 2].

        Raises:
            ViewError: The adversary sees no uploads.
        """

        def score() -> list[Scores]:
            public = reference_records(adversary, "alignment", self.reference)
            watched = _Watched(adversary, public)
            return [self._score(watched, target) for target in targets]

        return adversary.once(
            ("alignment", self), score, *(target.candidates for target in targets)
        )

    def _score(self, watched: "_Watched", target: Target) -> Scores:
        labels = target.candidates.labels.numpy()
        others = watched.public.labels.numpy()
        by_round = {}
        for sent in watched.adversary.view.updates_of(target.client):
            similarity, reference = watched.cosines(sent, target.candidates)
            by_round[sent.round] = similarity - class_medians(reference, others, labels)
        scores = np.mean(list(by_round.values()), axis=0)
        return Scores(scores, scores > 0, by_round)


class _Watched:
    """What single records would have sent, asked once for all who received alike."""

    def __init__(self, adversary: Adversary, public: Records) -> None:
        self.adversary, self.public = adversary, public
        self._of_public: tuple[Tensors, Stacked] | None = None

    def cosines(
        self, sent: Message, candidates: Records
    ) -> tuple[Float[np.ndarray, " candidates"], Float[np.ndarray, " public"]]:
        """Return an upload's cosines with candidates and with public records."""
        view = self.adversary.view
        received = view.received_in(sent.sender, sent.round).tensors
        at = Round(sent.round, self.adversary.seeds, (sent.sender,))
        upload = update_deltas(
            {n: t.unsqueeze(0) for n, t in sent.tensors.items()}, received
        )
        if self._of_public is None or not equal(self._of_public[0], received):
            self._of_public = (
                received,
                single_moves(self.adversary, received, self.public, at),
            )
        return (
            _cosines(upload, single_moves(self.adversary, received, candidates, at)),
            _cosines(upload, self._of_public[1]),
        )


def _cosines(upload: Stacked, alone: Stacked) -> Float[np.ndarray, " records"]:
    """Return the cosine of all tensors that were sent, as one vector."""
    names = sorted(upload.keys() & alone.keys())
    one, many = (  # each member of a stack as a row; a number is one of length 1
        torch.cat([part[n].unsqueeze(1).flatten(1).double() for n in names], dim=1)
        for part in (upload, alone)
    )
    return np.asarray(functional.cosine_similarity(one, many, dim=1))
