"""What a paper's table says, declared so that stored numbers can be held to it."""

import hashlib
from collections.abc import Sequence
from datetime import date
from fnmatch import fnmatchcase
from itertools import combinations, pairwise
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from privaudit_tools.tables.metrics import Metric
from privaudit_tools.tables.parts import TablePart, Text


class Claim(TablePart):
    """One thing that a published table or figure says, whatever plan tries it.

    Attributes:
        says: In short; an expectation of a plan repeats it, and may add in brackets
            under which of its settings it is compared.
        words: Of the paper; of a proposal, too. Empty where its numbers alone say so.
        withdrawn: Why it is compared no more; it stays in the row, struck out.
    """

    says: Text
    words: str = ""
    withdrawn: str = ""

    def covers(self, said: str) -> bool:
        """Say whether a plan's expectation is this claim under some settings."""
        return said == self.says or said.startswith(f"{self.says} (")


class Declaration(TablePart):
    """When claims were declared, and a digest that a later change would break.

    Attributes:
        on: The day on which all claims were written down.
        digest: Of the claims; withdrawing one leaves it as it is.
    """

    on: date
    digest: Text


def digest_of(claims: Sequence[Claim]) -> str:
    """Return the digest of what claims say, in their order.

    Example:
        >>> digest_of([Claim(says="a is above b")])
        'b06bc10c'
    """
    text = "\n".join(f"{claim.says}\t{claim.words}" for claim in claims)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


class Expectation(TablePart):
    """A claim in one plan's cells: an order of them, or their likeness.

    Attributes:
        of: Which table or figure says so, such as "DP-FPL table 2".
        says: What a claim of it says, with the settings in brackets.
        metric: Of the cells.
        rows: Labels of rows: in each of the columns, an earlier one is above a later.
        row: In place of rows: one row, in which an earlier column is above a later.
        columns: Names of columns, where * and [] are patterns unless row is given;
            none is the first.
        order: "falling": each is above all behind it; "first": the first is above all
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
        compared = len(self.columns if self.row else self.rows)
        if compared < 2:
            raise ValueError("an expectation compares two or more")
        if self.within is not None and compared > 2:
            raise ValueError("within compares two: their mean says nothing of three")
        return self

    @property
    def compared(self) -> dict[str, Any]:
        """What is compared, and how, in whatever words."""
        return self.model_dump(exclude={"of", "says"})

    def chosen(self, names: Sequence[str]) -> list[str]:
        """Return the columns that rows are compared in, of those that there are."""
        if not self.columns:
            return list(names[:1])
        patterns = self.columns
        return [n for n in names if any(fnmatchcase(n, one) for one in patterns)]

    def steps(
        self, names: Sequence[str]
    ) -> list[tuple[tuple[str, str], tuple[str, str]]]:
        """Return all pairs of cells, row and column each, the upper one first.

        The contrast that an expectation is judged by is the mean of their differences.

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
        if self.within is not None:
            return [pair for line in lines for pair in pairwise(line)]
        return [pair for line in lines for pair in combinations(line, 2)]
