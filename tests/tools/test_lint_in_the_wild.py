import subprocess
from pathlib import Path

import pytest

from privaudit_tools.lint_in_the_wild import (
    EXAMPLES,
    Example,
    Found,
    look,
    page,
    unpacked,
    version_of,
)

CLIENT = "def fit(self):\n    engine = PrivacyEngine()\n"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository of one file."""
    place = tmp_path / "clone"
    (place / "examples" / "one").mkdir(parents=True)
    (place / "examples" / "one" / "client.py").write_text(CLIENT)
    author = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
    for words in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", str(place), *words], check=True)
    return place


def test_the_source_of_what_does_not_run_here_is_read(
    clone: Path, tmp_path: Path
) -> None:
    example = Example("flower", "examples/one", why="it takes a GPU")
    source = unpacked(clone, example.path, tmp_path / "place")
    found = look(example, source, tmp_path / "run")
    (finding,) = found.findings
    assert finding.startswith("`client.py:2`: a new engine each time")
    assert found.seconds is None
    text = page([found], {"flower": version_of(clone)})
    assert "| flower: examples/one | not run: it takes a GPU |" in text


def test_a_row_says_what_is_claimed_and_declared() -> None:
    found = Found(
        EXAMPLES[0], "1 at δ = 1e-05", "server 2", ["a rule: a sentence"], 3.2
    )
    assert "| 1 at δ = 1e-05 | server 2 | a rule: a sentence | 3 |" in page([found], {})


def test_every_example_runs_or_says_why_not() -> None:
    assert all(bool(one.run) != bool(one.why) for one in EXAMPLES)
