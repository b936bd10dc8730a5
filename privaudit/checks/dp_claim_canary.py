"""Many independent runs on the same few records, with a canary in some of them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from privaudit.core.errors import TooFewRecordsError
from privaudit.core.seeds import Seeds
from privaudit.execution.jobs import Executor, Job, finish_all
from privaudit.execution.local import HERE
from privaudit.federated.batches import Batch
from privaudit.federated.federation import Federation, give_away, run_round
from privaudit.federated.runs.planted import crafted_norm
from privaudit.federated.trainer import Records, Task, Trainer
from privaudit.federated.trainer_abilities import AcceptsGradientCanaries
from privaudit.statistics.progress import Watcher
from privaudit.tuning.prompts.gradients import ContextGradients

Canary = Literal["opposed", "gradient", "mislabelled", "picture"]
Where = Literal["peer", "released"]
CLIENTS_AT_ONCE = 256
TARGET, BYSTANDER = "client-0", "client-1"


def small_task(task: Task, most: int, rounds: int) -> Task:
    """Return the task with two small clients, all of whose records are trained on."""
    candidates = {TARGET: most, BYSTANDER: most}
    return replace(task, candidates=candidates, member_share=1.0, rounds=rounds)


@dataclass(frozen=True)
class Bench:
    """What all runs share.

    Attributes:
        shards: What each client has in every run.
        other: What stands in its place where the coin leaves it out: nothing (data sets
            that differ by a record more), or another (that differ in one).
        seeds: A child of them for each run.
    """

    trainer: AcceptsGradientCanaries
    task: Task
    shards: Mapping[str, Records]
    canary: Records
    other: Records | None
    seeds: Seeds

    @classmethod
    def prepare(
        cls,
        trainer: AcceptsGradientCanaries,
        task: Task,
        kind: Canary,
        records: int,
        seeds: Seeds,
        *,
        replaced: bool = False,
    ) -> "Bench":
        """Choose the records and the canary before any run."""
        other = None
        order = seeds.stream("ordinary records").permutation(len(task.public))
        target_rows, bystander_rows, rest = np.split(order, [records, 2 * records])
        if not len(rest):
            raise TooFewRecordsError(
                f"{records} ordinary records for each of two clients were "
                f"requested, but {len(task.public)} are public. Use fewer."
            )
        target, bystander, spare = (
            task.public.pick(torch.from_numpy(rows))
            for rows in (target_rows, bystander_rows, rest)
        )
        if kind in ("mislabelled", "picture"):
            canary, easiest = _extremes(trainer, task, spare, kind, seeds)
            if replaced:
                other = easiest
        else:
            direction = _direction(task, trainer, records, seeds)
            canary = _crafted(spare, direction)
            target, bystander = (
                _uncrafted(target, direction),
                _uncrafted(bystander, direction),
            )
            if replaced:
                other = _crafted(spare, -direction)
            elif kind == "opposed":
                target = Records.joined([target, _crafted(spare, -direction / 2)])
        shards = {TARGET: target, BYSTANDER: bystander}
        return cls(trainer, task, shards, canary, other, seeds)

    def scores(
        self,
        coins: Bool[np.ndarray, " runs"],
        where: Where,
        progress: Callable[[int, int], None] | None,
        executor: Executor = HERE,
    ) -> tuple[Float[np.ndarray, " runs"], list[list[dict[str, Any]]]]:
        """Train all runs, some at a time; return scores, and one run's mechanisms.

        As many are stacked wherever they run, so that their bytes are the same.
        """
        at_once = CLIENTS_AT_ONCE // len(self.shards)
        chunks = [
            range(first, min(first + at_once, len(coins)))
            for first in range(0, len(coins), at_once)
        ]
        jobs = [
            Job(f"runs from {some.start} on", Bench.some, (self, some, coins, where))
            for some in chunks
        ]
        sizes = {job.name: len(some) for job, some in zip(jobs, chunks, strict=True)}
        found, done = {}, 0
        with closing(executor.run(jobs)) as finished:
            for one in finish_all(finished):
                found[one.job.name] = one.value
                done += sizes[one.job.name]
                if progress:
                    progress(done, len(coins))
        every = [found[job.name] for job in jobs]
        scores = torch.cat([scores for scores, _ in every])
        return scores.double().numpy(), every[-1][1]

    def some(
        self,
        some: range,
        coins: Bool[np.ndarray, " runs"],
        where: Where,
        watcher: Watcher | None = None,
    ) -> tuple[Tensor, list[list[dict[str, Any]]]]:
        """Train some runs together; return scores, and one run's mechanisms."""
        federations = [self._begin(run, bool(coins[run])) for run in some]
        events, moved = [], torch.zeros(len(some))
        seen = _contexts(self.trainer, federations, 0)
        for index in range(self.task.rounds):
            records = run_round(self.trainer, self.task, federations, index)
            events.append([event.to_json() for event in records[0].events])
            after = _contexts(self.trainer, federations, index + 1)
            moved += self._against(seen, after - seen)
            seen = after
        if where == "released":
            models = [
                give_away(
                    self.trainer, self.task, one, self.task.rounds, publish=False
                )[0][TARGET]
                for one in federations
            ]
            given = torch.stack([model[self.trainer.prompt] for model in models])
            moved = self._against(given, given)
        return moved, events

    def _begin(self, run: int, is_in: bool) -> Federation:
        shards = dict(self.shards)
        placed = self.canary if is_in else self.other
        if placed is not None:
            shards[TARGET] = Records.joined([shards[TARGET], placed])
        seeds = self.seeds.child("claim run", run)
        return Federation.begin(
            self.trainer, self.task, shards, seeds, name=f"run-{run}"
        )

    def _against(
        self,
        contexts: Float[Tensor, "runs tokens width"],
        moves: Float[Tensor, "runs tokens width"],
    ) -> Float[Tensor, " runs"]:
        """Return how far each move goes against the canary's gradient there."""
        gradients = _gradients(self.task, contexts, self.canary)
        length = gradients.flatten(1).norm(dim=1).clamp(min=1e-12)
        return -(gradients * moves).sum(dim=(1, 2)) / length


