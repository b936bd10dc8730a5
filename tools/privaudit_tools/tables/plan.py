"""The plan of a utility table: a TOML file that says what to train, and how often.

A cell is a row under a column. Its fields are the plan's, with the row's over them and
the column's over those; its parameters likewise. TOML has no null: the text "none" is
None, as it is on the command line.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
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

from privaudit.auditing.scenario import find_scenario
from privaudit.core.errors import ConfigError
from privaudit.core.limits import read_toml
from privaudit.core.parameters import first_problem
from privaudit_tools.tables.expectations import Expectation
from privaudit_tools.tables.metrics import (
    ELSEWHERE,
    Metric,
    attack_of,
    check_metrics,
    lacks_owner,
    largest,
)
from privaudit_tools.tables.paper import PaperNumber
from privaudit_tools.tables.parts import (
    STRICT,
    Column,
    Elsewhere,
    Fields,
    Metrics,
    Printed,
    Settings,
    TablePanel,
    TableRow,
    Text,
)

Over = Literal["last10", "last"]
FEWEST = 3  # seeds that decide anything: with two, chance is too often the same
ONLY_COLUMN = "accuracy"  # the name of the one of a plan that has none


class TablePlan(BaseModel):
    """What a table holds.

    Attributes:
        title: Above it.
        source: Which table of which paper.
        notes: Sentences below it: what differs from the paper.
        reproduces: Which published tables and figures it is a plan of, as
            published.toml calls them: "DP-FPL table 2".
        expects: What these say of their numbers, to which stored results are held.
        seeds: Replicates.
        looks: After how many of the seeds the expectations are judged: where none is
            open, no more are trained. The last is the number of seeds; without looks
            all are trained. Each look has its part of the error.
        metrics: A table each. "local": on a client's own classes; "neighbour": on the
            others'; "mix": on tests with the client's own mixture of classes; "all":
            on all tests; others are in :mod:`privaudit_tools.tables.metrics`.
        panels: Tables with metrics as their columns, in place of ``metrics``.
        over: What is printed: the mean of the last ten rounds, or the last round. Both
            are kept.
        fields: Of :class:`privaudit.runs.config.RunConfig`, for all cells. Environment
            variables and ~ in them are expanded, and ``{seed}`` is the run's seed, in
            those of rows and columns, too.
        settings: Parameters for those trainers that have them.
        rows: At least one.
        columns: By default a single one.
        across: What columns differ in, such as "ε".
        scenario: Whose attacks are made, after training, if a metric is one of them.
        shadows: Shadow models for each client that is attacked; 0 leaves out the
            attacks that need them.
        attacked: For how many clients of a run shadow models are trained, or all;
            attacks without any attack everyone.
        elsewhere: Where metrics that begin with "elsewhere" are measured.
        paper: The paper's numbers by metric, row label and column name; by metric and
            row label where there is one column.
    """

    model_config = STRICT

    title: Text
    source: str = ""
    notes: tuple[str, ...] = ()
    reproduces: tuple[Text, ...] = ()
    expects: tuple[Expectation, ...] = ()
    seeds: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)]
    looks: tuple[PositiveInt, ...] = ()
    metrics: Metrics = ("local",)
    panels: tuple[TablePanel, ...] = ()
    over: Over = "last10"
    fields: Fields = {}
    settings: Settings = {}
    rows: Annotated[tuple[TableRow, ...], Field(min_length=1)]
    columns: Annotated[tuple[Column, ...], Field(min_length=1)] = (
        Column(label=ONLY_COLUMN),
    )
    across: str = ""
    scenario: Text = "server-reconstruct"
    shadows: NonNegativeInt = 0
    attacked: PositiveInt | Literal["all"] = "all"
    elsewhere: Elsewhere | None = None
    paper: dict[Metric, dict[str, Printed]] = {}

    @model_validator(mode="after")
    def _check(self) -> "TablePlan":
        rows = [row.label for row in self.rows]
        columns = [column.name for column in self.columns]
        refuse_copies("rows", rows)
        refuse_copies("columns", columns)
        refuse_copies("seeds", self.seeds)
        refuse_copies("metrics", self.measured)
        refuse_copies("expectations", [f"{e.says!r} of {e.of}" for e in self.expects])
        for row in self.rows:
            _known(f"skip_columns of row {row.label!r}", row.skip_columns, columns)
        for column in self.columns:
            _known(f"only_for of column {column.name!r}", column.only_for, rows)
            _known(f"settings_for of column {column.name!r}", column.settings_for, rows)
        self._check_metrics()
        _known("paper", self.paper, self.measured)
        for metric, by_row in self.paper.items():
            _check_paper(metric, by_row, rows, columns)
        for expected in self.expects:
            where = f"an expectation of {expected.of}"
            _known(where, [expected.of], self.reproduces)
            _known(where, [expected.metric], self.measured)
            _known(where, filter(None, (*expected.rows, expected.row)), rows)
            if expected.row:
                _known(where, expected.columns, columns)
            elif not expected.chosen(columns):
                raise ValueError(
                    f"{where} is about columns that are none: "
                    f"{', '.join(expected.columns)}"
                )
            places = {(row.label, column.name) for row, column in self.cells}
            for spot in (s for step in expected.steps(columns) for s in step):
                if spot not in places:
                    raise ValueError(f"{where} compares no cell: {', '.join(spot)}")
        self._check_looks()
        if not self.cells:
            raise ValueError(
                "no row has a column: skip_columns and only_for leave none"
            )
        return self

    def _check_looks(self) -> None:
        """Refuse looks that do not rise to the number of seeds, or decide nothing."""
        looks = list(self.looks)
        if looks and (looks != sorted(set(looks)) or looks[-1] != len(self.seeds)):
            raise ValueError(
                f"the looks {looks} do not rise to the number of seeds, {len(self.seeds)}"
            )
        if looks and (looks[0] < FEWEST or not self.expects):
            raise ValueError(
                f"a look takes {FEWEST} seeds and expectations, and there are "
                f"{looks[0]} and {len(self.expects)}"
            )

    def _check_metrics(self) -> None:
        """Refuse metrics that no run could have, or that say too little."""
        if self.panels and len(self.columns) > 1:
            raise ValueError(
                f"panels have metrics as columns, and there are {len(self.columns)} "
                "columns: take metrics in place of panels"
            )
        if self.panels and "metrics" in self.model_fields_set:
            raise ValueError("metrics and panels are given: take one of them")
        if self.results:
            attacks = find_scenario(self.scenario, self.shadows).attacks
            check_metrics(self.measured, self.scenario, list(attacks))
        for metric in self.measured:
            if lacks_owner(metric) and not all(row.whose for row in self.rows):
                raise ValueError(
                    f"{metric!r} does not say whose model is attacked: write "
                    f"'server {metric}' or 'client {metric}', or give each row whose"
                )
        if self.goes_elsewhere and not self.elsewhere:
            raise ValueError(
                "a metric is measured elsewhere, and the plan does not say where: add "
                '[elsewhere] with dataset = "…"'
            )
        if self.elsewhere and not self.goes_elsewhere:
            raise ValueError(
                f"[elsewhere] names {self.elsewhere.dataset}, and no metric is measured "
                f'there: add one such as "{ELSEWHERE} BLEU-1", or leave it out'
            )

    def fields_of(self, row: TableRow, column: Column) -> dict[str, Any]:
        """Return a cell's fields: a column's stand over a row's, and those over all."""
        return {**self.fields, **row.fields, **column.fields}

    @property
    def measured(self) -> tuple[Metric, ...]:
        """Return every metric that is printed."""
        panels = tuple(metric for panel in self.panels for metric in panel.metrics)
        return panels or self.metrics

    @property
    def results(self) -> bool:
        """Whether any metric takes an attack."""
        return any(attack_of(metric) for metric in self.measured)

    @property
    def goes_elsewhere(self) -> bool:
        """Whether any metric is of another data set."""
        return any(metric.startswith(ELSEWHERE) for metric in self.measured)

    def read_as(self, metric: Metric, row: TableRow) -> Metric:
        """Return the metric's full name in a row, which may say whose model it is of.

        Example:
            >>> row = TableRow(label="FedAvg (server)", trainer="a", whose="server")
            >>> TablePlan(title="t", seeds=(1,), rows=(row,)).read_as("token-loss", row)
            'server token-loss'
        """
        return f"{row.whose} {metric}" if lacks_owner(metric) else metric

    @property
    def wanted(self) -> tuple[Metric, ...]:
        """Return the full names of what a run is asked for, each once."""
        names = [self.read_as(m, row) for m in self.measured for row in self.rows]
        return tuple(dict.fromkeys(names))

    @property
    def cells(self) -> list[tuple[TableRow, Column]]:
        """Return every cell, row by row."""
        return [
            (row, column)
            for row in self.rows
            for column in self.columns
            if column.name not in row.skip_columns
            and (not column.only_for or row.label in column.only_for)
        ]

    @property
    def groups(self) -> list[list[Column]]:
        """Return the columns of each group, in order of appearance."""
        names = dict.fromkeys(column.group for column in self.columns)
        return [[c for c in self.columns if c.group == name] for name in names]

    def printed(self, metric: Metric, row: str, column: str) -> PaperNumber | None:
        """Return the paper's number for a cell, if there is one."""
        entry = self.paper.get(metric, {}).get(row)
        return entry.get(column) if isinstance(entry, dict) else entry


