"""Every table and figure of some papers: its plan, what ran, and whether the shape agrees."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from privaudit.core.errors import ConfigError
from privaudit.core.formatting import markdown_table, span
from privaudit.core.limits import read_toml
from privaudit.core.storage import read_bytes
from privaudit.runs.own_files import write_output
from privaudit_tools.tables.backbones import backbones
from privaudit_tools.tables.expectations import Expectation
from privaudit_tools.tables.parts import TablePart, Text
from privaudit_tools.tables.plan import TablePlan, read_plan
from privaudit_tools.tables.same_cells import is_earlier
from privaudit_tools.tables.stored import (
    ANOTHER,
    UNKNOWN,
    Answer,
    Judgement,
    StoredTable,
    judge,
    read_stored,
)

RESULTS = "results"
PUBLISHED = f"{RESULTS}/published.toml"
MATRIX_PAGE = "published.md"
BEGIN = (
    "<!-- matrix: privaudit table docs/tables --matrix --into docs/results/tables -->"
)
END = "<!-- end of the matrix -->"


class Published(TablePart):
    """A table or a figure of a paper.

    Attributes:
        paper: Its short name.
        name: As the paper numbers it: "table 2".
        shows: What stands in it.
        measured: Whether it holds measurements; others need no plan.
        besides: What was run by another command than a plan's, and where it stands.
    """

    paper: Text
    name: Text
    shows: Text
    measured: bool = True
    besides: str = ""

    @property
    def full_name(self) -> str:
        """The paper's name and its."""
        return f"{self.paper} {self.name}"


class _Catalogue(TablePart):
    items: tuple[Published, ...]


@dataclass(frozen=True)
class MatrixRow:
    """What one plan says of a published table or figure.

    Attributes:
        item: Which.
        plans: Paths below the folder: the one that was run; or all, where none was.
        stored: What it gave; None where none was run.
        judgements: What each expectation says, with its judgement.
        is_earlier: Whether any of what ran is no part of the plan any more.
        is_besides: Whether it was run by another command, without a plan.
    """

    item: Published
    plans: tuple[str, ...]
    stored: StoredTable | None
    judgements: Sequence[tuple[str, Judgement]]
    is_earlier: bool = False
    is_besides: bool = False

    @property
    def answer(self) -> Answer:
        """Whether the shape agrees: as every expectation says."""
        answers = {one.answer for _, one in self.judgements}
        if "no" in answers:
            return "no"
        if ANOTHER in answers:
            return ANOTHER
        return "yes" if answers == {"yes"} else UNKNOWN


def matrix_rows(folder: Path) -> list[MatrixRow]:
    """Return the rows of all that is published, in its order.

    Args:
        folder: With plans in it and in folders below, and results/, which holds
            published.toml and the .json of those that were run.

    Raises:
        MissingFileError: There is no published.toml.
        ConfigError: A file is damaged, or a plan names what was not published.
    """
    try:
        items = _Catalogue.model_validate(read_toml(folder / PUBLISHED)).items
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"{folder / PUBLISHED} lists no published tables: {where}: {first['msg']}."
        ) from None
    below = [path.relative_to(folder) for path in sorted(folder.rglob("*.toml"))]
    plans = {
        path.as_posix(): read_plan(folder / path)
        for path in below
        if RESULTS not in path.parts
    }
    _check_names(items, plans)
    return [row for item in items for row in _rows(item, plans, folder)]


def _check_names(items: Sequence[Published], plans: Mapping[str, TablePlan]) -> None:
    known = Counter(item.full_name for item in items)
    for name, plan in plans.items():
        unknown = [one for one in plan.reproduces if one not in known]
        if unknown:
            raise ConfigError(
                f"{name} reproduces {unknown[0]!r}, and {PUBLISHED} has none of that "
                "name. Add it there, or name another."
            )


