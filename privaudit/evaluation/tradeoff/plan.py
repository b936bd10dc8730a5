"""Plan of a sweep, from Python, flags or a TOML file, and the cells it trains.

The command line makes options of the plan's fields, so torch is imported where it is used.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
)

from privaudit.core.errors import ConfigError, nearest
from privaudit.core.limits import read_toml
from privaudit.runs.fields import RunFields

if TYPE_CHECKING:
    from privaudit.runs.config import RunConfig

_OWN_OPTION = {
    "trainer": "trainers",
    "settings": "settings, or vary the parameter",
    "seed": "seeds",
    "mode": "modes",
    "epsilon": "epsilons",
}


def _or_none(value: Any) -> Any:
    """TOML has no null: the text "none" is None, as on the command line."""
    return None if value == "none" else value


Budget = Annotated[float | None, BeforeValidator(_or_none)]
Entry = Annotated[Any, BeforeValidator(_or_none)]
Values = dict[str, Entry]
Varied = dict[str, tuple[Entry, ...]]
Margin = Annotated[float, Field(gt=0, lt=1)]


class SweepPlan(BaseModel):
    """The arguments of :func:`privaudit.evaluation.tradeoff.sweep.sweep`, checked.

    In a file None is "none". Shadow models are a number and no budget: cells are
    compared, so each must meet as strong an adversary.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    trainers: tuple[str, ...] = Field(
        ("dp-fpl",),
        description="Comma-separated trainers; those without an epsilon have no budgets "
        "and no modes. By default: dp-fpl.",
    )
    epsilons: tuple[Budget, ...] = Field(
        (None, 8.0, 4.0, 1.0, 0.4, 0.1),
        description="Comma-separated budgets; 'none': no noise, in every mode, as modes "
        "differ without it too. By default: none,8,4,1,0.4,0.1.",
    )
    modes: tuple[str, ...] = Field(
        ("published-paper", "sound"),
        description="Comma-separated modes of DP trainers. By default: "
        "published-paper,sound.",
    )
    vary: Varied = Field(
        default_factory=dict,
        description="Values by name: of a parameter, for those trainers that have it, or "
        "of a run setting. All are combined.",
    )
    seeds: tuple[NonNegativeInt, ...] = Field(
        (10, 11, 12, 13, 14),
        description="Comma-separated replicates; each moves partition, coin, start, "
        "batches and noise. By default: 10,11,12,13,14.",
    )
    report_seeds: tuple[NonNegativeInt, ...] = Field(
        (),
        description="Comma-separated other seeds, best 5 or more, with which the settings "
        "that no other dominates are trained anew and reported. By default: none.",
    )
    scenario: str = Field(
        "prompt-release", description="Who attacks. By default: prompt-release."
    )
    attack: str | None = Field(
        None,
        description="Attack to compare by, such as lira; choose it beforehand. By "
        "default: the scenario's headline attack.",
    )
    clients: PositiveInt | Literal["all"] = Field(
        "all",
        description="How many clients get shadow models, or 'all' of them. By default: "
        "all.",
    )
    shadows: NonNegativeInt = Field(
        16,
        description="Shadow models per client; 0 for none. A number and no budget: cells "
        "are compared, so each must meet as strong an adversary. By default: 16.",
    )
    settings: Values = Field(
        default_factory=dict,
        description="Parameters, for those trainers that have them.",
    )
    fields: Values = Field(
        default_factory=dict, description="Run settings, for all runs."
    )
    margin: Margin = Field(
        0.05,
        description="The largest difference in AUROC that does not matter, in (0, 1). By "
        "default: 0.05.",
    )
    utility_margin: Margin = Field(
        0.05, description="Likewise in utility. By default: 0.05."
    )
    alpha: Margin = Field(
        0.05,
        description="Family-wise error rate: the chance of calling any cell dominated "
        "that is not, in (0, 1). By default: 0.05.",
    )
    against_first: bool = Field(False, description="Compare every row with the first.")
    stop_after: PositiveInt | None = Field(
        None,
        description="A row of its own: the first one, stopped after so many rounds. By "
        "default: none.",
    )
    until_decided: bool = Field(
        False,
        description="Look after half of the seeds, too, and train no others where nothing "
        "is undecided: each look has half of alpha. Takes 6 seeds.",
    )

    @property
    def looks(self) -> tuple[int, ...]:
        """After how many seeds to look."""
        count = len(self.seeds)
        return (count // 2, count) if self.until_decided else (count,)


@dataclass(frozen=True)
class Cell:
    """One combination of a sweep, to be run with every seed.

    Attributes:
        label: Names its curve and its rows of tables.
        epsilon: None is no noise.
        settings: The trainer's parameters that differ from their defaults.
        fields: Of the run's configuration, without the seed.
    """

    label: str
    trainer: str
    epsilon: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)

    def config(self, seed: int) -> "RunConfig":
        """Return the configuration of its run with a seed."""
        from privaudit.runs.config import make_config

        return make_config(self.trainer, self.settings, **self.fields, seed=seed)


