"""FedMIA: does this client's model know the record better than its peers' models do?"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Bool, Float
from pydantic.dataclasses import dataclass

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.signals import CLASS_MEDIANS, ask_signals, class_medians
from privaudit.core.errors import AttackError
from privaudit.core.lazy_torch import torch
from privaudit.core.tensors import Tensors
from privaudit.federation.threat_models import View
from privaudit.federation.trainer import ClientId, Records
from privaudit.statistics.shadow_comparison import offline_scores

FEWEST_PEERS = 2  # in a round: of one, no spread is known

Signals = Float[np.ndarray, "models records"]


@ATTACKS.register("fedmia")
@dataclass(frozen=True)
class FedMia:
    """Score a candidate by how much better a client's uploads know it than others' do.

    The models that other clients upload in a round did not train on the candidate, so
    their confidences in it, taken as normal, say what a non-member's would be: no
    shadow model is trained. Each round gives minus log Pr[N > confidence of the
    target's model]; rounds are averaged (Fisher's combination), and a score is what a
    candidate has above the median public record of its class: clients may have classes
    of their own, in which all their models are better than their peers'.

    Source: Zhu, Li, Gao, Fan and Han, "FedMIA: an effective membership inference attack
    exploiting 'all for one' principle in federated learning", CVPR 2025, with its first
    signal. There rounds' probabilities are added, which are 1 to rounding where classes
    differ, and nothing is said of classes.

    Attributes:
        variance: Of one record's peers, or of all records'.
    """

    threshold: ClassVar[str] = CLASS_MEDIANS
    trains_shadows: ClassVar[bool] = False
    task: ClassVar[AnyTask] = "either"
    reads_uploads: ClassVar[Literal[True]] = True

    variance: Literal["per-record", "global"] = "global"

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates, in nats.

        Raises:
            ViewError: The adversary sees no uploads.
            AttackError: A target never had two peers in a round.
        """
        updates_of = adversary.view.updates_of
        watched = {t.client: {m.round for m in updates_of(t.client)} for t in targets}
        round_scores: list[dict[int, np.ndarray]] = [{} for _ in targets]
        for index in sorted(set().union(*watched.values())):
            models = _uploaded(adversary, index)
            public = _confidence(adversary, models, adversary.task.public)
            for scores, target in zip(round_scores, targets, strict=True):
                if index in watched[target.client] and len(models) > FEWEST_PEERS:
                    scores[index] = self._score(adversary, target, models, public)
        return [
            _averaged(target.client, scores)
            for target, scores in zip(targets, round_scores, strict=True)
        ]

    def _score(
        self,
        adversary: Adversary,
        target: Target,
        models: dict[ClientId, Tensors],
        public: Signals,
    ) -> Float[np.ndarray, " candidates"]:
        is_target = np.array([client == target.client for client in models])
        asked = _confidence(adversary, models, target.candidates)
        return self._beyond(asked, is_target) - class_medians(
            self._beyond(public, is_target),
            adversary.task.public.labels.numpy(),
            target.candidates.labels.numpy(),
        )

    def _beyond(
        self, known: Signals, is_target: Bool[np.ndarray, " models"]
    ) -> Float[np.ndarray, " records"]:
        peers = known[~is_target]
        everywhere = np.ones(peers.shape, dtype=bool)
        return offline_scores(known[is_target][0], peers, everywhere, self.variance)


def _uploaded(adversary: Adversary, index: int) -> dict[ClientId, Tensors]:
    """Return each participant's model as it is rebuilt from all up to a round."""
    seen = tuple(m for m in adversary.view.messages if m.round <= index)
    view = View(adversary.view.adversary, seen)
    cut = replace(adversary, view=view, store=None)
    senders = [m.sender for m in seen if m.round == index and m.is_update]
    return {client: cut.reconstruct(client).model for client in senders}


def _confidence(
    adversary: Adversary, models: dict[ClientId, Tensors], records: Records
) -> Signals:
    said = ask_signals(adversary, list(models.values()), records).confidence
    return np.asarray(torch.nan_to_num(said.double()))


def _averaged(client: ClientId, by_round: dict[int, np.ndarray]) -> Scores:
    if not by_round:
        raise AttackError(
            f"fedmia compares a client with its peers, and no round has uploads of "
            f"{client!r} and at least {FEWEST_PEERS} others. Use loss-threshold, or "
            "rmia, which trains models to compare with."
        )
    scores = np.mean(list(by_round.values()), axis=0)
    return Scores(scores, scores > 0, by_round)
