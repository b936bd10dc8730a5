"""Audit of a claimed epsilon: many independent runs, each with one canary or without.

A federation is trained again and again, with fresh randomness, on the same few records.
A coin decides whether one client also has the canary, or which of two records it has:
papers say that data sets "differ in one sample", which may be either. Everything else
is the same. What somebody in one place sees of a run becomes one score: how far the
prompt has moved against the canary's gradient. Members' scores and others' bound
epsilon from below.

Runs are stacked: hundreds cost little more than one.

Source: Jagielski, Ullman and Oprea, "Auditing differentially private machine learning",
NeurIPS 2020; canaries in gradient space as in Nasr et al., "Adversary instantiation:
lower bounds for differentially private machine learning", IEEE S&P 2021.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from privaudit.core.errors import ConfigError, TooFewRecordsError, UnknownNameError
from privaudit.core.seeds import Seeds
from privaudit.execution.executors import HERE
from privaudit.execution.jobs import Executor, Job, finish_all
from privaudit.federation.batches import Batch
from privaudit.federation.rounds import Federation, give_away, run_round
from privaudit.federation.trainer import (
    TRAINERS,
    AcceptsGradientCanaries,
    Records,
    Task,
    Trainer,
    claim_of,
)
from privaudit.privacy.certificate import privacy_record
from privaudit.privacy.events import Claim
from privaudit.runs.config import RunConfig, make_config
from privaudit.runs.population import Population, crafted_norm, populate
from privaudit.statistics.claim import ClaimVerdict, Guarantee, judge_claim
from privaudit.statistics.epsilon.bound import (
    Adjacency,
    EpsilonBound,
    IndependentRuns,
    ManyRunsMethod,
)
from privaudit.statistics.epsilon.many_runs import MultiSplit, SplitThreshold
from privaudit.statistics.progress import Watcher
from privaudit.tuning.prompts.gradients import ContextGradients

Canary = Literal["opposed", "gradient", "mislabelled", "picture"]
Where = Literal["peer", "released"]
CLIENTS_AT_ONCE = 256
TARGET, BYSTANDER = "client-0", "client-1"


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
            target = _uncrafted(target, direction)
            bystander = _uncrafted(bystander, direction)
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
        runs = range(len(coins))
        chunks = [runs[first : first + at_once] for first in runs[::at_once]]
        jobs = [
            Job(f"runs from {some.start} on", Bench.some, (self, some, coins, where))
            for some in chunks
        ]
        found, done = {}, 0
        with closing(executor.run(jobs)) as finished:
            for one in finish_all(finished):
                found[one.job.name] = one.value
                done += len(one.value[0])
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


BoundName = Literal["split", "multi-split"]
BOUNDS: Mapping[BoundName, type[ManyRunsMethod]] = {
    "split": SplitThreshold,
    "multi-split": MultiSplit,
}
FEWEST_RUNS = 20
LEFT_OPEN = (
    " The published claim calls data sets neighbours that differ in one sample: whether "
    "one is added or removed, or replaced, it leaves open. Audited is {adjacency}."
)
USED = (
    "dataset",
    "data",
    "image_column",
    "label_column",
    "classes",
    "model",
    "checkpoint",
    "context_tokens",
    "rounds",
)
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
        canary: What was put in by the coin, in words.
        where: What the adversary sees: a peer what the server sends, somebody with the
            released model that alone.
        is_open: Whether the claim's source leaves open which adjacency it means.
    """

    config: RunConfig
    canary: str
    where: Where
    records: int
    verdict: ClaimVerdict
    scores: Float[np.ndarray, " runs"]
    is_member: Bool[np.ndarray, " runs"]
    is_open: bool = False

    @property
    def bound(self) -> EpsilonBound:
        """What the verdict is about."""
        return self.verdict.bound

    @property
    def sentence(self) -> str:
        """The verdict, and which adjacency it is about where the claim may mean two."""
        said = LEFT_OPEN.format(adjacency=self.bound.adjacency)
        return self.verdict.sentence + said * self.is_open

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON knows them."""
        return {
            "config": self.config.model_dump(),
            "canary": self.canary,
            "where": self.where,
            "records": self.records,
            "bound": asdict(self.bound),
            "verdict": {
                "kind": self.verdict.kind,
                "sentence": self.sentence,
                "alarm": self.verdict.alarm,
            },
            "scores": self.scores.tolist(),
            "is_member": self.is_member.tolist(),
        }


@dataclass(frozen=True)
class ClaimReadings:
    """What many runs say about a claim under each adjacency that it may mean.

    Attributes:
        audits: One for each adjacency, on coins of the same seed.
    """

    audits: Sequence[ClaimAudit]

    @property
    def refuted(self) -> bool:
        """Whether it is refuted whatever it means.

        So a claim that holds under the adjacency that was meant is refuted no more
        often than by that one's audit: nothing has to be corrected for two.
        """
        return all(one.verdict.kind == "REFUTED" for one in self.audits)

    @property
    def alarm(self) -> bool:
        """Whether a bound is beyond what was certified."""
        return any(one.verdict.alarm for one in self.audits)

    @property
    def sentence(self) -> str:
        """Say of all audits together what holds; empty of a single one."""
        if len(self.audits) == 1:
            return ""
        refuted = [
            one.bound.adjacency for one in self.audits if one.verdict.kind == "REFUTED"
        ]
        if self.refuted:
            return f"Refuted whatever neighbours are: {' and '.join(refuted)}."
        if refuted:
            return f"Refuted for {refuted[0]} alone, which the claim need not mean."
        return "Refuted for neither adjacency."

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON knows: a single audit as it is, several in a list."""
        audits = [one.to_dict() for one in self.audits]
        if len(audits) == 1:
            return audits[0]
        return {
            "refuted": self.refuted,
            "alarm": self.alarm,
            "sentence": self.sentence,
            "audits": audits,
        }


