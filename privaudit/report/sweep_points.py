"""A sweep over epsilon: what is kept of each run, and what seeds say together."""

from collections.abc import Sequence
from dataclasses import dataclass

from privaudit.auditor import Audit
from privaudit.errors import ConfigError
from privaudit.report.wording import epsilon as in_words
from privaudit.statistics.estimate import Estimate, mean_with_t


@dataclass(frozen=True)
class SweepPoint:
    """One run of a sweep.

    Attributes:
        mode: How noise is added, such as "published-paper" or "sound"; "none" without.
        epsilon: As claimed or asked for; None without noise.
        seed: Of the run: the replicate.
        success: Of the guesses, learned on shadow models where there are some.
        auroc: The headline attack's AUROC.
        local: Accuracy on a client's own classes.
        neighbour: On other clients' classes; None if every client owns all.
        certified: Epsilon that is proved for the adversary; None if nothing is.
    """

    mode: str
    epsilon: float | None
    seed: int
    success: Estimate
    auroc: Estimate
    local: Estimate
    neighbour: Estimate | None
    certified: float | None = None

    @classmethod
    def of(cls, audit: Audit, mode: str, epsilon: float | None) -> "SweepPoint":
        """Return what a sweep keeps of an audit."""
        return cls(
            mode=mode,
            epsilon=epsilon,
            seed=audit.run.config.seed,
            success=audit.guesses.success,
            auroc=audit.auroc,
            local=audit.utility.local,
            neighbour=audit.utility.neighbour,
            certified=audit.certified_epsilon,
        )


@dataclass(frozen=True)
class SweepCell:
    """One mode and epsilon: means over seeds, with Student's intervals.

    Attributes:
        mode: As in the points.
        epsilon: As in the points.
        seeds: The replicates.
        success: Mean success rate.
        auroc: Mean AUROC.
        local: Mean accuracy on own classes.
        neighbour: Mean accuracy on others' classes; None if there is none.
        certified: The largest over the seeds; None if it is missing in one.
    """

    mode: str
    epsilon: float | None
    seeds: tuple[int, ...]
    success: Estimate
    auroc: Estimate
    local: Estimate
    neighbour: Estimate | None
    certified: float | None


def aggregate(points: Sequence[SweepPoint]) -> list[SweepCell]:
    """Return the cells, by mode in order of appearance, the least noise first.

    Raises:
        ConfigError: There is no point, or a seed occurs twice in a cell.
    """
    if not points:
        raise ConfigError("A sweep needs points, and there are none. Add runs.")
    groups: dict[tuple[str, float | None], list[SweepPoint]] = {}
    for found in points:
        groups.setdefault((found.mode, found.epsilon), []).append(found)
    modes = list(dict.fromkeys(found.mode for found in points))
    return [
        _cell(groups[key])
        for key in sorted(groups, key=lambda key: (modes.index(key[0]), _noise(key[1])))
    ]


def _noise(epsilon: float | None) -> float:
    """Order epsilons by noise, none first."""
    return 0.0 if epsilon is None else 1 / epsilon


def _cell(points: Sequence[SweepPoint]) -> SweepCell:
    first, seeds = points[0], tuple(found.seed for found in points)
    if len(set(seeds)) < len(seeds):
        raise ConfigError(
            f"The cell {first.mode!r} at epsilon {in_words(first.epsilon)} holds seeds "
            f"{sorted(seeds)}: one occurs twice, and a copy is no replicate. Leave it "
            "out."
        )
    others = [p.neighbour.value for p in points if p.neighbour is not None]
    proved = [p.certified for p in points if p.certified is not None]
    return SweepCell(
        mode=first.mode,
        epsilon=first.epsilon,
        seeds=seeds,
        success=mean_with_t([p.success.value for p in points]),
        auroc=mean_with_t([p.auroc.value for p in points]),
        local=mean_with_t([p.local.value for p in points]),
        neighbour=mean_with_t(others) if len(others) == len(points) else None,
        certified=max(proved) if len(proved) == len(points) else None,
    )
