"""From a plan to its runs: each once, all of them valid, seed by seed."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from privaudit.auditing.named_attacks import refuse_all_members
from privaudit.auditing.scenario import find_scenario
from privaudit.core.errors import AttackError, ConfigError, MissingFileError
from privaudit.datasets.dataset import DATASETS
from privaudit.datasets.named_places import is_named, located
from privaudit.evaluation.tables.afterwards import Afterwards
from privaudit.evaluation.tables.metrics import CAPTIONS, attack_of
from privaudit.evaluation.tables.parts import Column, Elsewhere, TableRow
from privaudit.evaluation.tables.plan import TablePlan
from privaudit.federated.runs.config import RunConfig, make_config, parameters_of
from privaudit.federated.runs.reuse import usual_name

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
# Not ${seed}, a variable, nor {{seed}}, a chat template's.
_SEED = re.compile(r"(?<![${])\{seed\}(?!\})")
_PATHS = ("data", "model", "checkpoint")  # fields that may name a file or a folder


@dataclass(frozen=True)
class PlannedRun:
    """One run of a table.

    Attributes:
        fields: Of the configuration, the seed among them, paths expanded.
        digest: Of the complete configuration.
        run: What its folder is called.
        afterwards: What is measured once it is trained.
    """

    label: str
    trainer: str
    settings: Mapping[str, Any]
    fields: Mapping[str, Any]
    digest: str
    run: str
    afterwards: Afterwards = field(default_factory=Afterwards)


@dataclass(frozen=True)
class Schedule:
    """What a table trains.

    Attributes:
        runs: Each once, though several cells may show it; seed by seed, so that a table
            that was stopped has as many whole replicates as possible.
        places: The run's digest by row label, column name and seed.
    """

    runs: tuple[PlannedRun, ...]
    places: Mapping[tuple[str, str, int], str]


def schedule(plan: TablePlan) -> Schedule:
    """Return every run of a plan, with all configurations checked.

    Raises:
        ConfigError: A run cannot be configured, or a variable is not set; the text
            names the cell.
        MissingFileError: A data file or a model's folder is not there; one is named
            for each cell.
    """
    _check_shared(plan)
    runs: dict[str, PlannedRun] = {}
    missing: dict[str, None] = {}
    afterwards, places = _afterwards(plan), {}
    for seed in plan.seeds:
        for row, column in plan.cells:
            try:
                run = _planned(plan, row, column, seed, afterwards)
            except MissingFileError as error:
                missing[str(error)] = None
                continue
            runs.setdefault(run.digest, run)
            places[row.label, column.name, seed] = run.digest
    if missing:
        raise MissingFileError(" ".join(missing))
    return Schedule(tuple(runs.values()), places)


def names_by_seed(plan: TablePlan) -> bool:
    """Say whether a field of a cell holds the run's seed, as ``{seed}``."""
    values = [v for cell in plan.cells for v in plan.fields_of(*cell).values()]
    return any(isinstance(value, str) and _SEED.search(value) for value in values)


def _check_shared(plan: TablePlan) -> None:
    """Refuse a parameter for all trainers that none of them has: a slip of the pen."""
    known = {name for row in plan.rows for name in parameters_of(row.trainer)}
    shared = [("The plan's settings", plan.settings)]
    shared += [(f"The settings of column {c.name!r}", c.settings) for c in plan.columns]
    for where, settings in shared:
        for name in settings:
            if name not in known:
                raise ConfigError(
                    f"{where} hold {name!r}, and no row's trainer has that parameter. "
                    f"They have: {', '.join(sorted(known)) or 'none'}."
                )


def _afterwards(plan: TablePlan) -> Afterwards:
    """Return what every run of the plan is measured for, with paths expanded."""
    place = plan.elsewhere
    if place:
        DATASETS.find(place.dataset)
        data = _expanded({"data": place.data})["data"]
        place = Elsewhere(dataset=place.dataset, data=data)
    scenario = plan.scenario if plan.results else ""
    return Afterwards(plan.wanted, scenario, place, plan.shadows, plan.attacked)