def audit_readings(
    trainer: str,
    settings: Mapping[str, Any],
    adjacency: Adjacency | Literal["both"] | None = None,
    **options: Any,
) -> ClaimReadings:
    """Audit a claim under each adjacency that it may mean, as :func:`audit_claim` does.

    By default both where the claim's source leaves it open, which takes twice as long,
    and else add/remove-one.

    Raises:
        ConfigError: As there, or both were requested of a claim about one.
    """
    method = make_config(trainer, settings, clients=2).build_trainer()
    is_open = leaves_adjacency_open(method)
    if adjacency is None:
        adjacency = "both" if is_open else "add/remove-one"
    if adjacency == "both" and not is_open:
        raise ConfigError(
            f"Both adjacencies were requested, and this claim of {trainer} is about "
            "add/remove-one alone. Leave --adjacency out, or use a published mode."
        )
    readings: Sequence[Adjacency] = (
        ("add/remove-one", "replace-one") if adjacency == "both" else (adjacency,)
    )
    return ClaimReadings(
        [audit_claim(trainer, settings, adjacency=one, **options) for one in readings]
    )


def leaves_adjacency_open(method: Trainer) -> bool:
    """Say whether a claim is a published one that speaks of one sample that differs."""
    return str(getattr(method, "mode", "")).startswith("published")


