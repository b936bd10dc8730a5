"""From a plan to its runs: each once, all of them valid, seed by seed."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from privaudit.auditing.named_attacks import refuse_all_members
from privaudit.auditing.scenario import find_scenario
from privaudit.core.errors import (
    AttackError,
    ConfigError,
    DatasetError,
    MissingFileError,
    nearest,
)
from privaudit.datasets.dataset import DATASETS
from privaudit.datasets.named_places import is_named, located, search_path
from privaudit.datasets.sources import OnDisk, load_dataset
from privaudit.evaluation.tables.afterwards import Afterwards
from privaudit.evaluation.tables.metrics import CAPTIONS, attack_of
from privaudit.evaluation.tables.parts import Column, Elsewhere, TableRow
from privaudit.evaluation.tables.plan import TablePlan
from privaudit.federated.runs.config import RunConfig, make_config, parameters_of
from privaudit.federated.runs.reuse import usual_name

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
# Not ${seed}, a variable, nor {{seed}}, a chat template's.
_SEED = re.compile(r"(?<![${])\{seed\}(?!\})")
Place = tuple[str, str, int]  # row label, column name, seed
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
        places: The run's digest; empty for a cell that is not trained and lacks the
            data that it depends on.
    """

    runs: tuple[PlannedRun, ...]
    places: Mapping[Place, str]


def schedule(
    plan: TablePlan, trained: Callable[[str, str, int], bool] = lambda *_: True
) -> Schedule:
    """Return every run of a plan, with all configurations checked.

    Args:
        plan: The table's.
        trained: Whether a cell is, by row label, column name and seed: what the others
            need may be missing. By default all are.

    Raises:
        ConfigError: A run cannot be configured, and the text names the cell; or
            variables are not set, and it names them all.
        MissingFileError: Data, models' folders or checkpoints are not there; the text
            names them all.
    """
    _check_shared(plan)
    _require_places(plan, trained)
    runs: dict[str, PlannedRun] = {}
    places: dict[Place, str] = {}
    afterwards = _afterwards(plan)
    for seed in plan.seeds:
        for row, column in plan.cells:
            place = row.label, column.name, seed
            try:
                run = _planned(plan, row, column, seed, afterwards)
            except MissingFileError:
                if trained(*place):
                    raise
                places[place] = ""
                continue
            runs.setdefault(run.digest, run)
            places[place] = run.digest
    return Schedule(tuple(runs.values()), places)


def require_data(planned: Schedule) -> None:
    """Read every data set that lies on a disk, once.

    Raises:
        DatasetError: Some cannot be used, or are incomplete; the text names all.
    """
    asked: dict[tuple[Any, ...], None] = {}
    for run in planned.runs:
        config = make_config(run.trainer, run.settings, **run.fields)
        asked[config.dataset, config.data, config.columns, config.classes] = None
        if away := run.afterwards.elsewhere:
            asked[away.dataset, away.data] = None
    wrong: dict[str, None] = {}
    for dataset in asked:
        if isinstance(entry := DATASETS.find(dataset[0]), OnDisk) and not entry.fetch:
            try:
                load_dataset(*dataset)
            except (ConfigError, MissingFileError) as error:
                wrong[str(error)] = None
    if wrong:
        raise DatasetError(" ".join(wrong))


def names_by_seed(plan: TablePlan) -> bool:
    """Say whether a field of a cell holds the run's seed, as ``{seed}``."""
    values = [v for cell in plan.cells for v in plan.fields_of(*cell).values()]
    return any(isinstance(value, str) and _SEED.search(value) for value in values)


def _check_shared(plan: TablePlan) -> None:
    """Refuse a parameter for all trainers that none of them has: a slip of the pen."""
    known = {name for row in plan.rows for name in parameters_of(row.trainer)}
    shared = [("The plan's settings, or --set,", plan.settings)]
    shared += [(f"The settings of column {c.name!r}", c.settings) for c in plan.columns]
    for where, settings in shared:
        for name in settings:
            if name not in known:
                raise ConfigError(
                    f"{where} hold {name!r}, and no row's trainer has that parameter."
                    f"{nearest(name, known)} They have: {', '.join(sorted(known)) or 'none'}."
                )


def _require_places(plan: TablePlan, trained: Callable[[str, str, int], bool]) -> None:
    """Refuse variables and paths that are not there, before hours of failing runs."""
    asked = {
        (name, _SEED.sub(str(seed), value)): None
        for seed in plan.seeds
        for row, column in plan.cells
        if trained(row.label, column.name, seed)
        for name, value in plan.fields_of(row, column).items()
        if isinstance(value, str)
    }
    if plan.elsewhere and plan.elsewhere.data:
        asked["data", plan.elsewhere.data] = None
    _require_variables(text for _, text in asked)
    missing = [(n, t) for n, t in asked if n in _PATHS and not _is_there(n, _expand(t))]
    if missing:
        paths = ", ".join(f"{_split(_expand(t))[1]} ({n})" for n, t in missing)
        held = {v for _, text in missing for v in _variables(text)}
        instead = f"set {', '.join(sorted(held))} anew" if held else "change --field"
        raise MissingFileError(
            f"The plan needs what is not there: {paths}. Put it there, or {instead}."
        )


def _require_variables(texts: Iterable[str]) -> None:
    unset: dict[str, list[str]] = {}
    for text in texts:
        for variable, rest in _variables(text).items():
            if not os.environ.get(variable):
                unset.setdefault(variable, []).append(rest)
    if unset:
        which = ", ".join(f"{v} ({', '.join(held)})" for v, held in unset.items())
        raise ConfigError(
            f"The plan needs environment variables that are not set: {which}. Set each "
            "to the folder that has what stands behind it in brackets."
        )


def _variables(text: str) -> dict[str, str]:
    """Return the variables in a text, each with what stands behind it."""
    return {
        found[1] or found[2]: text[found.end() :].lstrip("/")
        for found in _VARIABLE.finditer(text)
    }


def _afterwards(plan: TablePlan) -> Afterwards:
    """Return what every run of the plan is measured for, with paths expanded."""
    place = plan.elsewhere
    if place:
        DATASETS.find(place.dataset)
        data = place.data and _expand(place.data)
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


def _expanded(fields: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return the fields with ``{seed}``, variables and ~ replaced."""
    return {
        name: _expand(_SEED.sub(str(seed), value)) if isinstance(value, str) else value
        for name, value in fields.items()
    }


def _expand(text: str) -> str:
    def replace(found: re.Match[str]) -> str:
        variable = found[1] or found[2]
        if variable == "PRIVAUDIT_DATA":  # several folders, with colons between them
            rest = text[found.end() :].lstrip("/")
            folders = list(search_path())
            there = (folder for folder in folders if (folder / rest).exists())
            return str(next(there, folders[0]))
        # What a cell needs that is not trained may be missing, and stays as it is.
        return os.environ.get(variable, found[0])

    kind, path = _split(_VARIABLE.sub(replace, text))
    return kind + str(Path(path).expanduser()) if path.startswith("~") else kind + path


def _split(text: str) -> tuple[str, str]:
    """Split KIND:PATH, as in surrogate:folder, behind the colon."""
    kind, colon, path = text.partition(":")
    return (kind + colon, path) if colon else ("", text)


def _is_there(name: str, text: str) -> bool:
    """Say whether a path is there; what is no path, as a model's name, always is.

    Raises:
        MissingFileError: A name of the search path is not there.
    """
    path = text if is_named(text) else _split(text)[1]
    if is_named(path):
        located(path)
        return True
    return (name == "model" and not path.startswith(("/", "."))) or Path(path).exists()
