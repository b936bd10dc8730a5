"""From a plan to its runs: each once, all of them valid, seed by seed."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
from privaudit.datasets.sources import OnDisk, is_hub_name, load_dataset
from privaudit.evaluation.sweep_runs import SweepRun, readable_attacks
from privaudit.evaluation.tradeoff.plan import shared_settings
from privaudit.runs.config import RunConfig, make_config, parameters_of
from privaudit.runs.training import usual_name
from privaudit_tools.tables.afterwards import Afterwards
from privaudit_tools.tables.metrics import CAPTIONS, attack_of, domain_of
from privaudit_tools.tables.parts import Column, Elsewhere, TableRow
from privaudit_tools.tables.plan import TablePlan

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
# Not ${seed}, a variable, nor {{seed}}, a chat template's.
_SEED = re.compile(r"(?<![${])\{seed\}(?!\})")
Place = tuple[str, str, int]  # row label, column name, seed
# Partitions whose clients have records of all domains.
MIXING = ("dirichlet", "pathological", "shards", "sizes")
_SEARCHED = "PRIVAUDIT_DATA"  # several folders, with colons between them
# Fields that may name a file or a folder.
_PATHS = ("data", "model", "checkpoint", "elsewhere.data")


@dataclass(frozen=True)
class PlannedRun(SweepRun):
    """One run of a table, its paths expanded.

    Attributes:
        afterwards: What is measured once it is trained.
    """

    afterwards: Afterwards = field(default_factory=Afterwards)


@dataclass(frozen=True)
class Schedule:
    """What a table trains.

    Attributes:
        runs: Each once, though several cells may show it; seed by seed, so that a table
            that was stopped has as many whole replicates as possible.
        places: The run's short hash; empty for a cell that is not trained and lacks the
            data that it depends on.
    """

    runs: tuple[PlannedRun, ...]
    places: Mapping[Place, str]


def schedule(
    plan: TablePlan, trained: Callable[[str, str, int], bool] = lambda *_: True
) -> Schedule:
    """Return every run of a plan, with all configurations checked.

    Args:
        plan: Rows, columns and seeds of one table.
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
            runs.setdefault(run.short_hash, run)
            places[place] = run.short_hash
    return Schedule(tuple(runs.values()), places)