def _rows(
    item: Published, plans: Mapping[str, TablePlan], folder: Path
) -> Iterator[MatrixRow]:
    """Yield a row for each plan or command that was run, and one for other plans."""
    of_it = [n for n, plan in plans.items() if item.full_name in plan.reproduces]
    stored = {n: folder / RESULTS / Path(n).with_suffix(".json") for n in of_it}
    ran = [name for name in of_it if stored[name].is_file()]
    for name in ran:
        found = read_stored(stored[name])
        judged = _judged(item, plans[name], found)
        earlier = is_earlier(found.plan, plans[name], found.spots)
        yield MatrixRow(item, (name,), found, judged, earlier)
    if item.besides:
        yield MatrixRow(item, (), None, (), is_besides=True)
    rest = tuple(name for name in of_it if name not in ran)
    if rest or not (ran or item.besides):
        yield MatrixRow(item, rest, None, ())


def _judged(
    item: Published, plan: TablePlan, stored: StoredTable
) -> list[tuple[str, Judgement]]:
    mine: list[Expectation] = [e for e in plan.expects if e.of == item.full_name]
    columns = [column.name for column in plan.columns]
    among = sum(len(expected.steps(columns)) for expected in mine)
    return [(one.says, judge(one, plan, stored, among)) for one in mine]


def as_markdown(rows: Sequence[MatrixRow], where: str) -> str:
    """Return the matrix as a table, and how many rows say what.

    Args:
        rows: Of the matrix.
        where: The plans' folder as seen from the page.
    """
    header = ["", "plan", "ran on", "seeds", "shape agrees", "what is expected"]
    body = [_line(row, where) for row in rows]
    counts = Counter(row.answer for row in rows if row.stored)
    names = {row.item.full_name for row in rows if row.item.measured}
    ran = {row.item.full_name for row in rows if row.stored}
    plans = {path for row in rows if row.stored for path in row.plans}
    others = {row.item.full_name for row in rows if row.is_besides} & names - ran
    answers = ", ".join(f"{answer}: {count}" for answer, count in counts.most_common())
    return (
        f"{markdown_table(header, body)}\n\n{len(ran)} of {len(names)} tables and "
        f"figures with measurements were run, by {len(plans)} plans, and {len(others)} "
        "by another command, whose numbers are held to nothing. Shape agrees, of the "
        f"{sum(counts.values())} rows that ran: {answers or 'nothing ran'}."
    )


def _line(row: MatrixRow, where: str) -> list[str]:
    item = row.item
    name = f"**{item.full_name}**: {item.shows}"
    if not item.measured:
        return [name, "none: no measurement", item.besides, "", "", ""]
    plans = "<br>".join(f"[{Path(p).stem}]({where}/{p})" for p in row.plans) or "none"
    if row.is_besides:
        ran = f"ran by another command: {item.besides}"
        return [name, "none", ran, "", UNKNOWN, ""]
    if row.stored is None:
        return [name, plans, "not run here", "", UNKNOWN, ""]
    seeds = span(*row.stored.seeds)
    said = [f"{says} ({_steps(one)})" for says, one in row.judgements]
    expected = "<br>".join(said) or "nothing declared"
    ran_on = backbones(row.stored.plan) + ", by an earlier plan" * row.is_earlier
    return [name, plans, ran_on, seeds, row.answer, expected]


def _steps(one: Judgement) -> str:
    """Return how many of an expectation's steps hold, of those that were run."""
    if one.answer == ANOTHER:
        return "another plan ran"
    if not one.ran:
        return f"none of {one.steps} run"
    against = f", {one.reversed} reversed" if one.reversed else ""
    part = f"; {one.ran} of {one.steps} run" if one.ran < one.steps else ""
    held = f"{one.held} of {one.ran} significant{against}"
    return f"{held}, {one.by_means} in the means{part}"


def write_between(page: Path, text: str) -> bool:
    """Put a text between the page's markers, and say whether it was another before.

    Raises:
        MissingFileError: There is no such page.
        ConfigError: The page has not each marker once, in order.
    """
    try:
        old = read_bytes(page).decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{page} is no text in UTF-8. Name another page.") from None
    before, _, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end or {old.count(BEGIN), old.count(END)} != {1}:
        raise ConfigError(
            f"{page} has no place for the matrix, or several. Put these two lines "
            f"there, once: {BEGIN} {END}"
        )
    new = f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"
    if new != old:
        write_output(page, new.encode())
    return new != old