def make_plan(entries: Mapping[str, Any]) -> SweepPlan:
    """Return a plan, with its entries checked one by one.

    Raises:
        ConfigError: A name is unknown, or a value is none that it takes.
    """
    try:
        return SweepPlan.model_validate(dict(entries))
    except ValidationError as error:
        raise ConfigError(f"The sweep cannot be made: {_readable(error)}.") from None


def read_sweep_plan(path: Path) -> dict[str, Any]:
    """Return the entries of a TOML file, checked as :func:`make_plan` does.

    Raises:
        MissingFileError: There is no such file.
        ConfigError: It is no TOML, or a key or a value is not one of a sweep's.
    """
    entries = read_toml(path)
    try:
        make_plan(entries)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return entries


def cells_of(plan: SweepPlan) -> list[Cell]:
    """Return every combination of a plan, all of them valid and no two alike.

    Raises:
        ConfigError: Nothing to sweep, a copy, or an impossible value.
    """
    from privaudit.statistics.dominance import FEWEST

    _refuse_copies(plan)
    refuse_swept("field", plan.fields, ("trainer", "settings", "seed"))
    refuse_swept("parameter", plan.settings, ("mode", "epsilon"))
    _check_names(plan)
    cells = [cell for trainer in plan.trainers for cell in _of_trainer(plan, trainer)]
    if not cells or not plan.seeds:
        raise ConfigError("There is nothing to sweep: name trainers and seeds.")
    if plan.until_decided and plan.looks[0] < FEWEST:
        raise ConfigError(
            f"{len(plan.seeds)} seeds are to be looked at twice, and a look takes {FEWEST}. "
            f"Name {2 * FEWEST} or more, or leave until_decided out."
        )
    if plan.stop_after is not None:
        label = f"{cells[0].label}, stopped after {plan.stop_after} rounds"
        fields = {**cells[0].fields, "rounds": plan.stop_after}
        cells.insert(1, replace(cells[0], label=label, fields=fields))
    _check_configs(cells, [*plan.seeds, *plan.report_seeds])
    return cells


def _of_trainer(plan: SweepPlan, trainer: str) -> Iterator[Cell]:
    from privaudit.runs.config import parameters_of

    known = parameters_of(trainer)
    budgets = plan.epsilons if "epsilon" in known else (None,)
    modes = plan.modes if "mode" in known else (None,)
    varying = _varying(plan, known)
    for mode, epsilon, varied in itertools.product(modes, budgets, varying):
        given = {**plan.settings, **varied, "mode": mode, "epsilon": epsilon}
        outer = {name: v for name, v in varied.items() if name not in known}
        yield Cell(
            _label(plan, trainer, mode, varied),
            trainer,
            epsilon,
            shared_settings(trainer, given),
            {**plan.fields, **outer},
        )


