"""What the notes of docs/tables say can be done is what `privaudit table --check` takes."""

import re
import shlex
from pathlib import Path

import pytest

from privaudit.core.parameters import parse_pairs
from privaudit_tools.tables.overrides import overridden
from privaudit_tools.tables.plan import read_plan
from privaudit_tools.tables.schedule import schedule
from tests.places import ROOT

TABLES = ROOT / "docs" / "tables"
PLANS = [path for path in sorted(TABLES.rglob("*.toml")) if "results" not in path.parts]
PLACE = re.compile(r"\$(PRIVAUDIT_\w+)/([^\"]+)")
OPTIONS = re.compile(r"(?:--(?:set|field) [\w.]+=[^\s,;)]*[^\s,;:.)] ?)+")
OPEN = {"learning_rate": "0.01", "model": "tiny-clip", "dataset": "digits"}
"""What stands for a note's ellipsis, which the reader is to fill in."""


def commands(path: Path) -> list[str]:
    """Return the options that a plan's notes name, those of one command together."""
    found = dict.fromkeys(OPTIONS.findall(" ".join(read_plan(path).notes)))
    return [
        re.sub(r"(\w+)=…", lambda m: f"{m[1]}={OPEN[m[1]]}", text).strip()
        for text in found
    ]


NAMED = [(path, options) for path in PLANS for options in commands(path)]


@pytest.mark.parametrize(
    ("path", "options"),
    NAMED,
    ids=[f"{path.parent.name}/{path.stem} {options}" for path, options in NAMED],
)
def test_options_that_a_note_names_are_valid(
    path: Path, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, place in PLACE.findall(path.read_text()):
        monkeypatch.setenv(variable, str(tmp_path))
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
    words = shlex.split(options)
    pairs = list(zip(words[::2], words[1::2], strict=True))
    settings, fields = (
        parse_pairs("a=b", [text for option, text in pairs if option == kind])
        for kind in ("--set", "--field")
    )
    plan = read_plan(path)
    one_seed = overridden(plan, settings, fields, plan.seeds[:1])
    assert schedule(one_seed).runs


def test_a_note_that_names_options_is_found() -> None:
    """By hand: those of DP-FPL's table 6."""
    assert commands(TABLES / "clip" / "dp-fpl-table-6.toml") == [
        "--set mode=sound",
        "--set mode=published-code --set learning_rate_global=0.001 "
        "--set learning_rate_local=0.001",
    ]
