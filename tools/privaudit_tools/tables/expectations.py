"""What a paper's table says in words, declared so that stored numbers can be held to it."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from privaudit_tools.tables.metrics import Metric
from privaudit_tools.tables.parts import TablePart, Text


class Expectation(TablePart):
    """An order of cells, or their likeness, as a paper's text has it.

    Attributes:
        of: Which table or figure says so, such as "DP-FPL table 2".
        says: The paper's words, or what its numbers show, in a sentence.
        metric: Of the cells.
        rows: Labels of rows: in each of the columns, an earlier one is above a later.
        row: In place of rows: one row, in which an earlier column is above a later.
        columns: Names of columns, where * and [] are patterns unless row is given;
            none is the first.
        order: "falling": each is above the next; "first": the first is above all
            others, which are in no order.
        times: The upper is above so many times the lower: 0.95 of it, say.
        within: In place of an order: neighbours differ by at most so many points.
    """

    of: Text
    says: Text
    metric: Metric = "local"
    rows: tuple[str, ...] = ()
    row: str = ""
    columns: tuple[str, ...] = ()
    order: Literal["falling", "first"] = "falling"
    times: Annotated[float, Field(gt=0)] = 1.0
    within: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _check(self) -> "Expectation":
        if bool(self.row) == bool(self.rows):
            raise ValueError("an expectation is of rows or of a row: give one of them")
        if len(self.columns if self.row else self.rows) < 2:
            raise ValueError("an expectation compares two or more")
        return self

    def chosen(self, names: Sequence[str]) -> list[str]:
        """Return the columns that it is about, of those that there are."""
        if not self.columns:
            return list(names[:1])
        if self.row:
            return [name for name in self.columns if name in names]
        patterns = self.columns
        return [n for n in names if any(fnmatchcase(n, one) for one in patterns)]

    def steps(
        self, names: Sequence[str]
    ) -> list[tuple[tuple[str, str], tuple[str, str]]]:
        """Return pairs of cells, row and column each, the upper one first.

        Args:
            names: Of the columns that there are.
        """
        if self.row:
            lines = [[(self.row, column) for column in self.columns]]
        else:
            lines = [
                [(row, column) for row in self.rows] for column in self.chosen(names)
            ]
        if self.order == "first":
            return [(line[0], other) for line in lines for other in line[1:]]
        return [pair for line in lines for pair in pairwise(line)]
