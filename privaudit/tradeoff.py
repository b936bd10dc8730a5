"""The trade-off: attack success and utility against the privacy budget, over seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from privaudit.audit import Audit
from privaudit.auditor import Auditor, find_scenario
from privaudit.config import make_config, parameters_of
from privaudit.errors import ConfigError
from privaudit.report.store import save_audit
from privaudit.report.sweep import SweepPoint, write_sweep
from privaudit.training import train

SWEPT = {"field": ("trainer", "settings", "seed"), "parameter": ("mode", "epsilon")}


@dataclass(frozen=True)
class _Cell:
    """One combination of a sweep, to be run with every seed.

    Attributes:
        label: Of its curve.
        trainer: Its name.
        epsilon: None is no noise.
        settings: The trainer's parameters.
    """

    label: str
    trainer: str
    epsilon: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


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
    fields: Mapping[str, Any] | None = None,
    folder: Path | None = None,
    out: Path | None = None,
    against_first: bool = False,
    progress: Callable[[str], None] | None = None,
) -> list[SweepPoint]:
    """Train and attack every combination, and draw the curve.

    Args:
        trainers: Names; those without an epsilon are run once for each seed.
        epsilons: Budgets; None is no noise, in every mode: modes differ without it too.
        modes: Of trainers that have modes.
        seeds: Replicates; each moves partition, coin, start, batches and noise.
        scenario: Who attacks; each audit is saved with its run as it is made.
        clients: How many are attacked.
        shadows: Shadow models for each; 0 leaves shadow attacks out.
        settings: Further parameters of trainers that have an epsilon.
        fields: Of :class:`privaudit.config.RunConfig`, for all runs.
        folder: Where runs are kept.
        out: Where picture and tables go; nothing is written without it.
        against_first: Whether all differences are to the first row of the table.
        progress: Called with a line after each run.

    Raises:
        ConfigError: Nothing to sweep, a copy, or an impossible value; nothing has run.
    """
    find_scenario(scenario, shadows)
    _refuse_copies(trainers=trainers, epsilons=epsilons, modes=modes, seeds=seeds)
    cells, points = _plan(trainers, epsilons, modes, settings or {}), []
    for cell, config in _checked(cells, seeds, fields or {}):
        run = train(cell.trainer, folder=folder, resume=True, **config)
        audit = Auditor(run).attack(scenario, clients=clients, shadows=shadows)
        points.append(_keep(cell, audit, progress))
    if out:
        write_sweep(points, out, against_first=against_first)
    return points


def _refuse_copies(**lists: Sequence[Any]) -> None:
    for name, entries in lists.items():
        twice = [str(e).lower() for e in dict.fromkeys(entries) if entries.count(e) > 1]
        if twice:
            raise ConfigError(
                f"The {name} hold {', '.join(twice)} more than once, and a copy is no "
                "replicate. Name each once."
            )


def _refuse_swept(kind: str, given: Mapping[str, Any]) -> None:
    for name in SWEPT[kind]:
        if name in given:
            raise ConfigError(
                f"The {kind} {name} = {given[name]} was given for all runs, and a "
                "sweep sets it for each. Leave it out, and name what to sweep."
            )


def _plan(
    trainers: Sequence[str],
    epsilons: Sequence[float | None],
    modes: Sequence[str],
    settings: Mapping[str, Any],
) -> list[_Cell]:
    _refuse_swept("parameter", settings)
    cells = []
    for trainer in trainers:
        if "epsilon" not in parameters_of(trainer):
            cells.append(_Cell(trainer, trainer))
            continue
        cells += [
            _Cell(
                mode if len(trainers) == 1 else f"{trainer}, {mode}",
                trainer,
                epsilon,
                {**settings, "mode": mode, "epsilon": epsilon},
            )
            for mode in modes
            for epsilon in epsilons
        ]
    return cells


def _checked(
    cells: Sequence[_Cell], seeds: Sequence[int], fields: Mapping[str, Any]
) -> list[tuple[_Cell, dict[str, Any]]]:
    """Return every run of the sweep with its configuration, all of them valid."""
    _refuse_swept("field", fields)
    runs = [
        (cell, {**fields, "settings": cell.settings, "seed": seed})
        for cell in cells
        for seed in seeds
    ]
    if not runs:
        raise ConfigError("There is nothing to sweep: name trainers and seeds.")
    for cell, config in runs:
        make_config(cell.trainer, **config)
    return runs


def _keep(
    cell: _Cell, audit: Audit, progress: Callable[[str], None] | None
) -> SweepPoint:
    save_audit(audit)
    if progress:
        progress(
            f"{cell.label}, epsilon {str(cell.epsilon).lower()}, seed "
            f"{audit.run.config.seed}: {audit.auroc}"
        )
    return SweepPoint.of(audit, cell.label, cell.epsilon)
