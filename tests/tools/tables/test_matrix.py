import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit_tools.tables.admission import Admission
from privaudit_tools.tables.expectations import Claim, digest_of
from privaudit_tools.tables.matrix import (
    BEGIN,
    END,
    MATRIX_PAGE,
    MatrixRow,
    as_markdown,
    matrix_rows,
    write_answers,
    write_between,
)
from privaudit_tools.tables.plan import TablePlan, read_plan
from privaudit_tools.tables.stored import StoredCell, StoredTable, read_stored
from privaudit_tools.tables.table import make_table
from privaudit_tools.tables.utility_table import write_utility_table
from tests.places import RESULT_TABLES, ROOT
from tests.tools.tables.test_stored import expected, plan_of

TABLES = ROOT / "docs" / "tables"
PAPERS = {
    "DP-FPL": "dp-fpl.md",
    "pFedMoAP": "pfedmoap.md",
    "FedRand": "fedrand.md",
    "FedPT": "fedpt.md",
}
NAMED = re.compile(r"\| \*\*[^*|]+\*\* \| (\w+): ([^|]+?), ([\w-]+), “([^”]+)” \|")


@pytest.fixture(scope="module")
def rows() -> list[MatrixRow]:
    return matrix_rows(TABLES)


def test_the_matrix_and_the_answers_are_current(
    rows: list[MatrixRow], tmp_path: Path
) -> None:
    """privaudit table docs/tables --matrix --into docs/results/tables."""
    page = (RESULT_TABLES / MATRIX_PAGE).read_text(encoding="utf-8")
    between = page.partition(BEGIN)[2].partition(END)[0].strip()
    assert between == as_markdown(rows, "../../tables")
    counts = [line.strip("| ") for line in between.splitlines()[-2:]]
    now = [line.partition(" now | ")[2].strip("| ") for line in page.splitlines()]
    assert {line.partition(" | ")[2].rpartition(" | ")[0] for line in counts} <= set(
        now
    )
    for paper in PAPERS.values():
        shutil.copy(RESULT_TABLES.parent / paper, tmp_path)
    assert write_answers(tmp_path, rows) == []


def test_what_is_bold_on_a_papers_page_names_an_answer_that_it_has(
    rows: list[MatrixRow],
) -> None:
    """As in a table's row: a sentence, then the answer, where, and the expectation."""
    by_place = {
        (row.item.full_name, Path(row.plans[0]).stem, says): row.answer_to(says)
        for row in rows
        for says, _ in row.judgements
    }
    for paper, name in PAPERS.items():
        text = (RESULT_TABLES.parent / name).read_text(encoding="utf-8")
        before, _, rest = text.partition(f"<!-- answers: {paper} -->")
        own = before + rest.partition("<!-- end of answers -->")[2]
        named = NAMED.findall(own)
        assert len(named) == own.count("**") // 2 >= 3, name
        for answer, *place in named:
            assert by_place[tuple(place)] == answer, place


def test_every_claim_that_stands_is_tried_on_the_published_backbone(
    rows: list[MatrixRow],
) -> None:
    claims = {(r.item.full_name, c.says): c for r in rows for c in r.item.claims}
    plans = [read_plan(path) for path in (TABLES / "clip").glob("*.toml")]
    tried = {
        (one.of, claim.says)
        for plan in plans
        for one in plan.expects
        for (of, _), claim in claims.items()
        if of == one.of and claim.covers(one.says)
    }
    assert {place for place, c in claims.items() if not c.withdrawn} <= tried


def test_every_table_and_figure_with_measurements_has_a_plan(
    rows: list[MatrixRow],
) -> None:
    assert {row.item.paper for row in rows} == set(PAPERS)
    for row in rows:
        has_plans = row.item.measured and not row.is_besides
        assert bool(row.plans) == has_plans, row.item.full_name
    assert {r.item.full_name for r in rows if r.plans} == {
        row.item.full_name for row in rows if row.item.measured
    }
    stored = {path.stem for path in (TABLES / "results").rglob("*.json")}
    shown = {Path(name).stem for row in rows if row.stored for name in row.plans}
    assert shown == stored


def declared(*says: str) -> str:
    """Return a published table with its claims, the digest theirs."""
    digest = digest_of([Claim(says=one) for one in says])
    claims = "".join(f'[[items.claims]]\nsays = "{one}"\n' for one in says)
    return (
        '[[items]]\npaper = "p"\nname = "table 1"\nshows = "all"\n'
        f'[items.declared]\non = 2026-01-02\ndigest = "{digest}"\n{claims}'
    )


def folder_of(tmp_path: Path, name: str = "p table 1") -> Path:
    """Write a plan whose rows are the same run, and what was published."""
    folder = tmp_path / "tables"
    (folder / "results").mkdir(parents=True)
    (folder / "some.toml").write_text(
        f"""title = "t"
        reproduces = ["{name}"]
        seeds = [1, 2, 3]
        metrics = ["local", "megabytes per round"]
        over = "last"
        [fields]
        clients = 2
        rounds = 1
        shots = 4
        tested = 40
        [[rows]]
        label = "a"
        trainer = "zero-shot"
        [[rows]]
        label = "b"
        trainer = "zero-shot"
        [[expects]]
        of = "{name}"
        says = "a is b"
        metric = "megabytes per round"
        rows = ["a", "b"]
        within = 1.0
        """
    )
    (folder / "results" / "published.toml").write_text(
        declared("a is b", "b is first")
        + '[[items]]\npaper = "p"\nname = "figure 1"\nshows = "it"\nmeasured = false\n'
        'besides = "`privaudit y`"\n'
    )
    return folder


