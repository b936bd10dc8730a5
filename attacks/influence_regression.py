"""Influence regression: an upload as a sum of what leaving each candidate out changes."""

from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.gradient_regression import GramBlock, StepFit, participation
from privaudit.auditing.record_gradients import Move, chosen_moves, hashed_moves
from privaudit.auditing.shadow_models import order_of_contents, paired_coins
from privaudit.federation.rounds import train_simulated_clients
from privaudit.federation.trainer import ClientId, Records
from privaudit.statistics.progress import Phase

AT_ONCE = 64  # stand-ins that train together
WHITE = 0.1  # part of the mean square of what halves leave that is in every direction


@ATTACKS.register("influence-regression")
@dataclass(frozen=True)
class InfluenceRegression:
    """Score a candidate by how likely its influence is a part of what was sent.

    From the broadcast that the client answered, the adversary trains a stand-in on all
    candidates, and one without each of them: what that changes is a candidate's
    influence on the upload, by the trainer's own steps, momentum and batches. The upload
    is solved for all candidates at once, as in ``joint-regression``. What influences do
    not add up to is measured on random halves of the candidates, with its directions.

    Source: derived from the infinitesimal jackknife; leave-one-out influence as in Koh
    and Liang, "Understanding black-box predictions via influence functions", ICML 2017.

    Attributes:
        rounds: From so many, spread evenly, uploads are taken; 0 takes all. In each as
            many stand-ins train for one round as there are candidates and halves.
        shadows: Stand-ins on random halves of the candidates in each round, which say
            what influences leave.
    """

    threshold: ClassVar[str] = "likelier in what was sent than not"
    trains_shadows: ClassVar[bool] = True
    task: ClassVar[AnyTask] = "either"

    rounds: Annotated[int, Field(ge=0)] = 4
    shadows: Annotated[int, Field(ge=5)] = 24

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates: log-likelihood ratios, in nats.

        Raises:
            ViewError: The adversary sees no uploads.
        """
        return [
            self._score(adversary, target, number, len(targets))
            for number, target in enumerate(targets)
        ]

    def _score(
        self, adversary: Adversary, target: Target, number: int, count: int
    ) -> Scores:
        adversary.tell(Phase("", "shadows", target.client, number, count))
        adversary.view.updates_of(target.client)  # sums are of several clients
        order = order_of_contents(target.candidates)  # batches follow it
        candidates = target.candidates.pick(order)
        blocks = {
            move.at.index: self._block(adversary, target.client, candidates, move)
            for move in chosen_moves(adversary, target.client, self.rounds)
        }
        known = StepFit(step=1.0, noise=1.0, explained=1.0)

        def ratios(some: Iterable[GramBlock]) -> Float[np.ndarray, " candidates"]:
            found = participation([(block, known) for block in some]).ratios
            return found[order.argsort()].numpy()

        by_round = {index: ratios([block]) for index, block in blocks.items()}
        scores = ratios(blocks.values())
        return Scores(scores, scores > 0, by_round)

    def _block(
        self, adversary: Adversary, client: ClientId, candidates: Records, move: Move
    ) -> GramBlock:
        """Return influences in one round, in deviations of what they do not explain."""
        n, at = len(candidates), move.at.index
        stream = adversary.seeds.stream("influence halves", round=at, client=client)
        coins = paired_coins(candidates, self.shadows, stream)
        all_but = ~torch.eye(n, dtype=torch.bool)
        chosen = torch.cat([torch.ones(1, n, dtype=torch.bool), all_but, coins])
        shards = [candidates.pick(coin) for coin in chosen]
        sent = _trained(adversary, client, move, shards)
        whole, without, halves = sent[:1], sent[1 : n + 1], sent[n + 1 :]
        influences = 2 * (whole - without)  # of half as many records, twice as much
        left = halves - whole - (coins.double() - 0.5) @ influences
        upload = hashed_moves(adversary, move.deltas) - whole
        shift = influences.sum(dim=0, keepdim=True) / 2  # b is measured from 0, not 1/2
        scaled = _whitened(torch.cat([influences, upload + shift]), left)
        return GramBlock.of_rows(-scaled[:n], scaled[n])


def _trained(
    adversary: Adversary, client: ClientId, move: Move, shards: Sequence[Records]
) -> Float[Tensor, "shards numbers"]:
    """Return where stand-ins on some shards move what the client received."""
    rows = []
    for first in range(0, len(shards), AT_ONCE):
        some = shards[first : first + AT_ONCE]
        names = [f"influence of {client}"] * len(some)  # alike in all they draw
        result = train_simulated_clients(
            adversary.trainer, adversary.task, move.received, names, some,
            adversary.seeds, move.at.index,
        )  # fmt: skip
        rows.append(hashed_moves(adversary, result.sent, move.received))
    return torch.cat(rows)


def _whitened(
    rows: Float[Tensor, "n numbers"], noise: Float[Tensor, "samples numbers"]
) -> Float[Tensor, "n numbers"]:
    """Return rows in deviations of a noise of which there are samples."""
    _, values, directions = torch.linalg.svd(noise, full_matrices=False)
    white = WHITE * float(noise.square().mean()) + 1e-30
    scale = (values.square() / len(noise) + white) ** -0.5 - white**-0.5
    return rows * white**-0.5 + (rows @ directions.T * scale) @ directions
