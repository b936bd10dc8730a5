"""Neighbourhood: a text that the model foresees better than texts next to it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
from jaxtyping import Float, Int
from pydantic import Field
from pydantic.dataclasses import dataclass

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.signals import (
    PUBLIC_MEDIAN,
    ask_signals,
    public_threshold,
    reference_records,
)
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.tensors import Tensors
from privaudit.datasets.records import ANSWER, TokenSequences
from privaudit.federation.trainer import Records, Task
from privaudit.models.interfaces import Tuning

ROWS_AT_ONCE = 64


@ATTACKS.register("neighbourhood")
@dataclass(frozen=True)
class Neighbourhood:
    """Score a candidate by its log-likelihood less the mean one of its neighbours.

    A neighbour differs from the answer in one token, for which the frozen model, as it
    was before any tuning, finds another one that fits as well: those are taken that
    have the largest p(other) / (1 - p(own)) of all positions but the last. What is easy
    to foresee is so for the neighbours, too; only memory tells the very words apart.

    Source: Mattern et al., "Membership inference attacks against language models via
    neighbourhood comparison", ACL Findings 2023, equations 2 to 4. There a masked
    model of another make proposes the words, from both sides; the frozen model has
    read those in front only.

    Attributes:
        neighbours: Of each text; fewer where the vocabulary is smaller.
        reference: Public records that say what no member looks like, at most.
    """

    threshold: ClassVar[str] = PUBLIC_MEDIAN
    trains_shadows: ClassVar[bool] = False
    task: ClassVar[AnyTask] = "generation"
    reads_texts: ClassVar[bool] = True

    neighbours: Annotated[int, Field(ge=1, le=1000)] = 10
    reference: Annotated[int, Field(ge=1)] = 100

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates, in nats for each token."""
        task = adversary.task
        reference = reference_records(adversary, "neighbourhood", self.reference)
        public = with_neighbours(task, reference, self.neighbours)
        scored = []
        for target in targets:
            candidates = with_neighbours(task, target.candidates, self.neighbours)
            model = target.reconstructed.model
            scores = _excess(adversary, model, candidates, len(target.candidates))
            others = _excess(adversary, model, public, len(reference))
            labels = reference.labels, target.candidates.labels
            scored.append(Scores(scores, scores > public_threshold(others, *labels)))
        return scored


def _excess(
    adversary: Adversary, model: Tensors, texts: Records, count: int
) -> Float[np.ndarray, " records"]:
    """Return how much better a model foresees each text than its neighbours."""
    log_likelihoods = ask_signals(adversary, [model], texts).log_likelihood[0].double()
    of_text = log_likelihoods.view(count, -1)
    return (of_text[:, 0] - of_text[:, 1:].mean(dim=1)).numpy()


@torch.no_grad()
def with_neighbours(task: Task, records: Records, count: int) -> Records:
    """Return each text, and behind it its neighbours: 1 + count of each, or fewer."""
    assert records.words is not None
    words, count = records.words.trimmed(), min(count, task.language.vocabulary - 2)
    rows = torch.arange(len(records))
    swapped = [
        _swapped(task, records.pick(part), words[part], count)
        for part in rows.split(ROWS_AT_ONCE)
    ]
    many = rows.repeat_interleave(1 + count)
    texts = TokenSequences(torch.cat(swapped).flatten(0, 1), words.kinds[many])
    return replace(records.pick(many), words=texts)


def _swapped(
    task: Task, records: Records, words: TokenSequences, count: int
) -> Int[Tensor, "records texts length"]:
    """Return the tokens of each text, and of its neighbours, the best fit first."""
    assert records.tokens is not None
    language, is_answer = task.language, words.kinds[:, 1:] == ANSWER
    ahead = is_answer.any(dim=0).nonzero().flatten()
    pictures = records.tokens.read(language.device)[None]
    asked = words.repeated(1).to(language.device)
    logits = language.logits(pictures, asked, Tuning(), ahead.to(language.device))
    found = [  # row by row: what fits is as large as all logits
        _fits(logits[0][row].float().cpu(), words[row], ahead).flatten(1).topk(count)
        for row in torch.arange(len(records)).split(1)
    ]
    best = torch.cat([one.indices for one in found])
    positions, tokens = ahead[best // logits.shape[-1]] + 1, best % logits.shape[-1]
    changed = words.ids.unsqueeze(1).repeat(1, 1 + count, 1)
    changed[:, 1:].scatter_(2, positions.unsqueeze(2), tokens.unsqueeze(2))
    return changed


def _fits(
    logits: Float[Tensor, "records p vocabulary"],
    words: TokenSequences,
    ahead: Int[Tensor, " p"],
) -> Float[Tensor, "records p vocabulary"]:
    """Return log p(other) - log(1 - p(own)); -inf where nothing may be put.

    The token that ends an answer stays, and is put nowhere else.
    """
    is_answer, own = words.kinds[:, ahead + 1] == ANSWER, words.ids[:, ahead + 1]
    own = torch.where(is_answer, own, 0).unsqueeze(2)  # a picture's number is no word
    last = is_answer.cumsum(dim=1) == is_answer.sum(dim=1, keepdim=True)
    end = own.gather(1, last.int().argmax(dim=1)[:, None, None])
    logs = logits.scatter(2, own, -torch.inf).log_softmax(dim=2)
    allowed = is_answer & (~last | (is_answer.sum(dim=1, keepdim=True) == 1))
    logs = logs.scatter(2, end.expand_as(own), -torch.inf)
    return logs.masked_fill(~allowed.unsqueeze(2), -torch.inf)