def _contexts(
    trainer: AcceptsGradientCanaries, federations: Sequence[Federation], index: int
) -> Float[Tensor, "runs tokens width"]:
    """Return what each server would send to the bystander."""
    sent = [
        trainer.broadcast(f.server, BYSTANDER, f.at(index, 1.0)) for f in federations
    ]
    return torch.stack([tensors[trainer.prompt] for tensors in sent])


def _gradients(
    task: Task, contexts: Float[Tensor, "runs tokens width"], record: Records
) -> Float[Tensor, "runs tokens width"]:
    """Return one record's gradient at many contexts."""
    count = len(contexts)
    if record.crafted is not None:
        return record.crafted.expand(count, -1, -1)
    batch = Batch(
        record.features.expand(count, 1, -1),
        record.labels.expand(count, 1),
        torch.ones(count, 1, dtype=torch.bool),
    )
    return ContextGradients.forward(task, contexts, batch).of_batch()


def _extremes(
    trainer: AcceptsGradientCanaries,
    task: Task,
    spare: Records,
    kind: Canary,
    seeds: Seeds,
) -> tuple[Records, Records]:
    """Return the records with the largest and the smallest gradient, before any run."""
    if kind == "mislabelled":
        classes = int(task.public.labels.max()) + 1
        shift = 1 + seeds.stream("wrong labels").below(classes - 1, len(spare))
        wrong = (spare.labels + torch.from_numpy(shift)) % classes
        spare = replace(spare, labels=wrong)
    start = trainer.start(task, seeds.child("a start of no run"))[trainer.prompt]
    everybody = torch.ones(1, len(spare), dtype=torch.bool)
    batch = Batch(spare.features.unsqueeze(0), spare.labels.unsqueeze(0), everybody)
    forward = ContextGradients.forward(task, start.unsqueeze(0), batch)
    sizes = [
        gradients.flatten(2).norm(dim=2)[0] for gradients, _ in forward.by_record()
    ]
    size = torch.cat(sizes)
    return spare.pick(size.argmax().view(1)), spare.pick(size.argmin().view(1))


def _direction(
    task: Task, trainer: Trainer, records: int, seeds: Seeds
) -> Float[Tensor, "tokens width"]:
    """Return a gradient that is clipped, also in the mean with all other records."""
    shape = (task.prompts.context_tokens, task.prompts.width)
    drawn = seeds.stream("canary direction").normal_tensor(shape)
    return crafted_norm(trainer, records + 2) * drawn / drawn.norm()


def _crafted(spare: Records, gradient: Float[Tensor, "tokens width"]) -> Records:
    return replace(spare.pick(torch.tensor([0])), crafted=gradient.unsqueeze(0))


def _uncrafted(records: Records, like: Tensor) -> Records:
    """Return ordinary records that can stand beside crafted ones."""
    return replace(records, crafted=torch.zeros(len(records), *like.shape))