def read_plan(path: Path) -> TablePlan:
    """Return the plan in a TOML file.

    Raises:
        MissingFileError: There is no such file.
        ConfigError: It is no TOML, or a key or a value is not one of a plan's.
    """
    try:
        return TablePlan.model_validate(read_toml(path))
    except ValidationError as error:
        raise ConfigError(f"{path} is no plan: {readable(error)}.") from None


def refuse_copies(what: str, names: Sequence[Any]) -> None:
    """Refuse a plan's list that names a thing twice, by a ValueError for pydantic."""
    twice = [str(n) for n in dict.fromkeys(names) if names.count(n) > 1]
    if twice:
        raise ValueError(f"the {what} hold {', '.join(twice)} more than once")


def _known(where: str, names: Any, known: Any) -> None:
    for name in names:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]!r}" if close else ""
            raise ValueError(
                f"{where} names {name!r}, and there are {', '.join(known)}{hint}"
            )


def _check_paper(
    metric: Metric, by_row: Mapping[str, Any], rows: list[str], columns: list[str]
) -> None:
    where = f"paper.{metric}"
    _known(where, by_row, rows)
    for row, entry in by_row.items():
        if isinstance(entry, dict):
            _known(f"{where}.{row}", entry, columns)
        elif len(columns) > 1:
            raise ValueError(
                f"{where}.{row} holds one number for {len(columns)} columns: name "
                "the columns"
            )
        for number in entry.values() if isinstance(entry, dict) else [entry]:
            if number.mean > largest(metric):
                raise ValueError(
                    f"{where}.{row}: {number.text} is no number of a paper: "
                    f"{metric} is at most {largest(metric):g}"
                )


def readable(error: ValidationError) -> str:
    """Return what is wrong with a plan, and where in it, without a full stop."""
    unknown = [e for e in error.errors() if e["type"] == "extra_forbidden"]
    first = [*unknown, *error.errors()][0]  # a misspelt key is missing, too
    place, message = first_problem([first, *error.errors()])
    if not place:  # parts that don't go together
        return message
    where = _path(place)
    if unknown:
        return f"{where} is no key there. {_keys(place)}"
    return f"{where}: {message}"


def _path(location: tuple[int | str, ...]) -> str:
    """Return where something stands, as in rows[2].trainer, counted from 1."""
    text = ""
    for part in location:
        text += f"[{part + 1}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _keys(location: tuple[int | str, ...]) -> str:
    parts: Mapping[int | str, type[BaseModel]] = {
        "rows": TableRow,
        "columns": Column,
        "panels": TablePanel,
        "elsewhere": Elsewhere,
        "expects": Expectation,
    }
    kind = parts.get(location[0], TablePlan) if len(location) > 1 else TablePlan
    return f"Known: {', '.join(kind.model_fields)}"