def shared_settings(trainer: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return those parameters of a whole sweep that a trainer has."""
    from privaudit.runs.config import parameters_of

    known = parameters_of(trainer)
    return {name: value for name, value in settings.items() if name in known}


def _varying(plan: SweepPlan, known: frozenset[str]) -> Iterator[dict[str, Any]]:
    names = [n for n in plan.vary if n in known or n in RunFields.model_fields]
    for values in itertools.product(*(plan.vary[name] for name in names)):
        yield dict(zip(names, values, strict=True))


def _label(
    plan: SweepPlan, trainer: str, mode: str | None, varied: Mapping[str, Any]
) -> str:
    alone = len(plan.trainers) == 1 and mode is not None
    names = [] if alone else [trainer]
    names += [] if mode is None else [mode]
    return ", ".join([*names, *(f"{n} {str(v).lower()}" for n, v in varied.items())])


def _refuse_copies(plan: SweepPlan) -> None:
    lists: dict[str, Sequence[Any]] = {
        name: getattr(plan, name)
        for name in ("trainers", "epsilons", "modes", "seeds", "report_seeds")
    }
    lists |= {f"values of {name}": values for name, values in plan.vary.items()}
    for name, entries in lists.items():
        twice = [str(e).lower() for e in dict.fromkeys(entries) if entries.count(e) > 1]
        if twice:
            raise ConfigError(
                f"The {name} hold {', '.join(twice)} more than once, and a copy is no "
                "replicate. Name each once."
            )
    both = [str(seed) for seed in plan.report_seeds if seed in plan.seeds]
    if both:
        raise ConfigError(
            f"The report seeds hold {', '.join(both)}, with which cells are chosen: "
            "that would report the luck of the choice. Use others."
        )


def refuse_swept(kind: str, given: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse what is set for each run, given for all."""
    for name in names:
        if name in given:
            raise ConfigError(
                f"The {kind} {name} = {given[name]} was given for all runs, and a "
                "sweep sets it for each. Leave it out, and name what to sweep."
            )


def _check_names(plan: SweepPlan) -> None:
    """Refuse parameters that no trainer has: slips of the pen."""
    from privaudit.runs.config import parameters_of

    known = {name for trainer in plan.trainers for name in parameters_of(trainer)}
    for name in plan.settings:
        _require("settings hold", name, known)
    fields = set(RunFields.model_fields) - set(_OWN_OPTION)
    for name, values in plan.vary.items():
        if name in _OWN_OPTION:
            raise ConfigError(
                f"{name} cannot be varied by that name. Use {_OWN_OPTION[name]}."
            )
        _require("sweep varies", name, known - set(_OWN_OPTION) | fields)
        if not values:
            raise ConfigError(f"{name} is varied, and has no value. Name some.")
        if name in plan.settings or name in plan.fields:
            raise ConfigError(
                f"{name} was given for all runs, and is varied. Leave one of them out."
            )


def _require(where: str, name: str, known: set[str]) -> None:
    if name not in known:
        raise ConfigError(
            f"The {where} {name!r}, and no trainer of the sweep has it."
            f"{nearest(name, known)} Known: {', '.join(sorted(known)) or 'none'}."
        )


def _check_configs(cells: Sequence[Cell], seeds: Sequence[int]) -> None:
    """Make every run's configuration, and refuse two cells that are one."""
    cell_of: dict[str, Cell] = {}
    for cell in cells:
        for seed in seeds:
            other = cell_of.setdefault(cell.config(seed).short_hash, cell)
            if other is not cell:
                raise ConfigError(
                    f"{cell.label!r} and {other.label!r} are the same runs, and a copy "
                    "is no finding. Leave one out."
                )


def _readable(error: ValidationError) -> str:
    unknown = [e for e in error.errors() if e["type"] == "extra_forbidden"]
    first = [*unknown, *error.errors()][0]
    where, *rest = first["loc"]
    if unknown:
        known = list(SweepPlan.model_fields)
        hint = nearest(where, known)
        return f"{where!r} is no entry.{hint} Known: {', '.join(known)}"
    index = "".join(f"[{p + 1}]" for p in rest if isinstance(p, int))
    message = first["msg"].removeprefix("Value error, ")
    return f"{where}{index} = {first['input']!r}: {message}"
