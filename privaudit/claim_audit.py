"""Does a claimed epsilon hold? Many independent runs, each with one canary or without.

A federation is trained again and again, with fresh randomness, on the same few records.
A coin decides whether one client also has the canary; everything else is the same.
What somebody in one place sees of a run becomes one score: how far the prompt has moved
against the canary's gradient. Members' scores and others' bound epsilon from below.

Runs are stacked: hundreds cost little more than one.

Source: Jagielski, Ullman and Oprea, "Auditing differentially private machine learning",
NeurIPS 2020; canaries in gradient space as in Nasr et al., "Adversary instantiation:
lower bounds for differentially private machine learning", IEEE S&P 2021.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from privaudit.batches import Batch
from privaudit.canaries import FAR_BEYOND
from privaudit.config import RunConfig, make_config
from privaudit.errors import ConfigError
from privaudit.federation import Federation, give_away, run_round
from privaudit.population import Population, populate
from privaudit.privacy.record import privacy_record
from privaudit.prompts.gradients import ContextGradients
from privaudit.seeds import Seeds
from privaudit.statistics.claim import ClaimVerdict, Guarantee, judge_claim
from privaudit.statistics.epsilon.bound import EpsilonBound
from privaudit.statistics.epsilon.designs import IndependentRuns
from privaudit.statistics.epsilon.split_threshold import SplitThreshold
from privaudit.tensors import Tensors
from privaudit.trainer import PublicTask, Records, Trainer

Canary = Literal["opposed", "gradient", "mislabelled", "picture"]
Where = Literal["peer", "released"]
CLIENTS_AT_ONCE = 256
FEWEST_RUNS = 20
TARGET, BYSTANDER = "client-0", "client-1"
KINDS: Mapping[Canary, str] = {
    "opposed": "a gradient far beyond the clip norm, beside a record with the opposite "
    "one: the worst neighbours that a proof must allow for; no pictures",
    "gradient": "a gradient far beyond the clip norm, beside real records; no picture",
    "mislabelled": "the real picture with the largest gradient under a wrong label",
    "picture": "the real picture with the largest gradient under its own label",
}


@dataclass(frozen=True)
class ClaimAudit:
    """What many runs say about a claimed epsilon.

    Attributes:
        config: What was trained.
        canary: What was put in by the coin, in words.
        where: What the adversary sees: a peer what the server sends, somebody with the
            released model that alone.
        records: Ordinary records of each client.
        bound: The lower bound.
        verdict: On the claim.
        scores: Of each run.
        is_member: How each run's coin fell.
    """

    config: RunConfig
    canary: str
    where: Where
    records: int
    bound: EpsilonBound
    verdict: ClaimVerdict
    scores: Float[np.ndarray, " runs"]
    is_member: Bool[np.ndarray, " runs"]

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the scores."""
        return {
            "config": self.config.model_dump(),
            "canary": self.canary,
            "where": self.where,
            "records": self.records,
            "bound": self.bound.to_dict(),
            "verdict": {
                "kind": self.verdict.kind,
                "sentence": self.verdict.sentence,
                "alarm": self.verdict.alarm,
            },
        }


