"""The plan of a benchmark: a TOML file with a task, a curve, methods and seeds."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    model_validator,
)

from privaudit.core.errors import ConfigError
from privaudit.core.limits import read_toml
from privaudit.core.parameters import first_problem
from privaudit.evaluation.tradeoff.plan import Cell
from privaudit.runs.config import parameters_of
from privaudit.runs.tasks import LIKENESS
from privaudit_tools.tables.parts import STRICT, SWEPT, Fields, Settings, Text
from privaudit_tools.tables.plan import refuse_copies

UNTRAINED = "zero-shot"  # a trainer
SettingName = str
FewSeeds = Annotated[tuple[NonNegativeInt, ...], Field(min_length=3)]


class Method(BaseModel):
    """A row: a trainer at some settings of one knob, of which tuning seeds choose.

    Attributes:
        label: On the page; no two rows share one.
        trainer: From ``privaudit list trainers``.
        knob: A parameter of the trainer, or else a run setting.
        values: Of the knob, four at most; "none" is None.
        control: Whether its answer is known, or it is there to compare by.
    """

    model_config = STRICT

    label: Text
    trainer: Text
    knob: str = ""
    values: Annotated[tuple[Any, ...], Field(max_length=4)] = ()
    settings: Settings = {}
    fields: Fields = {}
    control: bool = False

    @model_validator(mode="after")
    def _check(self) -> "Method":
        if bool(self.knob) != bool(self.values):
            raise ValueError(f"{self.label!r} has a knob or values alone: give both")
        if self.knob in SWEPT:
            raise ValueError(f"the knob of {self.label!r} is no setting: {self.knob}")
        refuse_copies(f"values of {self.label!r}", [*map(str, self.values)])
        return self

    def cells(self, fields: dict[str, Any]) -> Iterator[tuple[SettingName, Cell]]:
        """Yield each setting by its name, with what it trains.

        Args:
            fields: Of the task; the method's own stand over them.
        """
        for value in self.values or (None,):
            name = f"{self.knob} {value}" if self.knob else "as given"
            settings, own = dict(self.settings), {**fields, **self.fields}
            if self.knob:
                is_own = self.knob in parameters_of(self.trainer)
                (settings if is_own else own)[self.knob] = (
                    None if value == "none" else value
                )
            label = f"{self.label}, {name}"
            yield name, Cell(label, self.trainer, None, settings, own)


class Reference(BaseModel):
    """The early-stopping curve: one training, stopped after more and more rounds.

    Attributes:
        stops: Rounds after which it is stopped; the last is how long it is trained.
    """

    model_config = STRICT

    label: Text
    trainer: Text
    stops: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    settings: Settings = {}
    fields: Fields = {}

    def cell(self, fields: dict[str, Any]) -> Cell:
        """Return what it trains."""
        own = {**fields, **self.fields, "rounds": self.stops[-1]}
        return Cell(self.label, self.trainer, None, self.settings, own)

    @model_validator(mode="after")
    def _check(self) -> "Reference":
        if list(self.stops) != sorted(set(self.stops)):
            raise ValueError(f"the stops {list(self.stops)} do not rise")
        return self


class Quick(BaseModel):
    """What ``--quick`` takes in place of the whole: a smaller task, and less of all.

    Attributes:
        fields: Of runs, over the plan's.
        values: How many of each knob's, from the first.
        attacks: As the plan's.
    """

    model_config = STRICT

    methods: Annotated[tuple[Text, ...], Field(min_length=1)]
    stops: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    tuning_seeds: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)]
    evaluation_seeds: FewSeeds
    fields: Fields = {}
    values: PositiveInt = 4
    shadows: NonNegativeInt = 8
    attacks: tuple[Text, ...] = ()


class BenchmarkPlan(BaseModel):
    """What a benchmark trains, and by what it is judged.

    Attributes:
        title: The task, as the page calls it.
        fields: Of :class:`privaudit.runs.config.RunConfig`, for all rows.
        utility: Accuracy on a client's own classes, or on all.
        scenario: Whose attacks are made, with so many shadow models for each client.
        attacks: Of them those that tuning seeds choose among; all if empty.
        looks: Rounds after which the attacks are made besides the last: a server that
            has seen all of a transcript may read its beginning alone.
        tuning_seeds: Choose each row's setting and attack.
        evaluation_seeds: Judge them. None is a tuning seed.
    """

    model_config = STRICT

    title: Text
    fields: Fields = {}
    utility: Literal["local", "all"] = "local"
    scenario: Text = "server-reconstruct"
    shadows: NonNegativeInt = 8
    attacks: tuple[Text, ...] = ()
    looks: tuple[PositiveInt, ...] = (1,)
    tuning_seeds: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)]
    evaluation_seeds: FewSeeds
    reference: Reference
    methods: Annotated[tuple[Method, ...], Field(min_length=1)]
    quick: Quick | None = None

    @model_validator(mode="after")
    def _check(self) -> "BenchmarkPlan":
        labels = [self.reference.label, *(method.label for method in self.methods)]
        refuse_copies("labels", labels)
        refuse_copies("seeds", [*self.tuning_seeds, *self.evaluation_seeds])
        untrained = [one for one in self.methods if one.trainer == UNTRAINED]
        if len(untrained) != 1 or untrained[0].knob:
            raise ValueError(
                f"the curve begins with one row of trainer = {UNTRAINED!r} without a "
                f"knob, and there are {len(untrained)} of that trainer"
            )
        if self.quick:
            for label in self.quick.methods:
                if label not in labels[1:]:
                    raise ValueError(
                        f"quick names {label!r}, and there are {', '.join(labels[1:])}"
                    )
        return self

    @property
    def quickly(self) -> "BenchmarkPlan":
        """The plan with what ``--quick`` takes.

        Raises:
            ConfigError: It does not say what that is, or it is no plan.
        """
        if self.quick is None:
            raise ConfigError(
                "--quick was given, and the plan has no table [quick] with methods and "
                "evaluation_seeds. Add one, or leave --quick out."
            )
        quick = self.quick
        methods = [
            {**method.model_dump(), "values": method.values[: quick.values]}
            for method in self.methods
            if method.label in quick.methods
        ]
        return _checked(
            "What --quick takes of it",
            {
                **self.model_dump(exclude={"quick"}),
                **quick.model_dump(
                    include={"tuning_seeds", "evaluation_seeds", "shadows", "attacks"}
                ),
                "fields": {**self.fields, **quick.fields},
                "reference": {**self.reference.model_dump(), "stops": quick.stops},
                "methods": methods,
            },
        )

    @property
    def attacked(self) -> str:
        """Whose attacks are made, and which, in words."""
        only = f" ({', '.join(self.attacks)} alone)" if self.attacks else ""
        return f"`{self.scenario}`{only}"

    @property
    def measure(self) -> str:
        """What utility is measured in."""
        cell = self.reference.cell(self.fields)
        config = cell.config(self.evaluation_seeds[0])
        return "accuracy" if config.task == "classification" else LIKENESS

    @property
    def classes(self) -> str:
        """Whose classes utility is measured on, in words."""
        return "own classes" if self.utility == "local" else "all classes"

    @property
    def measured(self) -> str:
        """What utility is measured in, and on what."""
        return f"{self.measure} on {self.classes}"

    @property
    def untrained(self) -> Method:
        """The row that is not trained."""
        return next(method for method in self.methods if method.trainer == UNTRAINED)

    @property
    def digest(self) -> str:
        """The SHA-256 of all that it says."""
        unsaid = {"quick"} if self.attacks else {"quick", "attacks"}
        text = json.dumps(self.model_dump(mode="json", exclude=unsaid), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def read_benchmark_plan(path: Path) -> BenchmarkPlan:
    """Return the plan in a TOML file.

    Raises:
        MissingFileError: There is no such file.
        ConfigError: It is no TOML, or a key or a value is not one of a plan's.
    """
    return _checked(str(path), read_toml(path))


def _checked(what: str, given: dict[str, Any]) -> BenchmarkPlan:
    try:
        return BenchmarkPlan.model_validate(given)
    except ValidationError as error:
        place, message = first_problem(list(error.errors()))
        where = ".".join(map(str, place))
        said = f"{where}: {message}" if where else message
        raise ConfigError(f"{what} is no plan of a benchmark: {said}.") from None
