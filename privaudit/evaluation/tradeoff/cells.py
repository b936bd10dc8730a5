"""Points of a sweep, what is kept of each run, and cells, what seeds say together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import ConfigDict, Field

from privaudit.auditing.audit import Audit
from privaudit.core.errors import ConfigError
from privaudit.core.formatting import epsilon as in_words
from privaudit.core.provenance import Provenance
from privaudit.evaluation.metric import Metric, metrics_of
from privaudit.privacy.certificate import guarantee_of
from privaudit.statistics.curve import Groups, tpr_over_seeds
from privaudit.statistics.estimate import Estimate, mean_with_t, paired_difference

Key = tuple[str, float | None]  # a cell's mode and epsilon


def other_metrics() -> list[Metric[Any]]:
    """Return the metrics of attacks that have no field of their own in a sweep."""
    return [metric for metric in metrics_of("leak") if not metric.field]


@dataclass(frozen=True)
class Study:
    """What was trained on what, and attacked by whom: only one study's numbers compare.

    Attributes:
        dataset: Its name, with what tells data of one name apart, and who named them.
        model: Likewise.
    """

    scenario: str
    trainer: str
    dataset: str
    model: str


def study_of(audit: Audit) -> Study:
    """Return whose numbers an audit's are."""
    config = audit.run.config
    identity = config.identity

    def named(first: str, *more: str) -> str:
        found = [f"{name} {identity[name]}" for name in more if name in identity]
        return ", ".join([str(identity.get(first, getattr(config, first))), *found])

    data = [audit.run.origin, named("dataset", "data", "classes")]
    return Study(
        audit.scenario.name,
        config.trainer,
        " ".join(filter(None, data)),
        named("model", "checkpoint"),
    )


@dataclass(frozen=True)
class SweepPoint:
    """One run of a sweep.

    Attributes:
        mode: How noise is added, such as "published-paper" or "sound"; what a mode does
            besides, it does without noise too.
        epsilon: As claimed or asked for; None without noise.
        seed: Of the run: the replicate.
        local: Accuracy on a client's own classes.
        neighbour: On other clients' classes; None if every client owns all.
        gain: Accuracy on own classes beyond the zero-shot model's; None without one.
        certified: Epsilon that is proved for the adversary; None if nothing is.
        guarantee: Of which unit, adjacency and delta that is, in words.
        attack: Whose AUROC and success rate they are.
        metric: What utility is measured by.
        scores: The attack's, of members and of non-members; None if not kept.
        others: What metrics of attacks besides AUROC and success rate say, by code.
        study: Of what; None of a sweep that an earlier version wrote.
        computed: With what the run was trained; nothing of such a sweep.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(arbitrary_types_allowed=True)

    mode: str
    epsilon: float | None
    seed: int
    success: Estimate
    auroc: Estimate
    local: Estimate
    neighbour: Estimate | None
    gain: Estimate | None
    certified: float | None
    guarantee: str
    attack: str
    metric: str
    scores: Annotated[Groups | None, Field(exclude=True)] = field(
        default=None, repr=False, compare=False
    )
    study: Study | None = None
    computed: Provenance = field(default_factory=Provenance)
    others: Mapping[str, Estimate] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        audit: Audit,
        mode: str,
        epsilon: float | None,
        attack: str | None = None,
        replicate: int | None = None,
    ) -> "SweepPoint":
        """Return what a sweep keeps of an audit.

        The attack that carries the numbers is the headline by default, and a replicate
        may stand in place of the run's seed.
        """
        leak = audit.results[attack] if attack else audit.headline
        utility = audit.measured_utility
        groups = [client.groups for client in leak.clients]
        seed = audit.run.config.seed if replicate is None else replicate
        assert seed is not None  # a sweep names its seeds
        members, others = (np.concatenate(side) for side in zip(*groups, strict=True))
        return cls(
            mode=mode,
            epsilon=epsilon,
            seed=seed,
            success=leak.success,
            auroc=leak.auroc,
            local=utility.local,
            neighbour=utility.neighbour,
            gain=utility.gain,
            certified=audit.certified_epsilon,
            guarantee=guarantee_of(audit.certificate),
            attack=leak.attack,
            metric=utility.metric,
            study=study_of(audit),
            computed=Provenance.of(audit.run.header),
            scores=(members, others),
            others={m.code: m.shown(leak) for m in other_metrics()},
        )


@dataclass(frozen=True)
class SweepCell:
    """One mode and epsilon: means over seeds, with Student's intervals.

    Attributes:
        neighbour: None if it is missing in a run; likewise ``gain``.
        reference: The cell that ``change`` is to: that without noise of the same mode
            where there is one, else the first; None for such a cell itself.
        change: AUROC less the reference's, paired by seed; None where there is none, or
            where fewer than two seeds are shared.
        certified: The largest over the seeds; None if it is missing in one.
        tpr: True-positive rate at a false-positive rate of 1 %, of all seeds' records
            at one threshold; None where no scores were kept.
        others: Means of other metrics of attacks by code, of those in all its runs.
    """

    mode: str
    epsilon: float | None
    seeds: tuple[int, ...]
    success: Estimate
    auroc: Estimate
    local: Estimate
    neighbour: Estimate | None
    gain: Estimate | None
    reference: Key | None
    change: Estimate | None
    certified: float | None
    tpr: Estimate | None
    others: Mapping[str, Estimate] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Mode and epsilon in words."""
        budget = "no ε" if self.epsilon is None else f"ε {in_words(self.epsilon)}"
        return f"{self.mode}, {budget}"