def audit_claim(
    trainer: str,
    settings: Mapping[str, Any],
    *,
    canary: Canary = "opposed",
    where: Where = "peer",
    runs: int = 1000,
    records: int = 4,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    population: Population | None = None,
    **fields: Any,
) -> ClaimAudit:
    """Train many federations of two clients, and hold what shows against the claim.

    Args:
        trainer: A private one that takes canaries in gradient space.
        settings: Its parameters, an epsilon among them.
        canary: What the coin puts in or leaves out.
        where: Who looks on.
        runs: Independent ones, at least 20; a few hundred show something.
        records: Ordinary ones of each client, at least 1.
        seed: Of coins, starts, batches and noise.
        progress: Called with the runs that are done, and all.
        population: Of the same configuration, to spare loading it again.
        **fields: Of :class:`privaudit.config.RunConfig`, such as ``rounds``.

    Raises:
        ConfigError: Nothing is claimed, the trainer cannot take the canary, or there
            are too few runs.
    """
    config = make_config(trainer, settings, clients=2, seed=seed, **fields)
    method = config.build_trainer()
    known = (population or populate(config)).task
    task = _task(known, records + 1 + (canary == "opposed"), config.rounds)
    claim = method.claim(task)
    if claim.epsilon is None:
        raise ConfigError(
            f"{trainer} claims no epsilon with these settings, so there is nothing to "
            "refute. Give --epsilon."
        )
    if not method.takes_crafted:
        raise ConfigError(
            f"{trainer} does not take canaries of a chosen gradient. Take dp-fpl or "
            "dp-promptfl."
        )
    if runs < FEWEST_RUNS or records < 1:
        raise ConfigError(
            f"{runs} runs with {records} ordinary records were asked for. Take at "
            f"least {FEWEST_RUNS} runs, a few hundred to show anything, and 1 record."
        )
    seeds = Seeds(seed).child("claim audit")
    bench = _Bench.prepare(method, task, canary, records, seeds)
    coins = seeds.numpy("canary coins").random(runs) < 0.5
    scores, events = bench.scores(coins, where, progress)
    certified = privacy_record(claim, events, sends_updates=True)["certified"][where]
    bound = SplitThreshold(delta=claim.delta)(IndependentRuns(scores, coins))
    claimed = Guarantee(claim.epsilon, claim.delta)
    proved = None
    if certified["epsilon"] is not None:
        proved = Guarantee(float(certified["epsilon"]), claim.delta)
    verdict = judge_claim(claimed, proved, bound)
    return ClaimAudit(
        config, KINDS[canary], where, records, bound, verdict, scores, coins
    )


def _task(task: PublicTask, most: int, rounds: int) -> PublicTask:
    """Return the task with two small clients, all of whose records are trained on."""
    candidates = {TARGET: most, BYSTANDER: most}
    return replace(task, candidates=candidates, member_share=1.0, rounds=rounds)


@dataclass(frozen=True)
class _Bench:
    """What all runs share.

    Attributes:
        trainer: The method.
        task: What everybody knows.
        shards: What each client has in every run.
        canary: One record.
        seeds: A child of them for each run.
    """

    trainer: Trainer
    task: PublicTask
    shards: Mapping[str, Records]
    canary: Records
    seeds: Seeds

    @classmethod
    def prepare(
        cls,
        trainer: Trainer,
        task: PublicTask,
        kind: Canary,
        records: int,
        seeds: Seeds,
    ) -> "_Bench":
        """Choose the records and the canary before any run."""
        order = seeds.numpy("ordinary records").permutation(len(task.public))
        mine, others, rest = np.split(order, [records, 2 * records])
        if not len(rest):
            raise ConfigError(
                f"{records} ordinary records for each of two clients were asked for, "
                f"and {len(task.public)} are public. Ask for fewer."
            )
        own, theirs, spare = (
            task.public.pick(torch.from_numpy(some)) for some in (mine, others, rest)
        )
        if kind in ("mislabelled", "picture"):
            canary = _hardest(trainer, task, spare, kind, seeds)
        else:
            direction = _direction(task, trainer, seeds)
            canary = _crafted(spare, direction)
            own, theirs = _uncrafted(own, direction), _uncrafted(theirs, direction)
            if kind == "opposed":
                own = _join(own, _crafted(spare, -direction / 2))
        return cls(trainer, task, {TARGET: own, BYSTANDER: theirs}, canary, seeds)

    def scores(
        self,
        coins: Bool[np.ndarray, " runs"],
        where: Where,
        progress: Callable[[int, int], None] | None,
    ) -> tuple[Float[np.ndarray, " runs"], list[list[dict[str, Any]]]]:
        """Train all runs, some at a time; return scores, and one run's mechanisms."""
        found: list[Tensor] = []
        events: list[list[dict[str, Any]]] = []
        at_once = CLIENTS_AT_ONCE // len(self.shards)
        for first in range(0, len(coins), at_once):
            some = range(first, min(first + at_once, len(coins)))
            scores, events = self._some(some, coins, where)
            found.append(scores)
            if progress:
                progress(some.stop, len(coins))
        return torch.cat(found).double().numpy(), events

    def _some(
        self, some: range, coins: Bool[np.ndarray, " runs"], where: Where
    ) -> tuple[Tensor, list[list[dict[str, Any]]]]:
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
            models = [self._released(federation) for federation in federations]
            given = torch.stack([model["context"] for model in models])
            moved = self._against(given, given)
        return moved, events

    def _begin(self, run: int, is_in: bool) -> Federation:
        shards = dict(self.shards)
        if is_in:
            shards[TARGET] = _join(shards[TARGET], self.canary)
        seeds = self.seeds.child("claim run", run)
        return Federation.begin(
            self.trainer, self.task, shards, seeds, name=f"run-{run}"
        )

    def _released(self, federation: Federation) -> Tensors:
        models, _ = give_away(
            self.trainer, self.task, federation, self.task.rounds, publish=False
        )
        return models[TARGET]

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
    trainer: Trainer, federations: Sequence[Federation], index: int
) -> Float[Tensor, "runs tokens width"]:
    """Return what each server would send to the bystander."""
    return torch.stack(
        [
            trainer.broadcast(f.server, BYSTANDER, f.at(index, 1.0))["context"]
            for f in federations
        ]
    )


