"""Does a claimed epsilon hold? Many independent runs, each with one canary or without.

A federation is trained again and again, with fresh randomness, on the same few records.
A coin decides whether one client also has the canary, or which of two records it has:
papers say that data sets "differ in one sample", which may be either. Everything else
is the same.
What somebody in one place sees of a run becomes one score: how far the prompt has moved
against the canary's gradient. Members' scores and others' bound epsilon from below.

Runs are stacked: hundreds cost little more than one.

Source: Jagielski, Ullman and Oprea, "Auditing differentially private machine learning",
NeurIPS 2020; canaries in gradient space as in Nasr et al., "Adversary instantiation:
lower bounds for differentially private machine learning", IEEE S&P 2021.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float

from privaudit.checks.dp_claim_canary import Bench, Canary, Where, small_task
from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.execution.jobs import Executor
from privaudit.execution.local import HERE
from privaudit.federated.runs.config import RunConfig, make_config
from privaudit.federated.runs.population import Population, populate
from privaudit.federated.trainer import TRAINERS, Trainer
from privaudit.federated.trainer_abilities import AcceptsGradientCanaries, claim_of
from privaudit.privacy.claim import Claim
from privaudit.privacy.privacy_record import privacy_record
from privaudit.statistics.claim import ClaimVerdict, Guarantee, judge_claim
from privaudit.statistics.epsilon.bound import (
    Adjacency,
    EpsilonBound,
    IndependentRuns,
    ManyRunsMethod,
)
from privaudit.statistics.epsilon.many_runs import MultiSplit, SplitThreshold

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
        records: Ordinary records of each client.
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
        """Return all fields as JSON knows them."""
        return {
            "config": self.config.model_dump(),
            "canary": self.canary,
            "where": self.where,
            "records": self.records,
            "bound": asdict(self.bound),
            "verdict": asdict(self.verdict),
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
    """Audit a claim under each adjacency that it may mean.

    Args:
        trainer: As of :func:`audit_claim`.
        settings: Likewise.
        adjacency: None audits both where the claim's source leaves it open, which takes
            twice as long, and else add/remove-one.
        **options: The others of :func:`audit_claim`.

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
        **fields: Fields of :class:`privaudit.federated.runs.config.RunConfig`: dataset, data,
            model, checkpoint, context_tokens, rounds.

    Raises:
        ConfigError: A field has no effect here, nothing is claimed, the trainer cannot
            take the canary, or there are too few runs.
    """
    _refuse_useless(fields)
    config = make_config(trainer, settings, clients=2, seed=seed, **fields)
    method = config.build_trainer()
    known = (population or populate(config)).task
    task = small_task(known, records + 1 + (canary == "opposed"), config.rounds)
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
    if is_open:
        said = LEFT_OPEN.format(adjacency=adjacency)
        verdict = replace(verdict, sentence=verdict.sentence + said)
    return ClaimAudit(
        config, KINDS[canary], where, records, shown, verdict, scores, coins
    )


def _refuse_useless(fields: Mapping[str, Any]) -> None:
    useless = sorted(fields.keys() - USED)
    if useless:
        raise ConfigError(
            f"{useless[0]} was given, but a claim audit does not use it: it has two "
            "clients that participate in every round. Fields are "
            f"{', '.join(USED)}."
        )


def _accepting(
    trainer: str, method: Trainer, claim: Claim, runs: int, records: int
) -> AcceptsGradientCanaries:
    if claim.epsilon is None:
        raise ConfigError(
            f"{trainer} claims no epsilon with these settings, so there is nothing to "
            "refute. Give --epsilon."
        )
    if not isinstance(method, AcceptsGradientCanaries):
        raise ConfigError(
            f"{trainer} does not take canaries of a chosen gradient. Use dp-fpl or "
            "dp-promptfl."
        )
    if runs < FEWEST_RUNS or records < 1:
        raise ConfigError(
            f"{runs} runs with {records} ordinary records were requested. Use at "
            f"least {FEWEST_RUNS} runs, a few hundred to show anything, and 1 record."
        )
    return method