def audit_claim(
    trainer: str,
    settings: Mapping[str, Any],
    *,
    canary: Canary = "opposed",
    where: Where = "peer",
    runs: int = 1000,
    adjacency: Adjacency = "add/remove-one",
    bound: BoundName = "split",
    records: int = 4,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    population: Population | None = None,
    executor: Executor = HERE,
    **fields: Any,
) -> ClaimAudit:
    """Audit a claimed epsilon: a lower bound from many runs with and without a canary.

    Each run is a federation of two clients; a fair coin inserts the canary into
    client 0. The bound is Clopper-Pearson's, at a threshold of other runs.

    Args:
        trainer: Name of a DP trainer that accepts gradient canaries.
        settings: Its parameters, including epsilon.
        canary: The record that the coin inserts.
        where: The adversary's view: "peer" or "released".
        adjacency: What the coin decides: whether the canary is there, or whether it or
            another record is (crafted canaries: its opposite). A claim of a published
            mode is meant for either; a sound one for add/remove-one.
        bound: "split": one half of the runs chooses the threshold, the other bounds.
            "multi-split": the median over 101 random halvings, so that the bound hangs
            on no single one (:class:`privaudit.statistics.epsilon.many_runs.MultiSplit`).
        runs: Independent runs, at least 20; a bound above 0 takes a few hundred.
        records: Other records per client, at least 1.
        seed: Seed of coins, initialisation, batches and noise.
        progress: Called with the number of finished runs, and of all.
        population: Loaded records of the same configuration, to save time.
        executor: Where runs are trained, 128 at a time; by default in this process.
        **fields: Fields of :class:`privaudit.runs.config.RunConfig`: dataset, data,
            model, checkpoint, context_tokens, rounds.

    Raises:
        ConfigError: A field has no effect here, nothing is claimed, the trainer cannot
            take the canary, there are too few runs, or there is no canary, view,
            adjacency or bound of that name.
    """
    _refuse_useless(fields)
    _refuse_unknown("canary", canary, get_args(Canary))
    _refuse_unknown("view", where, get_args(Where))
    _refuse_unknown("adjacency", adjacency, get_args(Adjacency))
    _refuse_unknown("bound", bound, get_args(BoundName))
    config = make_config(trainer, settings, clients=2, seed=seed, **fields)
    method = config.build_trainer()
    known = (population or populate(config)).task
    # Two small clients, all of whose records are trained on.
    most = records + 1 + (canary == "opposed")
    candidates = {TARGET: most, BYSTANDER: most}
    task = replace(known, candidates=candidates, member_share=1.0, rounds=config.rounds)
    claim = claim_of(method, task)
    method = _accepting(trainer, method, claim, runs, records)
    seeds = Seeds(seed).child("claim audit")
    replaced = adjacency == "replace-one"
    bench = Bench.prepare(method, task, canary, records, seeds, replaced=replaced)
    coins = seeds.stream("canary coins").coins(0.5, runs)
    scores, events = bench.scores(coins, where, progress, executor)
    declared = not TRAINERS.is_own(method)
    record = privacy_record(claim, events, sends_updates=True, declared=declared)
    certified = record["certified"][where]
    audited = IndependentRuns(scores, coins, adjacency=adjacency)
    shown = BOUNDS[bound](delta=claim.delta)(audited)
    is_open = leaves_adjacency_open(method)
    meant = adjacency if is_open else "add/remove-one"
    claimed = Guarantee.stated(claim.epsilon, claim.delta, adjacency=meant)
    proved = Guarantee.stated(certified["epsilon"], claim.delta)
    verdict = judge_claim(claimed, proved, shown)
    return ClaimAudit(
        config, KINDS[canary], where, records, verdict, scores, coins, is_open
    )


def _refuse_useless(fields: Mapping[str, Any]) -> None:
    useless = sorted(fields.keys() - USED)
    if useless:
        raise ConfigError(
            f"{useless[0]} was given, but a claim audit does not use it: it has two "
            "clients that participate in every round. Fields are "
            f"{', '.join(USED)}."
        )


def _refuse_unknown(kind: str, name: object, known: Collection[str]) -> None:
    if name not in known:
        raise UnknownNameError(kind, str(name), known)


def _accepting(
    trainer: str, method: Trainer, claim: Claim, runs: int, records: int
) -> AcceptsGradientCanaries:
    if not isinstance(method, AcceptsGradientCanaries):
        raise ConfigError(
            f"{trainer} does not take canaries of a chosen gradient. Use dp-fpl or "
            "dp-promptfl."
        )
    if claim.epsilon is None:
        raise ConfigError(
            f"{trainer} claims no epsilon with these settings, so there is nothing to "
            "refute. Give --epsilon."
        )
    if runs < FEWEST_RUNS or records < 1:
        raise ConfigError(
            f"{runs} runs with {records} ordinary records were requested. Use at "
            f"least {FEWEST_RUNS} runs, a few hundred to show anything, and 1 record."
        )
    return method
