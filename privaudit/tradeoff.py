"""The trade-off: attack success and utility against the privacy budget, over seeds."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from privaudit.auditor import Auditor
from privaudit.config import build_trainer
from privaudit.errors import ConfigError
from privaudit.report.sweep import SweepPoint, write_sweep
from privaudit.training import train


def sweep(
    trainers: Sequence[str],
    epsilons: Sequence[float | None],
    modes: Sequence[str],
    seeds: Sequence[int],
    *,
    scenario: str = "prompt-release",
    clients: int | Literal["all"] = 3,
    shadows: int = 50,
    settings: Mapping[str, Any] | None = None,
    folder: Path | None = None,
    out: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[SweepPoint]:
    """Train and attack every combination, and draw the curve.

    Seeds are replicates: a seed moves partition, coin, start, batches and noise.

    Args:
        trainers: Names; those without an epsilon are run once for each seed.
        epsilons: Budgets; None is no privacy.
        modes: Of trainers that have modes.
        seeds: One whole run for each.
        scenario: Who attacks.
        clients: How many are attacked.
        shadows: Shadow models for each; 0 leaves shadow attacks out.
        settings: Further parameters of trainers that have an epsilon.
        folder: Where runs are kept.
        out: Where picture and tables go; nothing is written without it.
        progress: Called with a line after each run.

    Raises:
        ConfigError: There is nothing to sweep.
    """
    plan = [
        (trainer, mode, epsilon, seed)
        for trainer in trainers
        for mode, epsilon in _combinations(trainer, epsilons, modes)
        for seed in seeds
    ]
    if not plan:
        raise ConfigError("There is nothing to sweep: name trainers and seeds.")
    points = []
    for trainer, mode, epsilon, seed in plan:
        own = {**(settings or {}), "mode": mode, "epsilon": epsilon} if mode else {}
        run = train(trainer, folder=folder, settings=own, seed=seed, resume=True)
        audit = Auditor(run).attack(scenario, clients=clients, shadows=shadows)
        label = "none" if epsilon is None else mode
        points.append(SweepPoint.of(audit, _label(trainers, trainer, label), epsilon))
        if progress:
            progress(
                f"{trainer}, {label}, epsilon {epsilon}, seed {seed}: {audit.auroc}"
            )
    if out:
        write_sweep(points, out)
    return points


def _combinations(
    trainer: str, epsilons: Sequence[float | None], modes: Sequence[str]
) -> list[tuple[str, float | None]]:
    """Return modes and budgets to try; without a budget all modes are one."""
    if not hasattr(build_trainer(trainer, {}), "epsilon"):
        return [("", None)]
    combinations: list[tuple[str, float | None]] = []
    if None in epsilons:
        combinations.append((modes[0], None))
    return combinations + [(m, e) for m in modes for e in epsilons if e is not None]


def _label(trainers: Sequence[str], trainer: str, mode: str) -> str:
    """Name a curve; the trainer is part of it where there are several."""
    return mode if len(trainers) == 1 else f"{trainer}, {mode}"
