"""The parts of a plan: rows, columns, panels of metrics, and another data set."""

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    model_validator,
)

from privaudit_tools.tables.metrics import Metric, Whose
from privaudit_tools.tables.paper import PaperNumber

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
Metrics = Annotated[tuple[Metric, ...], Field(min_length=1)]
Settings = Annotated[dict[str, Any], AfterValidator(_with_none)]
Fields = Annotated[dict[str, Any], AfterValidator(_own), AfterValidator(_with_none)]


def _read_printed(entry: Any) -> PaperNumber | dict[str, PaperNumber]:
    if isinstance(entry, dict):
        return {column: PaperNumber.read(text) for column, text in entry.items()}
    return PaperNumber.read(entry)


Printed = Annotated[PaperNumber | dict[str, PaperNumber], PlainValidator(_read_printed)]


STRICT = ConfigDict(frozen=True, extra="forbid")


class TablePart(BaseModel):
    """A table of a plan's TOML, without keys that nobody reads."""

    model_config = STRICT


class TableRow(TablePart):
    """A method, as the table names it.

    Attributes:
        label: In the table; no two rows share one.
        trainer: From ``privaudit list trainers``.
        settings: The trainer's parameters.
        fields: Of :class:`privaudit.runs.config.RunConfig`, over the plan's.
        skip_columns: Names of columns that it has no cell in.
        whose: Which model the metrics are of that are an attack's bare name: the
            server's own, or the reconstructed ones. Rows of one run differ in it.
    """

    label: Text
    trainer: Text
    settings: Settings = {}
    fields: Fields = {}
    skip_columns: tuple[str, ...] = ()
    whose: Whose | None = None


class Column(TablePart):
    """A condition that rows are trained under.

    Attributes:
        label: In the table; no two columns of a group share one.
        group: Columns of one group make a table, and a panel, of their own.
        settings: Parameters over the row's, for those trainers that have them: each row
            takes at least one, and each is taken by a row.
        settings_for: Likewise by row label, over those: what a condition means for it.
        fields: Over the row's.
        only_for: Labels of the rows with a cell here; empty is all of them.
    """

    label: Text
    group: str = ""
    settings: Settings = {}
    settings_for: dict[Text, Settings] = {}
    fields: Fields = {}
    only_for: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The label, behind the group's where there is one."""
        return f"{self.group}: {self.label}" if self.group else self.label


class TablePanel(TablePart):
    """A table whose columns are metrics, for plans with one column.

    Attributes:
        label: Above it.
        metrics: One column each.
        heads: Above the columns; by default the metrics' names.
    """

    label: str = ""
    metrics: Metrics
    heads: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> "TablePanel":
        if self.heads and len(self.heads) != len(self.metrics):
            raise ValueError(
                f"there are {len(self.heads)} heads for {len(self.metrics)} metrics: "
                "give one for each, or none"
            )
        return self

    def head(self, metric: Metric) -> str:
        """Return what stands above a metric's column."""
        if self.heads:
            return self.heads[self.metrics.index(metric)]
        owners = {m.partition(" ")[0] for m in self.metrics}
        shared = self.label and len(self.metrics) > 1 and len(owners) == 1
        return metric.partition(" ")[2] if shared and " " in metric else metric


class Elsewhere(TablePart):
    """Another data set, on which the server's model is measured after training.

    Attributes:
        dataset: A name from ``privaudit list datasets``.
        data: Where it lies; variables and ~ are expanded.
    """

    dataset: Text
    data: Text | None = None
