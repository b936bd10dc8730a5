"""A sweep over epsilon: what is kept of each run, and what seeds say together."""

from collections.abc import Sequence
from dataclasses import dataclass

from privaudit.auditor import Audit
from privaudit.errors import ConfigError
from privaudit.report.wording import epsilon as in_words
from privaudit.statistics.estimate import Estimate, mean_with_t, paired_difference


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
        gain: Accuracy on own classes beyond the zero-shot model's.
        certified: Epsilon that is proved for the adversary; None if nothing is.
    """

    mode: str
    epsilon: float | None
    seed: int
    success: Estimate
    auroc: Estimate
    local: Estimate
    neighbour: Estimate | None
    gain: Estimate
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
            gain=audit.utility.gain,
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
        gain: Mean gain over the zero-shot model.
        change: AUROC less the first cell's, paired by seed; None for that cell, or
            where fewer than two seeds are shared.
        certified: The largest over the seeds; None if it is missing in one.
    """

    mode: str
    epsilon: float | None
    seeds: tuple[int, ...]
    success: Estimate
    auroc: Estimate
    local: Estimate
    neighbour: Estimate | None
    gain: Estimate
    change: Estimate | None
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
    keys = sorted(groups, key=lambda key: (modes.index(key[0]), _noise(key[1])))
    return [_cell(groups[key], groups[keys[0]], len(keys)) for key in keys]


def _noise(epsilon: float | None) -> float:
    """Order epsilons by noise, none first."""
    return 0.0 if epsilon is None else 1 / epsilon


def _cell(
    points: Sequence[SweepPoint], reference: Sequence[SweepPoint], cells: int
) -> SweepCell:
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
        gain=mean_with_t([p.gain.value for p in points]),
        change=_change(points, reference, cells),
        certified=max(proved) if len(proved) == len(points) else None,
    )


def _change(
    points: Sequence[SweepPoint], reference: Sequence[SweepPoint], cells: int
) -> Estimate | None:
    """Return the paired difference; all of a table's hold together (Bonferroni)."""
    there = {p.seed: p.auroc.value for p in reference}
    shared = [p for p in points if p.seed in there]
    if points is reference or len(shared) < 2:
        return None
    return paired_difference(
        [p.auroc.value for p in shared],
        [there[p.seed] for p in shared],
        confidence=1 - 0.05 / max(1, cells - 1),
    )
