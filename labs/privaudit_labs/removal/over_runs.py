"""Removal over several runs of one setting: the means of its effects."""

from collections.abc import Sequence
from dataclasses import dataclass

from privaudit.core.errors import IncompatibleRunsError
from privaudit.evaluation.compare.measured import refuse_mixture
from privaudit.runs.run import Run
from privaudit.statistics.estimate import Estimate, mean_with_t
from privaudit_labs.removal.removal import Paired, Removal


@dataclass(frozen=True)
class Effect:
    """A mean over runs of what differs between two trainings, with Student's interval.

    Attributes:
        loss: Of the mean privacy loss.
        as_exposed: Of the share that loses as much as those who went.
    """

    auroc: Estimate
    loss: Estimate
    as_exposed: Estimate


@dataclass(frozen=True)
class RemovalOverRuns:
    """What came of removal in several runs that differ in their seed alone.

    A run is one replicate: its partition, coins, training and random removal are drawn
    anew, so that intervals are for other runs of the setting.

    Attributes:
        removals: One for each run.
        exposed_effect: Without the most exposed, less before: below 0 is a gain.
        random_effect: Without as many at random, less before.
        onion: Without the most exposed, less without as many at random.
    """

    removals: Sequence[Removal]
    exposed_effect: Effect
    random_effect: Effect
    onion: Effect


def check_replicates(runs: Sequence[Run]) -> None:
    """Raise unless runs are of one setting, each with a seed of its own.

    Raises:
        IncompatibleRunsError: They differ in more than the seed, or share one.
    """
    refuse_mixture(runs)
    seeds = [run.config.seed for run in runs]
    if len(set(seeds)) < len(seeds):
        raise IncompatibleRunsError(
            f"Replicates have a seed each, and these runs have the seeds "
            f"{', '.join(map(str, seeds))}. Give each run once, trained with --seed."
        )


def over_runs(removals: Sequence[Removal]) -> RemovalOverRuns:
    """Return the means of the effects in at least two runs."""
    return RemovalOverRuns(
        removals,
        _mean([one.exposed_effect for one in removals]),
        _mean([one.random_effect for one in removals]),
        _mean([one.onion for one in removals]),
    )


def _mean(effects: Sequence[Paired]) -> Effect:
    return Effect(
        mean_with_t([one.auroc.estimate.value for one in effects]),
        mean_with_t([one.loss.value for one in effects]),
        mean_with_t([one.as_exposed.estimate.value for one in effects]),
    )
