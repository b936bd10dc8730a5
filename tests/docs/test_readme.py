"""README and the installation page do what they say."""

import os
import re
import shlex
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from privaudit.core.portable_bits import bits_here, differing_operations
from privaudit.trainers import __path__ as trainers
from tests.conftest import Cli
from tests.docs.test_pages import Block, blocks_of, run
from tests.places import ROOT

README = (ROOT / "README.md").read_text()
SOURCE = "https://github.com/privaudit/privaudit/"
LINK = re.compile(r"\]\(([^)]+)\)")
NUMBER = re.compile(r"[+-]?\d\.\d{3}")
DIFFERS = 0.02  # in native bits, of an accuracy or an AUROC: kernels round differently


@dataclass(frozen=True)
class Row:
    """One run of the demo's table: what differs between machines, and what does not."""

    numbers: list[float]
    words: str


def rows_of(table: str) -> dict[str, Row]:
    """Return the rows of a printed table by their runs; names and verdicts may take two lines."""
    rows: dict[str, Row] = {}
    name = ""
    for line in table.splitlines():
        first, *cells = re.split(r" {2,}", line.strip())
        if cells and NUMBER.match(cells[0]):
            name = first
            numbers = [float(number) for number in NUMBER.findall(line)]
            rows[name] = Row(numbers, NUMBER.sub("#", " | ".join(cells)))
        elif name and first:
            row, rest = rows.pop(name), [first, *cells]
            if name.endswith(",") and line[1:2].strip():
                name, rest = f"{name} {first}", cells
            rows[name] = Row(row.numbers, " | ".join([row.words, *rest]))
        else:
            name = ""
    return rows


def printed_table() -> str:
    (block,) = re.findall(r"^```text\n(.*?)^```$", README, re.M | re.S)
    return str(block)


def demo_commands() -> list[list[str]]:
    """Return the words of the commands that ``make demo`` calls."""
    (recipe,) = re.findall(
        r"^demo: \$\(READY\)\n(.*?)\n\n", (ROOT / "Makefile").read_text(), re.M | re.S
    )
    lines = recipe.replace("\\\n", " ").splitlines()
    return [
        shlex.split(line.split("privaudit", 1)[1])
        for line in lines
        if "/privaudit " in line
    ]


