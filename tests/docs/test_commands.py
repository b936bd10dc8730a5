"""Every command line of a page is one: its command, options, values and names exist.

Nothing is run: lines are parsed as the shell and privaudit would.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from privaudit.auditing.attack import ATTACKS
from privaudit.auditing.scenario import SCENARIOS
from privaudit.cli import options
from privaudit.cli.main import app
from privaudit.core.errors import PrivauditError, StorageError
from privaudit.datasets.dataset import DATASETS
from privaudit.federation.trainer import TRAINERS
from privaudit.runs.config import build_trainer
from tests.places import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "AGENTS.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
INDENTED = re.compile(r"(?:^    .*\n|^ *\n(?=    ))+", re.M)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
COMMAND = re.compile(
    r"(?:^|[;&|(] *|\bdo |\bxargs |^\$ |[\"'=] ?)(?:\w+=\S* )*privaudit (?=[a-z])"
)
SHELL = ("", "sh", "bash", "console", "shell", "text", "yaml")
NAMES: dict[str, Any] = {"trainer": TRAINERS, "trainers": TRAINERS}
NAMES |= {"scenario": SCENARIOS, "dataset": DATASETS}
OTHERS = ("1", "scores", "my-attack")  # a blank; of scores; of CONTRIBUTING's reader
LEFT_OUT = re.compile(r"…|\.\.\.")  # whatever stands here
BLANK = re.compile(
    r"\$\{?\w+(:\?)?\}?|\b[A-Z][A-Z_]+\b|<\w+>"
)  # a name of the reader's
UNLIKE = re.compile(r"[\[\]](?=--| |$)|\b2?>.*")  # [what may be left out], redirection
COMMANDS: Any = typer.main.get_command(app)
LACKS = "Missing"  # a page may name a command without all that it needs


def command_lines(text: str) -> Iterator[str]:
    """Yield the lines of code and the inline code of a page that call privaudit."""
    blocks = BLOCK.findall(text)
    rest = BLOCK.sub("", text)
    parts = [code for language, code in blocks if language in SHELL]
    parts += INDENTED.findall(rest)
    lines = [line for part in parts for line in part.replace("\\\n", " ").splitlines()]
    lines += INLINE.findall(INDENTED.sub("\n", rest))
    for line in lines:
        found = list(COMMAND.finditer(line.strip()))
        for one in found:
            yield line.strip()[one.end() - len("privaudit ") :]


def words_of(line: str) -> list[str]:
    """Return a command's words up to where the shell takes over, or a comment begins."""
    line = UNLIKE.sub("", LEFT_OUT.sub("", line)).replace(
        "s3://", ""
    )  # needs a package
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>()")
    lexer.whitespace_split, lexer.commenters = True, "#"
    words = []
    for word in lexer:
        if set(word) <= set(";&|<>()") and word:
            break
        words.append(word)
    return words


def parse(words: list[str]) -> click.Context | None:
    """Parse a command without running it; None where only something is missing.

    Raises:
        Exception: There is no such command, option or value.
    """
    found: Any = COMMANDS
    context = click.Context(found)
    words = words[1:]
    while hasattr(found, "commands"):
        if not words or words[0].startswith("-"):
            return None
        name, found, words = found.resolve_command(context, words)
    try:
        parsed: click.Context = found.make_context(name, words, parent=context)
    except Exception as error:
        is_place = isinstance(error, StorageError) and "there is no folder" in str(
            error
        )
        lacks = LACKS in type(error).__name__ or "requires an argument" in str(error)
        if is_place or lacks:
            return None
        raise
    return parsed


def check_names(context: click.Context) -> None:
    """Raise if a trainer, its parameters, a scenario or a data set is not there."""
    for option, registry in NAMES.items():
        given = context.params.get(option) or []
        for one in [given] if isinstance(given, str) else given:
            for name in one.split(",") if option == "trainers" else [one]:
                name = name.partition(":")[0]
                if name not in OTHERS:
                    registry.find(name)
    attacks = context.params.get("attacks") or []
    for one in attacks.split(",") if isinstance(attacks, str) else attacks:
        name = re.split("[: ]", one)[
            0
        ]  # "max-renyi image 10 % order 2" is of max-renyi
        if name not in OTHERS:
            ATTACKS.find(name)
    settings = options.settings(context.params.get("setting") or [])
    for one in context.params.get("trainer") or []:
        if context.info_name == "train":
            name, own = options.trainer_spec(one)
            build_trainer(name, settings | own)


def all_lines() -> list[tuple[str, str]]:
    return [
        (path.relative_to(ROOT).as_posix(), line)
        for path in PAGES
        for line in dict.fromkeys(command_lines(path.read_text(encoding="utf-8")))
    ]


def fault(line: str) -> str:
    """Return why a line is no command; empty where it is one."""
    try:
        context = parse(words_of(BLANK.sub("1", line)))
        if context is not None:
            check_names(context)
    except Exception as error:
        if (
            not isinstance(error, PrivauditError)
            and "click" not in type(error).__module__
        ):
            raise
        return str(error)
    return ""


def test_every_command_line_of_a_page_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = all_lines()
    assert len(lines) > 250
    found = [f"{page}: {line}: {why}" for page, line in lines if (why := fault(line))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "privaudit atack RUN",
        "privaudit export RUN --scenarios scores --public DIR",
        "privaudit attack --shadow 4",
        "privaudit attack --shadows many",
        "privaudit train --trainer promptfll",
        "privaudit train --trainer promptfl --set rate=1",
        "privaudit train --trainer dp-fpl:epsilons=8",
        "privaudit train --dataset digitz",
        "privaudit attack a b --scenario server-reconstructs",
        "privaudit attack --attack rmja",
        "privaudit gate a b",
        "privaudit train --rounds 20 [--epsilons 8]",
    ],
)
def test_what_is_not_there_is_found(line: str) -> None:
    assert list(command_lines(f"`{line}`")) == [line]
    assert fault(line)


def test_commands_are_found_wherever_code_stands() -> None:
    text = (
        "A `privaudit list trainers`, and `A=1 privaudit costs`:\n\n"
        "    privaudit gate a  # as `privaudit attack`\n\n"
        "```sh\n$ privaudit lint a && privaudit plan \\\n  a.json\n```\n\n"
        "```python\nprivaudit train\n```\n"
    )
    assert [" ".join(words_of(line)) for line in command_lines(text)] == [
        "privaudit lint a", "privaudit plan a.json", "privaudit gate a",
        "privaudit list trainers", "privaudit costs",
    ]  # fmt: skip
