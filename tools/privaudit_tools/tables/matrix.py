"""Every table and figure of some papers: its plan, what ran, and what that answers."""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from pydantic import ValidationError, model_validator

from privaudit.core.errors import ConfigError
from privaudit.core.formatting import markdown_table
from privaudit.core.limits import read_toml
from privaudit.core.parameters import first_problem
from privaudit.core.storage import read_bytes
from privaudit.runs.own_files import write_output
from privaudit_tools.tables.admission import Admission
from privaudit_tools.tables.backbones import backbones, span
from privaudit_tools.tables.expectations import (
    Claim,
    Declaration,
    digest_of,
)
from privaudit_tools.tables.parts import TablePart, Text
from privaudit_tools.tables.plan import TablePlan, read_plan
from privaudit_tools.tables.same_cells import is_earlier
from privaudit_tools.tables.stored import (
    FOUR,
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
ANSWERS_END = "<!-- end of answers -->"


class Published(TablePart):
    """A table or a figure of a paper.

    Attributes:
        paper: Its short name.
        name: As the paper numbers it: "table 2".
        shows: What stands in it.
        measured: Whether it holds measurements; others need no plan.
        besides: What was run by another command than a plan's, and where it stands.
        claims: What it says, each once; plans say where they try it.
        declared: When the claims were written down, and their digest.
    """

    paper: Text
    name: Text
    shows: Text
    measured: bool = True
    besides: str = ""
    claims: tuple[Claim, ...] = ()
    declared: Declaration | None = None

    @model_validator(mode="after")
    def _check(self) -> "Published":
        found = digest_of(self.claims) if self.claims else None
        if found != (self.declared and self.declared.digest):
            raise ValueError(
                f"the claims of {self.full_name} have the digest {found}, and are not "
                "those that were declared: withdraw one, with the reason, and do not "
                "change it; with a new one declare all again, with the date and digest"
            )
        return self

    @property
    def full_name(self) -> str:
        """The paper's name and its."""
        return f"{self.paper} {self.name}"

    def claim(self, said: str) -> Claim | None:
        """Return the claim that a plan's expectation tries."""
        return next((one for one in self.claims if one.covers(said)), None)


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
        refusals: Why what ran cannot show some of them, by what they say.
        late: Those that are compared otherwise than the plan said when it ran.
        is_earlier: Whether any of what ran is no part of the plan any more.
        is_besides: Whether it was run by another command, without a plan.
    """

    item: Published
    plans: tuple[str, ...]
    stored: StoredTable | None
    judgements: Sequence[tuple[str, Judgement]]
    refusals: Mapping[str, str] = field(default_factory=dict)
    late: Collection[str] = ()
    is_earlier: bool = False
    is_besides: bool = False

    def answer_to(self, says: str) -> Answer:
        """Return the answer to an expectation, admitted or not."""
        return (
            "not admitted"
            if says in self.refusals
            else dict(self.judgements)[says].answer
        )

    @property
    def counted(self) -> list[Answer]:
        """The answers to the expectations that are not withdrawn."""
        return [
            self.answer_to(says) for says, _ in self.judgements if not self._gone(says)
        ]

    @property
    def untried(self) -> list[str]:
        """What the table claims that the plan does not try."""
        tried = [says for says, _ in self.judgements]
        return [
            claim.says for claim in self.item.claims
            if not claim.withdrawn and not any(map(claim.covers, tried))
        ]  # fmt: skip

    @property
    def answer(self) -> Answer:
        """What all expectations say that are admitted and not withdrawn.

        One that disagrees is enough. All agree only if nothing of the table was left
        out, and what was withdrawn agrees, too.
        """
        if self.stored is None:
            return "not run"
        counted = self.counted
        if not counted:
            return "nothing declared"
        answers = set(counted) - {"not admitted"}
        if not answers:
            return "not admitted"
        for one in ("disagrees", "another plan ran", "open"):
            if one in answers:
                return one
        if "absent" in answers:
            return "absent"
        gone = {self.answer_to(says) for says, _ in self.judgements if self._gone(says)}
        is_whole = not self.untried and "not admitted" not in counted
        return "agrees" if is_whole and gone <= {"agrees"} else "open"

    def _gone(self, says: str) -> bool:
        claim = self.item.claim(says)
        return claim is not None and bool(claim.withdrawn)


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
        place, said = first_problem(error.errors())
        where = ".".join(map(str, place))
        raise ConfigError(
            f"{folder / PUBLISHED} lists no published tables: {where}: {said}."
        ) from None
    below = [path.relative_to(folder) for path in sorted(folder.rglob("*.toml"))]
    plans = {
        path.as_posix(): read_plan(folder / path)
        for path in below
        if RESULTS not in path.parts
    }
    _check_names(items, plans)
    admission = Admission.read(folder)
    return [row for item in items for row in _rows(item, plans, folder, admission)]


def _check_names(items: Sequence[Published], plans: Mapping[str, TablePlan]) -> None:
    known = {item.full_name: item for item in items}
    for name, plan in plans.items():
        unknown = [one for one in plan.reproduces if one not in known]
        if unknown:
            raise ConfigError(
                f"{name} reproduces {unknown[0]!r}, and {PUBLISHED} has none of that "
                "name. Add it there, or name another."
            )
        for one in plan.expects:
            if known[one.of].claim(one.says) is None:
                raise ConfigError(
                    f"{name} expects {one.says!r} of {one.of}, and {PUBLISHED} has no "
                    "such claim of it. Declare it there, or say what is declared, with "
                    "the settings in brackets behind it."
                )


def _rows(
    item: Published,
    plans: Mapping[str, TablePlan],
    folder: Path,
    admission: Admission,
) -> Iterator[MatrixRow]:
    """Yield a row for each plan or command that was run, and one for other plans."""
    of_it = [n for n, plan in plans.items() if item.full_name in plan.reproduces]
    stored = {n: folder / RESULTS / Path(n).with_suffix(".json") for n in of_it}
    ran = [name for name in of_it if stored[name].is_file()]
    for name in ran:
        yield _ran(item, name, plans[name], read_stored(stored[name]), admission)
    if item.besides:
        yield MatrixRow(item, (), None, (), is_besides=True)
    rest = tuple(name for name in of_it if name not in ran)
    if rest or not (ran or item.besides):
        yield MatrixRow(item, rest, None, ())


def _ran(
    item: Published,
    name: str,
    plan: TablePlan,
    stored: StoredTable,
    admission: Admission,
) -> MatrixRow:
    """Judge what a plan expects of one published table, all that is admitted together."""
    mine = [one for one in plan.expects if one.of == item.full_name]
    why = {one.says: admission.refusal(one, plan, stored) for one in mine}
    refusals = {says: reason for says, reason in why.items() if reason}
    counted = [
        one
        for one in mine
        if one.says not in refusals
        and not ((claim := item.claim(one.says)) and claim.withdrawn)
    ]
    columns = [column.name for column in plan.columns]
    steps = sum(len(one.steps(columns)) for one in counted)
    judged = [(one.says, judge(one, plan, stored, len(counted), steps)) for one in mine]
    earlier = is_earlier(stored.plan, plan, stored.spots)
    before = [one.compared for one in stored.plan.expects]
    late = {one.says for one in mine if one.compared not in before}
    return MatrixRow(item, (name,), stored, judged, refusals, late, earlier)


def as_markdown(rows: Sequence[MatrixRow], where: str) -> str:
    """Return the matrix as a table, and how many rows and expectations say what.

    Args:
        rows: Of the matrix.
        where: The plans' folder as seen from the page.
    """
    header = ["", "plan", "ran on", "seeds", "answer", "what is expected"]
    body = [_line(row, where) for row in rows]
    names = {row.item.full_name for row in rows if row.item.measured}
    ran = {row.item.full_name for row in rows if row.stored}
    plans = {path for row in rows if row.stored for path in row.plans}
    others = {row.item.full_name for row in rows if row.is_besides} & names - ran
    by_row = Counter(row.answer for row in rows if row.stored)
    by_claim = Counter(answer for row in rows for answer in row.counted)
    return (
        f"{markdown_table(header, body)}\n\n{len(ran)} of {len(names)} tables and "
        f"figures with measurements were run, by {len(plans)} plans, and {len(others)} "
        "by another command, whose numbers are held to nothing.\n\n"
        f"{markdown_table(*_counts(by_row, by_claim))}"
    )


def _counts(*counted: Counter[Answer]) -> tuple[list[str], list[list[str]]]:
    others = [
        a for a in get_args(Answer) if a not in FOUR and any(c[a] for c in counted)
    ]
    answers = [*FOUR, *others]
    lines = [
        [what, *(str(count[answer]) for answer in answers), str(count.total())]
        for what, count in zip(("rows that ran", "expectations"), counted, strict=True)
    ]
    return ["", *answers, "all"], lines


def _line(row: MatrixRow, where: str) -> list[str]:
    item = row.item
    name = f"**{item.full_name}**: {item.shows}"
    if not item.measured:
        return [name, "none: no measurement", item.besides, "", "", ""]
    plans = "<br>".join(f"[{Path(p).stem}]({where}/{p})" for p in row.plans) or "none"
    if row.is_besides:
        ran = f"ran by another command: {item.besides}"
        return [name, "none", ran, "", row.answer, ""]
    if row.stored is None:
        return [name, plans, "not run here", "", row.answer, ""]
    seeds = span(*row.stored.seeds)
    said = [_said(row, says, one) for says, one in row.judgements]
    said += [f"not tried here: {says}" for says in row.untried]
    expected = "<br>".join(said) or "nothing declared"
    ran_on = backbones(row.stored.plan) + ", by an earlier plan" * row.is_earlier
    return [name, plans, ran_on, seeds, row.answer, expected]


def _said(row: MatrixRow, says: str, one: Judgement) -> str:
    """Return an expectation with its answer, struck out where it is withdrawn."""
    claim = row.item.claim(says)
    answer, dagger = row.answer_to(says), " †" * (says in row.late)
    numbers = row.refusals.get(says) or in_numbers(one)
    if claim and claim.withdrawn:
        why = f"withdrawn: {claim.withdrawn}; it *{answer}*"
        return f"~~{says}~~{dagger} ({why}, {numbers})"
    return f"{says}{dagger}: *{answer}*, {numbers}"


def in_numbers(one: Judgement) -> str:
    """Return a contrast with its interval, its size of no effect, and what is missing."""
    if one.contrast is None:
        return f"{one.ran} of {one.steps} run"
    if math.isinf(one.half):
        text = f"{one.contrast:.1f} without an interval"
    else:
        low, high = one.contrast - one.half, one.contrast + one.half
        text = f"{one.contrast:.1f} [{low:.1f}, {high:.1f}]"
    text += f", δ {one.small:.2g}" * (one.answer == "absent")
    text += f", about {one.needed} seeds" * (one.needed is not None)
    if one.steps > 1:
        text += f"; {one.by_means} of {one.steps} in the means"
    text += f", {one.reversed} reversed" * (one.reversed > 0)
    return text + f"; {one.ran} of {one.steps} run" * (one.ran < one.steps)


def answers_of(rows: Sequence[MatrixRow], paper: str) -> str:
    """Return what was tried of a paper's claims, each with its answers, as a table.

    Args:
        rows: Of the matrix.
        paper: Its short name.
    """
    lines = [
        [
            f"{item.name}: {claim.says}" + f" ({claim.words})" * bool(claim.words),
            "<br>".join(answers),
        ]
        for item in dict.fromkeys(row.item for row in rows if row.item.paper == paper)
        for claim in item.claims
        if (answers := list(_answers(claim, item, rows)))
    ]
    return markdown_table(["claim", "answers"], lines)


def _answers(claim: Claim, item: Published, rows: Sequence[MatrixRow]) -> Iterator[str]:
    """Yield each answer to a claim, with plan and settings; then where none can be."""
    refused: dict[str, None] = {}
    for row in rows:
        for says, one in row.judgements if row.item == item else ():
            answer, plan = row.answer_to(says), Path(row.plans[0]).stem
            if not claim.covers(says):
                continue
            if answer == "not admitted":
                refused[plan] = None
                continue
            where = f"{plan}{says.removeprefix(claim.says)}: {in_numbers(one)}"
            gone = "withdrawn; it " * bool(claim.withdrawn)
            yield f"{gone}**{answer}** {where}"
    if refused:
        yield f"not admitted: {', '.join(refused)}"


def write_answers(folder: Path, rows: Sequence[MatrixRow]) -> list[Path]:
    """Put each paper's answers into the page that has a place for them.

    Returns:
        Pages that were changed.
    """
    written = []
    for paper in dict.fromkeys(row.item.paper for row in rows):
        begin = f"<!-- answers: {paper} -->"
        for page in sorted(folder.glob("*.md")):
            has_place = begin.encode() in read_bytes(page)
            text = answers_of(rows, paper)
            if has_place and write_between(page, text, begin, ANSWERS_END):
                written.append(page)
    return written


def write_between(page: Path, text: str, begin: str = BEGIN, end: str = END) -> bool:
    """Put a text between the page's markers, and say whether it was another before.

    Raises:
        MissingFileError: There is no such page.
        ConfigError: The page has not each marker once, in order.
    """
    old = read_page(page)
    before, _, rest = old.partition(begin)
    _, found, after = rest.partition(end)
    if not found or {old.count(begin), old.count(end)} != {1}:
        raise ConfigError(
            f"{page} has no place for the matrix, or several. Put these two lines "
            f"there, once: {begin} {end}"
        )
    new = f"{before}{begin}\n\n{text}\n\n{end}{after}"
    if new != old:
        write_output(page, new.encode())
    return new != old


def read_page(page: Path) -> str:
    """Return a page's text.

    Raises:
        MissingFileError: There is no such page.
        ConfigError: It is no text in UTF-8.
    """
    try:
        return read_bytes(page).decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{page} is no text in UTF-8. Name another page.") from None