def _gradients(
    task: PublicTask, contexts: Float[Tensor, "runs tokens width"], record: Records
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


def _hardest(
    trainer: Trainer, task: PublicTask, spare: Records, kind: Canary, seeds: Seeds
) -> Records:
    """Return the record with the largest gradient at a start of no run."""
    if kind == "mislabelled":
        classes = int(task.public.labels.max()) + 1
        shift = seeds.numpy("wrong labels").integers(1, classes, len(spare))
        wrong = (spare.labels + torch.from_numpy(shift)) % classes
        spare = replace(spare, labels=wrong)
    start = trainer.start(task, seeds.child("a start of no run"))["context"]
    everybody = torch.ones(1, len(spare), dtype=torch.bool)
    batch = Batch(spare.features.unsqueeze(0), spare.labels.unsqueeze(0), everybody)
    forward = ContextGradients.forward(task, start.unsqueeze(0), batch)
    sizes = [some.flatten(2).norm(dim=2)[0] for some, _ in forward.by_record()]
    return spare.pick(torch.cat(sizes).argmax().view(1))


def _direction(
    task: PublicTask, trainer: Trainer, seeds: Seeds
) -> Float[Tensor, "tokens width"]:
    shape = (task.prompts.context_tokens, task.prompts.width)
    drawn = torch.randn(shape, generator=seeds.generator("canary direction"))
    norm = FAR_BEYOND * getattr(trainer, "clip_norm", 1.0)
    return norm * drawn / drawn.norm()


def _crafted(spare: Records, gradient: Float[Tensor, "tokens width"]) -> Records:
    return replace(spare.pick(torch.tensor([0])), crafted=gradient.unsqueeze(0))


def _uncrafted(records: Records, like: Tensor) -> Records:
    """Return ordinary records that can stand beside crafted ones."""
    return replace(records, crafted=torch.zeros(len(records), *like.shape))


def _join(one: Records, other: Records) -> Records:
    """Return the records of both: classifiers', without tokens."""
    crafted = None
    if one.crafted is not None and other.crafted is not None:
        crafted = torch.cat([one.crafted, other.crafted])
    return Records(
        torch.cat([one.features, other.features]),
        torch.cat([one.labels, other.labels]),
        crafted=crafted,
    )