def test_what_a_table_writes_is_what_the_matrix_reads(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    before = as_markdown(matrix_rows(folder), "tables")
    assert "[some](tables/some.toml) | not run here |" in before
    assert "**p figure 1**: it | none: no measurement | `privaudit y` |" in before
    table = make_table(_read(folder), folder=tmp_path / "runs")
    write_utility_table(table, folder / "results", "some")
    (row, _) = matrix_rows(folder)
    assert row.stored is not None
    assert row.answer == "open"  # since nothing tries that b is first
    cell = row.stored.cells["a", "accuracy", "local", "last"]
    assert sorted(cell.by_seed) == [1, 2, 3]
    after = as_markdown([row], "tables")
    said = "| 3 | open | a is b: *agrees*, 0.0 [0.0, 0.0]<br>not tried here: b is f"
    assert said in after
    path = folder / "some.toml"
    path.write_text(path.read_text().replace("shots = 4", "shots = 5"))
    (row, _) = matrix_rows(folder)
    changed = as_markdown([row], "tables")
    assert "`digits`, by an earlier plan |" in changed
    assert "another plan ran | a is b: *another plan ran*, 0 of 1 run" in changed
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nbehind\n")
    assert write_between(page, after)
    assert not write_between(page, after)
    assert page.read_text().startswith(f"before\n{BEGIN}\n\n|")
    assert page.read_text().endswith(f"\n\n{END}\nbehind\n")


def test_what_another_command_ran_is_counted_apart(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    with (folder / "results" / "published.toml").open("a") as file:
        file.write('[[items]]\npaper = "p"\nname = "figure 2"\nshows = "more"\n')
        file.write('besides = "`privaudit x`"\n')
    text = as_markdown(matrix_rows(folder), "tables")
    assert "more | none | ran by another command: `privaudit x` |  | not run" in text
    assert "0 of 2 tables and figures with measurements were run, by 0 plans" in text
    assert "and 1 by another command, whose numbers are held to nothing" in text


def stored_row(folder: Path) -> Path:
    """Store numbers of a 1.1 below b, at an error of 0.17; return the plan's path."""
    path = folder / "some.toml"
    old = path.read_text().replace("within = 1.0", "")
    path.write_text(old.replace('metric = "megabytes per round"', ""))
    plan = _read(folder).model_dump(mode="json", exclude_defaults=True)
    numbers = {"a": [5.0, 5.1, 4.9], "b": [5.8, 6.2, 6.3]}
    cells = [
        {"row": row, "column": "accuracy", "metric": "local", "over": "last", "n": 3,
         "mean": values[1], "sd": None, "failed": 0}
        for row, values in numbers.items()
    ]  # fmt: skip
    runs = [
        {"row": row, "column": "accuracy", "seed": seed, "run": "r", "rounds": 1,
         "seconds": 1.0, "claimed": None, "delta": None, "local_last": value}
        for row, values in numbers.items() for seed, value in enumerate(values, 1)
    ]  # fmt: skip
    content = {"plan": plan, "cells": cells, "runs": runs}
    (folder / "results" / "some.json").write_text(json.dumps(content))
    return path


def test_the_expectations_of_a_row_are_judged_together(tmp_path: Path) -> None:
    """Beyond chance by itself, and not among ten."""
    path = stored_row(folder_of(tmp_path))
    assert matrix_rows(path.parent)[0].answer == "disagrees"
    more = (
        '[[expects]]\nof = "p table 1"\nsays = "b is first (%s)"\nrows = ["b", "a"]\n'
    )
    with path.open("a") as file:
        file.write("\n".join(more % number for number in range(9)))
    (row, _) = matrix_rows(path.parent)
    assert dict(row.judgements)["a is b"].reversed == 0
    assert len(row.judgements) == 10  # though nine say the same
    assert row.answer == "open"
    assert "b is first (3)" in row.late  # than the numbers
    assert "a is b" not in row.late


def test_what_is_withdrawn_stays_in_the_row(tmp_path: Path) -> None:
    path = stored_row(folder_of(tmp_path))
    listed = path.parent / "results" / "published.toml"
    with path.open("a") as file:
        file.write('[[expects]]\nof = "p table 1"\nsays = "b is first (here)"\n')
        file.write('rows = ["b", "a"]\n')
    withdrawn = '"a is b"\nwithdrawn = "a slip"\n'
    listed.write_text(listed.read_text().replace('"a is b"\n', withdrawn))
    (row, _) = matrix_rows(path.parent)
    assert row.counted == ["agrees"]
    assert row.answer == "open"
    text = as_markdown([row], "tables")
    assert "~~a is b~~ (withdrawn: a slip; it *disagrees*, -1.1 [-1.8, -0.4]" in text
    listed.write_text(listed.read_text().replace("b is first", "b is the first"))
    with pytest.raises(ConfigError, match="not those that were declared"):
        matrix_rows(path.parent)


def test_an_expectation_of_no_claim_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (folder / "results" / "published.toml").write_text(declared("b is first"))
    with pytest.raises(ConfigError, match="'a is b' of p table 1"):
        matrix_rows(folder)


def test_rows_that_learn_nothing_are_not_admitted(tmp_path: Path) -> None:
    """a has 5 and b 6.1; 5 untrained and 2 asked of the paper's 4, then 5.1 and 0.45."""
    path = stored_row(folder_of(tmp_path))
    text = path.read_text().replace('"zero-shot"', '"promptfl"')
    path.write_text(text + "[paper.local]\na = 9.0\nb = 9.0\n")
    stored = path.parent / "results" / "some.json"
    old = json.loads(stored.read_text())
    for row in old["plan"]["rows"]:
        row["trainer"] = "promptfl"
    stored.write_text(json.dumps(old))
    zero = {**old, "runs": old["runs"][:3], "cells": old["cells"][:1]}
    (path.parent / "results" / "zero.json").write_text(json.dumps(zero))
    for published, answer in ((5.0, "not admitted"), (8.1, "disagrees")):
        (path.parent / "results" / "admission.toml").write_text(
            '[[backbones]]\nname = "`tiny-clip` with `digits`"\ntable = "zero"\n'
            f'row = "a"\npublished = {published}\nprobe = 8.0\n'
        )
        (row, _) = matrix_rows(path.parent)
        assert row.answer == answer
        why = "trained rows gain 0.6 points, 2.0 asked; a linear probe 3.0"
        assert row.refusals == ({"a is b": why} if answer == "not admitted" else {})


@pytest.mark.parametrize(
    ("metric", "numbers", "says"),
    [
        # Untrained 90 where it is compared, 40 elsewhere; 91 and 0 in the paper.
        ("local", {("a", "y"): [91.0] * 3, ("z", "y"): [90.0] * 3, ("z", "x"): [40.0] * 3},
         "trained rows gain 1.0 points, 45.5 asked"),
        ("client rmia tpr", {("a", "y"): [20.5, 21.5, 21.0]}, ""),
        ("client rmia", {("a", "y"): [40.0, 61.0, 50.0]},
         "client rmia, the strongest attack, has 50.3 without noise"),
    ],
)  # fmt: skip
def test_an_expectation_is_admitted_by_its_column_and_its_strongest_attack(
    metric: str, numbers: dict[tuple[str, str], list[float]], says: str
) -> None:
    """The strongest by mean square: another has 50.4, which chance gives one of two."""
    attacks = {"scenario": "prompt-release", "shadows": 5}
    plan = plan_of(
        **attacks,
        metrics=["local", "client rmia", "client rmia tpr", "client shadow success"],
        rows=[{"label": r, "trainer": "coop"} for r in "ab"]
        + [{"label": "z", "trainer": "zero-shot"}],
        paper={"local": {"a": {"y": 91}, "z": {"x": 30, "y": 0}}},
    )
    cells = {(*place, metric, "last"): n for place, n in numbers.items()}
    if metric == "client rmia":
        cells["a", "y", "client shadow success", "last"] = [50.3, 50.5, 50.4]
    made = {p: StoredCell(dict(enumerate(n))) for p, n in cells.items()}
    one = expected(metric=metric, rows=["a", "b"], columns=["y"])
    assert Admission(TABLES, {}).refusal(one, plan, StoredTable(plan, made)) == says


def _read(folder: Path) -> TablePlan:
    return read_plan(folder / "some.toml")


def test_damage_is_one_clear_line(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"{END} {BEGIN}")
    with pytest.raises(ConfigError, match="no place for the matrix"):
        write_between(page, "x")
    page.write_text(f"{BEGIN} {BEGIN} {END}")
    with pytest.raises(ConfigError, match="or several"):
        write_between(page, "x")
    page.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="no text in UTF-8"):
        write_between(page, "x")
    stored = folder / "results" / "some.json"
    contents: list[dict[str, Any]] = [
        {},
        {"plan": {}, "cells": [], "runs": []},
        {"plan": 3},
    ]
    for content in contents:
        stored.write_text(json.dumps(content))
        with pytest.raises(ConfigError, match=r"some\.json is not what"):
            read_stored(stored)
    (folder / "results" / "published.toml").write_text("items = [3]")
    with pytest.raises(ConfigError, match="lists no published tables"):
        matrix_rows(folder)
    with pytest.raises(MissingFileError):
        matrix_rows(tmp_path)


def test_a_plan_of_what_was_not_published_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"some\.toml reproduces 'p table 2'"):
        matrix_rows(folder_of(tmp_path, "p table 2"))


def test_plans_below_a_folder_called_results_are_found(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    moved = tmp_path / "results" / "tables"
    moved.parent.mkdir(exist_ok=True)
    folder.rename(moved)
    assert next(iter(matrix_rows(moved))).plans == ("some.toml",)
