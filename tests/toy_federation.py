"""Toy federations trained in memory, for tests of what they leave behind."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor
from torch.nn.functional import cross_entropy

from privaudit.auditing.attack import Scores
from privaudit.checks.contracts import Played as PlayedRounds
from privaudit.checks.contracts import play_rounds
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Tensors
from privaudit.federation.trainer import Cohort, LocalResult, Records, Round, Task
from privaudit.federation.transcript import SERVER, Message
from privaudit.privacy.certificate import CertifiedView, certify
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.roc import pooled_auroc

Shards = dict[str, Records]
VIEWS: tuple[CertifiedView, ...] = get_args(CertifiedView)
CLIENTS = ("client-0", "client-1", "client-2")
AT = Round(0, Seeds(0), CLIENTS)
ALL = 12  # the members a client of the toy task has on average: sampling at rate 1
FEW = settings(  # examples, in tests whose fixtures no example changes
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


class Played(PlayedRounds):
    """A toy federation, and what its rounds left behind."""

    @property
    def models(self) -> Mapping[str, Tensors]:
        """The personal models, were they released now."""
        return self.released()[0]

    def uploads(self, index: int = 0) -> dict[str, Tensors]:
        """Return what each participant of a round sent to the server."""
        sent = self.rounds[index].messages
        return {m.sender: m.tensors for m in sent if m.receiver == SERVER}

    def proved(self, view: CertifiedView, times: int = 1) -> float | None:
        """Return the epsilon of the rounds, each run so many times."""
        return certify([r.events for r in self.rounds] * times, view, 1e-5).epsilon


Play = Callable[..., Played]
play_toy: Play = partial(play_rounds, kind=Played)


def trained_alone(
    trainer: Any, task: Task, shard: Records, received: Tensors, kept: Tensors
) -> tuple[dict[str, Tensor], LocalResult]:
    """Train one client for a round.

    Return its parameters afterwards, sent (the weight divided out) or kept, still
    stacked, and all that its training gave.
    """
    stacked = [{n: t[None] for n, t in part.items()} for part in (received, kept)]
    cohort = Cohort.of(["client-0"], [shard])
    done = trainer.local_update(task, cohort, *stacked, AT)
    sent = {n: t / len(shard) for n, t in done.sent.items() if n != "weight"}
    return {**sent, **done.kept}, done


def assert_close_messages(
    some: Sequence[Message],
    others: Sequence[Message],
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Check that messages are of the same parties, with nearly the same tensors."""
    for one, other in zip(some, others, strict=True):
        assert (one.sender, one.receiver) == (other.sender, other.receiver)
        torch.testing.assert_close(
            dict(one.tensors), dict(other.tensors), rtol=rtol, atol=atol
        )


def emptied(shards: Mapping[str, Records]) -> Shards:
    """Return clients without records: what they send is noise alone."""
    return {c: s.pick(torch.zeros(len(s)).bool()) for c, s in shards.items()}


def neighbours(shard: Records, gone: int) -> list[Cohort]:
    """Return a client with all of its records, and without one of them."""
    fewer = shard.pick(torch.arange(len(shard)) != gone)
    return [Cohort.of(["c"], [some]) for some in (shard, fewer)]


def joined(one: Records, other: Records) -> Records:
    """Return the features and labels of both."""
    return Records(
        torch.cat([one.features, other.features]), torch.cat([one.labels, other.labels])
    )


def auroc_of(
    scores: Sequence[Scores], truth: Sequence[np.ndarray], confidence: float = 0.95
) -> Estimate:
    """Return an attack's AUROC over all clients, given who is a member of each."""
    pairs = zip(scores, truth, strict=True)
    groups = [(one.scores[member], one.scores[~member]) for one, member in pairs]
    return pooled_auroc(groups, confidence=confidence)


def context_loss(
    task: Task, context: Tensor, records: Records, reduction: str = "mean"
) -> Tensor:
    """Oracle: one prompt's cross-entropy, written out."""
    logits = task.logit_scale * records.features @ task.prompts(context[None])[0].T
    return cross_entropy(logits, records.labels, reduction=reduction)


def context_gradient(
    task: Task, context: Tensor, records: Records, reduction: str = "mean"
) -> Tensor:
    """Oracle: a plain backward pass through one prompt's loss."""
    leaf = context.clone().requires_grad_()
    return torch.autograd.grad(context_loss(task, leaf, records, reduction), leaf)[0]
