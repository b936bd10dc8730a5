"""The plan of a utility table: a TOML file that says what to train, and how often.

A cell is a row under a column. Its fields are the plan's, with the row's over them and
the column's over those; its parameters likewise. TOML has no null: the text "none" is
None, as it is on the command line.
"""

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PlainValidator,
    ValidationError,
    model_validator,
)

from privaudit.errors import ConfigError
from privaudit.storage import read_bytes
from privaudit.tables.paper import PaperNumber

Metric = Literal["local", "neighbour", "mix"]
Over = Literal["last10", "last"]
CellName = tuple[str, str]  # of its row and its column

SWEPT = ("trainer", "settings", "seed")  # a plan sets them by other means


def _with_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: None if v == "none" else v for name, v in values.items()}


def _own(fields: dict[str, Any]) -> dict[str, Any]:
    for name in SWEPT:
        if name in fields:
            raise ValueError(
                f"{name!r} is no field here: rows, columns or seeds set it"
            )
    return fields


Text = Annotated[str, Field(min_length=1)]
Settings = Annotated[dict[str, Any], AfterValidator(_with_none)]
Fields = Annotated[dict[str, Any], AfterValidator(_own), AfterValidator(_with_none)]


def _read_printed(entry: Any) -> PaperNumber | dict[str, PaperNumber]:
    if isinstance(entry, dict):
        return {column: PaperNumber.read(text) for column, text in entry.items()}
    return PaperNumber.read(entry)


Printed = Annotated[PaperNumber | dict[str, PaperNumber], PlainValidator(_read_printed)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Row(_Part):
    """A method, as the table names it.

    Attributes:
        label: In the table; no two rows share one.
        trainer: From ``privaudit list trainers``.
        settings: The trainer's parameters.
        fields: Of :class:`privaudit.config.RunConfig`, over the plan's.
        skip_columns: Names of columns that it has no cell in.
    """

    label: Text
    trainer: Text
    settings: Settings = {}
    fields: Fields = {}
    skip_columns: tuple[str, ...] = ()


class Column(_Part):
    """A condition that rows are trained under.

    Attributes:
        label: In the table; no two columns of a group share one.
        group: Columns of one group make a table, and a panel, of their own.
        settings: Parameters over the row's: each trainer must have them.
        fields: Over the row's.
        only_for: Labels of the rows with a cell here; empty is all of them.
    """

    label: Text
    group: str = ""
    settings: Settings = {}
    fields: Fields = {}
    only_for: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The label, behind the group's where there is one."""
        return f"{self.group}: {self.label}" if self.group else self.label


class Plan(_Part):
    """What a table holds.

    Attributes:
        title: Above it.
        source: Which table of which paper.
        notes: Sentences below it: what differs from the paper.
        seeds: Replicates.
        metrics: A table each. "local": on a client's own classes; "neighbour": on the
            others'; "mix": on tests with the client's own mixture of classes.
        over: What is printed: the mean of the last ten rounds, or the last round. Both
            are kept.
        fields: Of :class:`privaudit.config.RunConfig`, for all cells. Environment
            variables and ~ in them are expanded.
        settings: Parameters for those trainers that have them.
        rows: At least one.
        columns: By default a single one.
        across: What columns differ in, such as "ε".
        paper: The paper's numbers by metric, row label and column name; by metric and
            row label where there is one column.
    """

    title: Text
    source: str = ""
    notes: tuple[str, ...] = ()
    seeds: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)]
    metrics: Annotated[tuple[Metric, ...], Field(min_length=1)] = ("local",)
    over: Over = "last10"
    fields: Fields = {}
    settings: Settings = {}
    rows: Annotated[tuple[Row, ...], Field(min_length=1)]
    columns: Annotated[tuple[Column, ...], Field(min_length=1)] = (
        Column(label="accuracy"),
    )
    across: str = ""
    paper: dict[Metric, dict[str, Printed]] = {}

    @model_validator(mode="after")
    def _check(self) -> "Plan":
        rows = [row.label for row in self.rows]
        columns = [column.name for column in self.columns]
        _refuse_copies("rows", rows)
        _refuse_copies("columns", columns)
        _refuse_copies("seeds", self.seeds)
        _refuse_copies("metrics", self.metrics)
        for row in self.rows:
            _known(f"skip_columns of row {row.label!r}", row.skip_columns, columns)
        for column in self.columns:
            _known(f"only_for of column {column.name!r}", column.only_for, rows)
        _known("paper", self.paper, self.metrics)
        for metric, by_row in self.paper.items():
            _check_paper(f"paper.{metric}", by_row, rows, columns)
        if not self.cells:
            raise ValueError(
                "no row has a column: skip_columns and only_for leave none"
            )
        return self

    @property
    def cells(self) -> list[tuple[Row, Column]]:
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
        found = self.paper.get(metric, {}).get(row)
        return found.get(column) if isinstance(found, dict) else found


def read_plan(path: Path) -> Plan:
    """Return the plan in a TOML file.

    Raises:
        MissingFileError: There is no such file.
        ConfigError: It is no TOML, or a key or a value is not one of a plan's.
    """
    try:
        return Plan.model_validate(tomllib.loads(read_bytes(path).decode()))
    except ValidationError as error:
        raise ConfigError(f"{path} is no plan: {_readable(error)}.") from None
    except ValueError as error:  # TOML's own, and bytes that are no text
        raise ConfigError(f"{path} is no TOML: {error}.") from None


def _refuse_copies(what: str, names: tuple[Any, ...] | list[str]) -> None:
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
    where: str, by_row: Mapping[str, Any], rows: list[str], columns: list[str]
) -> None:
    _known(where, by_row, rows)
    for row, entry in by_row.items():
        if isinstance(entry, dict):
            _known(f"{where}.{row}", entry, columns)
        elif len(columns) > 1:
            raise ValueError(
                f"{where}.{row} holds one number for {len(columns)} columns: name "
                "the columns"
            )


def _readable(error: ValidationError) -> str:
    unknown = [e for e in error.errors() if e["type"] == "extra_forbidden"]
    first = [*unknown, *error.errors()][0]  # a misspelt key is missing, too
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:  # parts that don't go together
        return message
    where = _path(first["loc"])
    if unknown:
        return f"{where} is no key there. {_keys(first['loc'])}"
    return f"{where}: {message}"


def _path(location: tuple[int | str, ...]) -> str:
    """Return where something stands, as in rows[2].trainer, counted from 1."""
    text = ""
    for part in location:
        text += f"[{part + 1}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _keys(location: tuple[int | str, ...]) -> str:
    parts: Mapping[int | str, type[_Part]] = {"rows": Row, "columns": Column}
    kind = parts.get(location[0], Plan) if len(location) > 1 else Plan
    return f"Known: {', '.join(kind.model_fields)}"