def aggregate(
    points: Sequence[SweepPoint], *, against_first: bool = False
) -> list[SweepCell]:
    """Return the cells, by mode in order of appearance, the least noise first.

    Differences are to the cell without noise of the same mode where there is one, else,
    or if that is asked, to the first cell.

    Raises:
        ConfigError: There is no point, or a seed occurs twice in a cell.
    """
    if not points:
        raise ConfigError("A sweep needs points, and there are none. Add runs.")
    groups: dict[Key, list[SweepPoint]] = {}
    for point in points:
        groups.setdefault((point.mode, point.epsilon), []).append(point)
    modes = list(dict.fromkeys(point.mode for point in points))
    keys = sorted(groups, key=lambda key: (modes.index(key[0]), _noise(key[1])))
    references = {
        key: keys[0]
        if against_first or (key[0], None) not in groups
        else (key[0], None)
        for key in keys
    }
    differences = sum(key != reference for key, reference in references.items())
    return [_cell(groups, key, references[key], differences) for key in keys]


def _noise(epsilon: float | None) -> float:
    """Order epsilons by noise, none first."""
    return 0.0 if epsilon is None else 1 / epsilon


def _cell(
    groups: Mapping[Key, Sequence[SweepPoint]],
    key: Key,
    reference: Key,
    differences: int,
) -> SweepCell:
    points = groups[key]
    proved = [p.certified for p in points if p.certified is not None]
    scores = [p.scores for p in points if p.scores is not None]
    compared = reference != key
    return SweepCell(
        mode=key[0],
        epsilon=key[1],
        seeds=_seeds(points),
        success=mean_with_t([p.success.value for p in points]),
        auroc=mean_with_t([p.auroc.value for p in points]),
        local=mean_with_t([p.local.value for p in points]),
        neighbour=_mean([p.neighbour for p in points]),
        gain=_mean([p.gain for p in points]),
        reference=reference if compared else None,
        change=_change(points, groups[reference], differences) if compared else None,
        certified=max(proved) if len(proved) == len(points) else None,
        tpr=tpr_over_seeds(scores) if len(scores) == len(points) else None,
        others={
            m.code: m.over_seeds([p.others[m.code].value for p in points])
            for m in other_metrics()
            if all(m.code in p.others for p in points)
        },
    )


def _mean(values: Sequence[Estimate | None]) -> Estimate | None:
    """Return the mean over seeds; None where one lacks it."""
    found = [one.value for one in values if one is not None]
    return mean_with_t(found) if len(found) == len(values) else None


def _seeds(points: Sequence[SweepPoint]) -> tuple[int, ...]:
    seeds = tuple(point.seed for point in points)
    if len(set(seeds)) < len(seeds):
        raise ConfigError(
            f"The cell {points[0].mode!r} at epsilon {in_words(points[0].epsilon)} "
            f"holds seeds {sorted(seeds)}: one occurs twice, and a copy is no "
            "replicate. Leave it out."
        )
    return seeds


def _change(
    points: Sequence[SweepPoint], reference: Sequence[SweepPoint], differences: int
) -> Estimate | None:
    """Return the paired difference; all of a table's hold together (Bonferroni)."""
    there = {p.seed: p.auroc.value for p in reference}
    shared = [p for p in points if p.seed in there]
    if len(shared) < 2:
        return None
    return paired_difference(
        [p.auroc.value for p in shared],
        [there[p.seed] for p in shared],
        confidence=1 - 0.05 / differences,
    )