@pytest.mark.slow
def test_the_demo_prints_what_the_readme_says(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first two runs, or all where DEMO_OUTPUT holds what ``make demo`` printed."""
    said = rows_of(printed_table())
    if output := os.environ.get("DEMO_OUTPUT"):
        found = rows_of(Path(output).read_text())
        assert list(found) == list(said)
    else:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COLUMNS", "120")
        train, attack = demo_commands()
        places = [i for i, word in enumerate(train) if word == "--trainer"]
        code, _, err = cli(*train[: places[2]])
        assert code == 0, err
        code, out, err = cli(*attack)
        assert code == 0, err
        found = rows_of(out)
        assert list(found) == list(said)[:2]
    is_portable = bits_here() == "portable" and not differing_operations()
    allowed = 0 if is_portable else DIFFERS  # to the last digit, as the demo computes
    for name, row in found.items():
        assert row.words == said[name].words
        assert row.numbers == pytest.approx(said[name].numbers, abs=allowed)


def test_the_demos_rows_are_the_runs_that_it_trains() -> None:
    words = demo_commands()[0]
    specs = [words[i + 1] for i, word in enumerate(words) if word == "--trainer"]
    rows = list(rows_of(printed_table()))
    assert len(rows) == len(specs)
    for row, spec in zip(rows, specs, strict=True):
        name, _, settings = spec.partition(":")
        assert row.partition(",")[0] == name
        for setting in filter(None, settings.split(",")):
            key, _, value = setting.partition("=")
            said = f"ε {value}" if key == "epsilon" else value
            assert key.startswith("learning_rate") or said in row, (row, setting)


def test_another_machines_last_digits_are_the_same_and_another_verdict_is_not() -> None:
    row = (
        " promptfl   0.889 [0.862, 0.915]   0.688 [0.640, 0.732]   Leaks   none, none\n"
    )
    here, digit, verdict = (
        rows_of(one)["promptfl"]
        for one in (row, row.replace("688", "692"), row.replace("Leaks", "Undecided"))
    )
    assert here.words == digit.words != verdict.words
    assert here.numbers == pytest.approx(digit.numbers, abs=DIFFERS)
    two = " dp-fpl, ε 0.1,   0.682 [0.646, 0.718]   0.1, none\n noise_at server\n"
    assert list(rows_of(two)) == ["dp-fpl, ε 0.1, noise_at server"]
    open_row = (
        row.replace("Leaks", "Undecided") + 40 * " " + "2 more trainings\n\nn = 1"
    )
    assert rows_of(open_row)["promptfl"].words.endswith("none, none | 2 more trainings")


def test_links_are_whole_addresses_and_lead_to_what_is_there() -> None:
    found = LINK.findall(README)
    assert found
    for link in found:
        place = re.fullmatch(
            r"https://(?:raw\.githubusercontent|github)\.com/privaudit/privaudit/"
            r"(?:blob/)?main/([^#]+)(?:#(.+))?",
            link,
        )
        assert place, link
        path = ROOT / place[1]
        assert path.exists(), link
        if place[2]:
            heads = re.findall(r"^#+ (.*)$", path.read_text(), re.M)
            slugs = [re.sub(r"[^\w -]", "", head.lower()) for head in heads]
            assert place[2] in [slug.replace(" ", "-") for slug in slugs], link


def test_a_packages_page_names_its_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["authors"]
    assert "Typing :: Typed" in project["classifiers"]
    for url in project["urls"].values():
        assert url.startswith(SOURCE.rstrip("/"))
        path = url.removeprefix(SOURCE).removeprefix("blob/main/")
        assert path in (SOURCE.rstrip("/"), "issues") or (ROOT / path).is_file()


@pytest.mark.slow
def test_its_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks: list[Block] = blocks_of(README)
    assert blocks
    for block in blocks:
        short = block.code.replace("seed=1)", "seed=1, rounds=2)")
        short = short.replace('reconstruct")', 'reconstruct", shadows=0)')
        assert "AUROC" in run(Block(short, block.line, ""), "README.md", {})


def test_it_counts_the_training_methods() -> None:
    count = sum(1 for path in Path(trainers[0]).glob("[a-z]*.py"))
    assert f"one of {count} training methods" in README


def test_it_is_short() -> None:
    """The first screen says what it is; lists of methods have a page of their own."""
    assert len(README.splitlines()) < 110


FILES = sorted(
    path
    for pattern in ("*.md", "docs/**/*", "ci/*", ".ci/*", ".github/**/*", "privaudit/**/*.py")
    for path in ROOT.glob(pattern)
    if path.suffix in (".md", ".yml", ".yaml", ".py", ".toml", ".sh", ".txt", "")
    and path.is_file()
)  # fmt: skip
INSTALLS = re.compile(
    r"(?:pip3?|pipx|uv pip|uv tool|poetry) (?:install|download|add|run)\b.*"
)
BARE = re.compile(
    r"(?<![\w./-])privaudit(?:\[[\w,-]+\])?(?=$|[\s\"'`)=<>~!,;.])(?! @ git\+https://)"
)
COMMIT = "0123456789abcdef0123456789abcdef01234567"
GIT = "privaudit @ git+https://github.com/privaudit/privaudit@"


def bare_names(text: str) -> list[str]:
    """Return the lines that install the package by its name alone."""
    found = (line[0] for line in INSTALLS.finditer(text))
    return [line for line in found if BARE.search(line.partition("#")[0])]


def test_no_page_job_or_error_installs_the_bare_name() -> None:
    assert len(FILES) > 500
    found = {
        path.relative_to(ROOT).as_posix(): lines
        for path in FILES
        if (lines := bare_names(path.read_text(encoding="utf-8")))
    }
    assert found == {}


@pytest.mark.parametrize(
    "line",
    [
        "    pip install privaudit",
        "pip install privaudit==0.1.0",
        "`python -m pip install 'privaudit[ray]'`",
        'pip install torch "privaudit[ray,hf]"',
        "pip install --upgrade privaudit    # a comment",
        "pip install privaudit. Then",
    ],
)
def test_a_bare_name_is_found(line: str) -> None:
    assert bare_names(line)


def test_a_clone_a_commit_and_a_wheel_are_none() -> None:
    for what in (
        "./privaudit",
        "'./privaudit[ray]'",
        f'"{GIT}{COMMIT}"',
        "dist/privaudit-0.1.0-py3-none-any.whl",
        "'pyarrow>=17'  # as privaudit says",
    ):
        assert not bare_names(f"pip install {what}"), what


def guard_of(name: str) -> str:
    """Return the line of a CI file that looks at what is to be installed."""
    content = yaml.safe_load((ROOT / "ci" / name).read_text(encoding="utf-8"))
    if name == "gitlab.yml":
        return str(content[".privaudit"]["before_script"][0])
    return str(content["runs"]["steps"][1]["run"].splitlines()[0])


@pytest.mark.parametrize("name", ["action.yml", "gitlab.yml"])
def test_a_job_refuses_whatever_is_neither_a_wheel_nor_a_whole_commit(
    name: str, tmp_path: Path
) -> None:
    """The very line of the file, in a shell."""

    def passes(package: str) -> bool:
        given = {"PACKAGE": package, "PRIVAUDIT_PACKAGE": package}
        line = ["bash", "-c", guard_of(name)]
        done = subprocess.run(
            line, env=given, cwd=tmp_path, capture_output=True, check=False
        )
        return done.returncode == 0

    assert passes("dist/privaudit-0.1.0-py3-none-any.whl")
    assert passes(f"{GIT}{COMMIT}")
    bad = (
        "",
        "privaudit",
        "privaudit==0.1.0",
        GIT,
        f"{GIT}main",
        f"{GIT}{COMMIT[:12]}",
    )
    assert not any(map(passes, bad))