def require_data(planned: Schedule) -> None:
    """Read every data set that lies on a disk, once; names on a hub are not looked up.

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
        entry = DATASETS.find(dataset[0])
        if isinstance(entry, OnDisk) and not _is_fetched(entry, dataset[1]):
            try:
                load_dataset(*dataset)
            except (ConfigError, MissingFileError) as error:
                wrong[str(error)] = None
    if wrong:
        raise DatasetError(" ".join(wrong))


def _is_fetched(entry: OnDisk, place: str | None) -> bool:
    """Say whether a place is none here, and perhaps a name on a hub."""
    may_be = entry.fetch is not None and place is not None and is_hub_name(place)
    return may_be and not Path(str(place)).exists()


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
    asked = [
        (name, _SEED.sub(str(seed), value))
        for seed in plan.seeds
        for row, column in plan.cells
        if trained(row.label, column.name, seed)
        for name, value in plan.fields_of(row, column).items()
        if isinstance(value, str)
    ]
    if plan.elsewhere and plan.elsewhere.data:
        asked.append(("elsewhere.data", plan.elsewhere.data))
    require_places(asked)


def require_places(
    fields: Iterable[tuple[str, str]], change: str = "--field {}=…"
) -> None:
    """Refuse run settings, by name, with variables that are not set or paths not there.

    ``change`` is how a setting is given another value, with {} for its name.

    Raises:
        ConfigError: A variable is not set.
        MissingFileError: A path is not there.
    """
    asked = dict.fromkeys(fields)
    _require_variables(text for _, text in asked)
    missing: list[tuple[str, str]] = []
    unnamed: dict[str, None] = {}
    for name, text in asked:
        try:
            if name in _PATHS and not _is_there(name, _expand(text)):
                missing.append((name, text))
        except MissingFileError as error:  # of the search path
            unnamed[str(error)] = None
    if missing or unnamed:
        raise MissingFileError(" ".join([*_missing_paths(missing, change), *unnamed]))


def _missing_paths(missing: Sequence[tuple[str, str]], change: str) -> Iterator[str]:
    """Yield a sentence that names all paths, and one that says what to do."""
    if not missing:
        return
    paths = (
        f"{' or '.join(_split(place)[1] for place in _sought(text))} ({name})"
        for name, text in missing
    )
    yield f"The plan needs what is not there: {', '.join(paths)}."
    advice = ["Put it there"]
    if held := {v for _, text in missing for v in _variables(text)}:
        advice.append(f"set {', '.join(sorted(held))} to where it is")
    if bare := dict.fromkeys(name for name, text in missing if not _variables(text)):
        fields = ", ".join(change.format(name) for name in bare)
        advice.append(f"name another place with {fields}")
    yield f"{', or '.join(advice)}."


def _require_variables(texts: Iterable[str]) -> None:
    unset: dict[str, list[str]] = {}
    for text in texts:
        for variable, rest in _variables(text).items():
            # Without PRIVAUDIT_DATA the search path has a folder all the same.
            if variable != _SEARCHED and not os.environ.get(variable):
                unset.setdefault(variable, []).append(rest)
    if unset:
        behind = {v: ", ".join(filter(None, rests)) for v, rests in unset.items()}
        which = ", ".join(f"{v} ({rest})" if rest else v for v, rest in behind.items())
        what = "what stands behind it in brackets" if any(behind.values()) else "it"
        raise ConfigError(
            f"The plan needs environment variables that are not set: {which}. Set each "
            f"to the folder that has {what}."
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
        fields = expanded(plan.fields_of(row, column), seed)
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
        config.short_hash,
        usual_name(config),
        afterwards,
    )


def settings_of(plan: TablePlan, row: TableRow, column: Column) -> dict[str, Any]:
    """Return a cell's parameters; what is shared goes to trainers that have it."""
    shared = shared_settings(row.trainer, plan.settings)
    taken = shared_settings(row.trainer, column.settings)
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
        if domain_of(metric) and config.partition in MIXING:
            raise ConfigError(
                f"{metric!r} is of clients whose records are all of one domain, and "
                f"partition = {config.partition} mixes them. Use partition = domains."
            )
    if not afterwards.scenario:
        return
    scenario = find_scenario(afterwards.scenario, afterwards.shadows)
    readable = readable_attacks(config, scenario)
    for metric in afterwards.metrics:
        attack = attack_of(metric)
        if attack and attack not in readable:
            raise AttackError(
                f"{attack!r} cannot read what {config.model} answers. Those that can: "
                f"{', '.join(readable)}."
            )


def expanded(fields: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return the fields with ``{seed}``, variables and ~ replaced."""
    return {
        name: _expand(_SEED.sub(str(seed), value)) if isinstance(value, str) else value
        for name, value in fields.items()
    }


def _expand(text: str) -> str:
    """Return a text with variables and ~ replaced, where it is there if anywhere."""
    places = _sought(text)
    there = (place for place in places if Path(_split(place)[1]).exists())
    return places[0] if len(places) == 1 else next(there, places[0])


def _sought(text: str) -> list[str]:
    """Return a text with variables and ~ replaced, once for each folder searched."""
    folders = list(map(str, search_path())) if _SEARCHED in _variables(text) else []
    searched = [{_SEARCHED: folder} for folder in dict.fromkeys(folders)]
    return [_filled(text, {**os.environ, **one}) for one in searched or [{}]]


def _filled(text: str, variables: Mapping[str, str]) -> str:
    # What a cell needs that is not trained may be missing, and stays as it is.
    filled = _VARIABLE.sub(lambda at: variables.get(at[1] or at[2], at[0]), text)
    kind, path = _split(filled)
    # A user that is not there stays, too, where Path.expanduser raises.
    home = str(Path(os.path.expanduser(path)))  # noqa: PTH111
    return kind + home if path.startswith("~") else kind + path


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
