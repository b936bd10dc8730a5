"""The plans of docs/tables: of the papers' tables, ready to run."""

import math
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from privaudit.federation.trainer import Task
from privaudit.runs.config import build_trainer
from privaudit_tools.tables.metrics import attack_of
from privaudit_tools.tables.parts import Column
from privaudit_tools.tables.pieces import PROVED, read_records
from privaudit_tools.tables.plan import TablePlan, read_plan
from privaudit_tools.tables.schedule import schedule, settings_of
from tests.conftest import toy_records
from tests.places import RESULT_TABLES, ROOT
from tests.toy_federation import Play

PLANS = sorted((ROOT / "docs" / "tables").glob("*.toml"))


@pytest.fixture
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let a plan's variables stand for a folder, with whatever it names in it."""
    for name in ("DATA", "SURROGATES", "PROJECTORS", "WEIGHTS"):
        monkeypatch.setenv(f"PRIVAUDIT_{name}", str(tmp_path))
    return tmp_path


def test_there_are_plans() -> None:
    assert len(PLANS) >= 21


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_committed_plan_can_be_run(path: Path, somewhere: Path) -> None:
    for place in re.findall(r"\$PRIVAUDIT_\w+/([^\"]+)", path.read_text()):
        (somewhere / place).mkdir(parents=True, exist_ok=True)
    plan = read_plan(path)
    assert len(plan.seeds) >= 3
    assert schedule(plan).runs


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_committed_plan_names_no_place_of_one_machine(path: Path) -> None:
    plan = read_plan(path)
    for name in {"data", "model"} & set(plan.fields):
        place = re.sub(
            "^(surrogate|aligned|language|encoder):", "", str(plan.fields[name])
        )
        assert place.startswith("$PRIVAUDIT_") or place == "tiny-llava"
    assert plan.source
    assert plan.notes


@pytest.mark.parametrize("name", ["dp-fpl-2-3-caltech-sound", "dp-fpl-2-3-digits"])
def test_columns_by_certified_epsilon_certify_all_rows_alike(
    name: str, play: Play, task: Task, somewhere: Path
) -> None:
    """In one round of a toy federation of as many clients, counted for 100 rounds."""
    for place in ("caltech101/caltech101_mnetv1_emb_u8.npz", "caltech-bank"):
        (somewhere / place).mkdir(parents=True)
    plan = read_plan(ROOT / "docs" / "tables" / f"{name}.toml")
    planned = schedule(plan)
    clients = [f"client-{n}" for n in range(plan.fields["clients"])]
    large = replace(task, rounds=100, candidates=dict.fromkeys(clients, 400))
    shards = {client: toy_records(4, n) for n, client in enumerate(clients)}
    runs = {run.short_hash: run for run in planned.runs}
    columns = [
        c for c in plan.columns if c.group.startswith("published-code, rate 0.001, by")
    ]
    assert len(columns) == 3
    for column in columns:
        for row in plan.rows:
            run = runs[planned.places[row.label, column.name, plan.seeds[0]]]
            trainer = build_trainer(run.trainer, run.settings)
            proved = play(trainer, 1, task=large, shards=shards).proved("released", 100)
            assert proved == pytest.approx(float(column.label), rel=5e-3)


EVERY = [*PLANS, *sorted((PLANS[0].parent / "clip").glob("*.toml"))]
ELSEWHERE = "as on Oxford Pets"
"""In what the paper shows on another data set than the one in brackets."""


@pytest.mark.parametrize("path", EVERY, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_an_expectation_is_what_the_papers_own_numbers_show(path: Path) -> None:
    plan = read_plan(path)
    for one in plan.expects:
        for step in one.steps([column.name for column in plan.columns]):
            upper, lower = (plan.printed(one.metric, *spot) for spot in step)
            if upper is None or lower is None or ELSEWHERE in one.says:
                continue
            gap = upper.mean - one.times * lower.mean
            holds = gap > 0 if one.within is None else abs(gap) <= one.within
            assert holds, (one.of, one.says, step, upper.text, lower.text)


def test_plans_without_expectations_are_those_whose_papers_say_nothing() -> None:
    """The proposal expects nothing there, and shares of attention are no metric."""
    silent = {path.stem for path in EVERY if not read_plan(path).expects}
    nothing = {f"fedpt-{name}" for name in ("ablations", "settings", "domains")}
    assert silent <= {*nothing, "fedpt-encoder", "pfedmoap-figure-6"}


def digests(name: str) -> dict[str, set[str]]:
    """Return the runs of each row of a plan, whose model is attacked left out."""
    planned = schedule(read_plan(PLANS[0].parent / f"{name}.toml"))
    found: dict[str, set[str]] = {}
    for (row, _, _), digest in planned.places.items():
        found.setdefault(re.sub(r" \((server|client)\)", "", row), set()).add(digest)
    return found


def test_the_tables_of_one_paper_share_their_runs() -> None:
    first = digests("fedrand-1-scenes")
    assert len(set.union(*first.values())) == 18
    assert digests("fedrand-2-far") == first
    results = digests("fedrand-4-leaks")
    del results[
        "FedRand, second-to-last"
    ]  # the same training, to be attacked otherwise
    assert set.union(*results.values()) == set.union(*first.values())
    assert digests("fedrand-3-ablations")["FedRand"] == first["FedRand"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("dp-fpl-2-3-caltech-sound", "at the claimed ε"),
        ("fedrand-4-leaks", "equals 'image, 0 %'"),
        ("fedrand-flickr", "equals 'image, 0 %'"),
    ],
)
def test_a_plan_that_compares_unlike_things_says_so(name: str, says: str) -> None:
    (path,) = (path for path in PLANS if path.stem == name)
    notes = tomllib.loads(path.read_text(encoding="utf-8"))["notes"]
    marked = [note for note in notes if note.startswith("Unlike things: ")]
    assert any(says in note for note in marked)
    assert "⚠" in (RESULT_TABLES / f"{name}.md").read_text(encoding="utf-8")