def _planned(
    plan: TablePlan, row: TableRow, column: Column, seed: int, afterwards: Afterwards
) -> PlannedRun:
    label = f"{row.label}, {column.name}, seed {seed}"
    settings = settings_of(plan, row, column)
    try:
        fields = _expanded(plan.fields_of(row, column), seed)
        config = make_config(row.trainer, settings, **fields, seed=seed)
        DATASETS.find(config.dataset)
        _check_afterwards(config, afterwards)
    except ConfigError as error:
        raise ConfigError(f"{label}: {error}") from None
    return PlannedRun(
        label,
        row.trainer,
        settings,
        {**fields, "seed": seed},
        config.digest,
        usual_name(config),
        afterwards,
    )


def settings_of(plan: TablePlan, row: TableRow, column: Column) -> dict[str, Any]:
    """Return a cell's parameters; what is shared goes to trainers that have it."""
    known = parameters_of(row.trainer)
    shared = {name: v for name, v in plan.settings.items() if name in known}
    taken = {name: v for name, v in column.settings.items() if name in known}
    own = column.settings_for.get(row.label, {})
    return {**shared, **row.settings, **(taken or column.settings), **own}


def _check_afterwards(config: RunConfig, afterwards: Afterwards) -> None:
    """Refuse what the finished run could not be asked, before it is trained."""
    for metric in afterwards.metrics:
        if metric in CAPTIONS and config.task == "classification":
            raise ConfigError(
                f"{metric!r} is of generative models, and {config.model} "
                "classifies. Use a model such as tiny-llava, or local accuracy."
            )
    if not afterwards.scenario:
        return
    refuse_all_members(config)
    scenario = find_scenario(afterwards.scenario, afterwards.shadows)
    made = scenario.before_training(config.build_trainer(), config.task)
    readable = made.attacks
    for metric in afterwards.metrics:
        attack = attack_of(metric)
        if attack and attack not in readable:
            raise AttackError(
                f"{attack!r} cannot read what {config.model} answers. Those that can: "
                f"{', '.join(readable)}."
            )


def _expanded(fields: Mapping[str, Any], seed: int | None = None) -> dict[str, Any]:
    """Return the fields with variables and ~ replaced, and paths known to exist.

    ``{seed}`` is replaced where a seed is given.
    """
    full = {name: _expand(name, value, seed) for name, value in fields.items()}
    for name in _PATHS:
        _require(name, fields.get(name), full.get(name))
    return full


def _expand(name: str, value: Any, seed: int | None) -> Any:
    if not isinstance(value, str):
        return value
    if seed is not None:
        value = _SEED.sub(str(seed), value)

    def replace(found: re.Match[str]) -> str:
        variable = found[1] or found[2]
        if not os.environ.get(variable):
            raise ConfigError(
                f"{name} = {value!r} needs the environment variable {variable}, which "
                "is not set. Set it to the folder that is meant."
            )
        return os.environ[variable]

    kind, path = _split(_VARIABLE.sub(replace, value))
    return kind + str(Path(path).expanduser()) if path.startswith("~") else kind + path


def _split(text: str) -> tuple[str, str]:
    """Split KIND:PATH, as in surrogate:folder, behind the colon."""
    kind, colon, path = text.partition(":")
    return (kind + colon, path) if colon else ("", text)


def _require(name: str, given: Any, full: Any) -> None:
    """Refuse a path that is not there, before hours of runs that all fail."""
    if not isinstance(full, str):
        return
    path = full if is_named(full) else _split(full)[1]
    if is_named(path):
        located(path)
        return
    is_path = name != "model" or path.startswith(("/", "."))
    if is_path and not Path(path).exists():
        raise MissingFileError(
            f"There is no {path}, which the plan's {name} = {given!r} stands for. Put "
            "it there, or say where it is."
        )