def published_data(plan: TablePlan) -> bool:
    """Say whether a plan's source names its data set, whose numbers are in brackets."""
    source = re.findall(r"[a-z0-9]+", plan.source.lower().replace("-", ""))
    fields = [{**plan.fields, **r.fields, **c.fields} for r, c in plan.cells]
    names = {
        Path(str(f["data"])).name.partition("_")[0]
        if str(f["dataset"]).endswith("-bank")
        else str(f["dataset"])
        for f in fields
    }
    return all(name.replace("-", "") in source for name in names)


def claims_alike(plan: TablePlan, column: Column) -> bool:
    """Say whether one ε in a column is of several published mechanisms, or places.

    Or of models of which one was tuned without noise afterwards, and has no proof.
    """
    rows = [row for row, one in plan.cells if one == column]
    settings = [settings_of(plan, row, column) for row in rows]
    claims = {one.get("epsilon") for one in settings if "epsilon" in one}
    modes = [str(one.get("mode")) for one in settings]
    published = any(mode.startswith("published") for mode in modes)
    mechanisms = {
        (row.trainer, row.settings.get("mu"), mode == "sound")
        for row, mode in zip(rows, modes, strict=True)
    }
    places = {one.get("noise_by") for one in settings if "epsilon" in one}
    tunes_after = {row.trainer == "dp-pfedmoap" for row in rows}  # without noise
    differ = (published and len(mechanisms) > 1) or len(places) > 1
    differ |= len(tunes_after) > 1
    return differ and len(claims) == 1 and None not in claims


def pairs_otherwise(plan: TablePlan) -> bool:
    """Say whether FedRand's clients stand beside the paper's, reconstructed otherwise."""
    return any(
        row.trainer == "fedrand"
        and settings_of(plan, row, column).get("pairing") != "second-to-last"
        and attack_of(metric) is not None
        and plan.read_as(metric, row).startswith("client ")
        and plan.printed(metric, row.label, column.name)
        for row, column in plan.cells
        for metric in plan.measured
    )


def unlike(plan: TablePlan) -> dict[str, bool]:
    """Return what a note on unlike things has to name, and whether there is need."""
    return {
        "in brackets": bool(plan.paper) and not published_data(plan),
        "certified unequally": any(claims_alike(plan, c) for c in plan.columns),
        "second-to-last": pairs_otherwise(plan),
    }


@pytest.mark.parametrize("path", EVERY, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_a_plan_says_what_is_unlike_by_rule(path: Path) -> None:
    plan = read_plan(path)
    marked = [note for note in plan.notes if note.startswith("Unlike things: ")]
    needed = unlike(plan)
    if path.parent.name == "clip":
        del needed["in brackets"]  # on the papers' own data sets
    for words, is_needed in needed.items():
        assert not is_needed or any(words in note for note in marked), words
    if marked and (path.parent / "results" / f"{path.stem}.json").is_file():
        page = (RESULT_TABLES / f"{path.stem}.md").read_text(encoding="utf-8")
        assert "⚠" in page.partition("<!-- stored")[0]


def test_a_column_of_certified_epsilon_has_what_its_head_says() -> None:
    results, compared = ROOT / "docs" / "tables" / "results", 0
    for path in results.glob("dp-fpl-*.json"):
        for run in read_records(path).runs:
            head = re.search(r"by certified ε: ([\d.]+)$", run.column)
            if head:
                proved = run.numbers[f"{PROVED}released"]
                assert proved == pytest.approx(float(head[1]), rel=0.01), run.run
                compared += 1
    assert compared > 100


def test_what_certifies_unequally_is_found_by_the_rule() -> None:
    """Stored ε of one claim in one column differ only where mechanisms do."""
    results = ROOT / "docs" / "tables" / "results"
    compared = 0
    for path in PLANS:
        if not (results / f"{path.stem}.json").is_file():
            continue
        plan = read_plan(path)
        proved: dict[tuple[str, float | None], set[float | None]] = {}
        for run in read_records(results / f"{path.stem}.json").runs:
            if run.claimed:
                known = proved.setdefault((run.column, run.claimed), set())
                known.add(run.numbers.get(f"{PROVED}released"))
        alike = {column.name for column in plan.columns if claims_alike(plan, column)}
        for (column, _), found in proved.items():
            numbers = [value or math.inf for value in found]
            if max(numbers) > 1.01 * min(numbers) and "certified ε" not in column:
                assert column in alike, (path.stem, column)
                compared += 1
    assert compared > 20
