"""What starts the command line, and which words it takes for values."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import pytest
import typer
from pydantic import Field

from privaudit.cli.main import app
from privaudit.cli.options import take_fields
from privaudit.core.errors import ConfigError
from privaudit.federated.runs.fields import PANELS, RunFields
from tests.conftest import Cli

Words = tuple[str, ...]


def options(command: Any) -> Iterator[tuple[Any, bool]]:
    """Yield a command's options, and whether they take a path."""
    hints = get_type_hints(command.callback)
    for option in command.params:
        if option.param_type_name == "option":
            yield (
                option,
                Path in (hints.get(option.name), *get_args(hints[option.name])),
            )


def required(command: Any, but: Any) -> Words:
    """Return words for what a command cannot be called without."""
    hints = get_type_hints(command.callback)
    needed: list[str] = []
    for one in command.params:
        if one.required and one is not but:
            is_option = one.param_type_name == "option"
            value = next((c for c in get_args(hints[one.name]) if str(c) == c), "x")
            needed += [one.opts[0], value] if is_option else [value]
    return tuple(needed)


TOP: Any = typer.main.get_command(app)


def commands_of(group: Any, words: Words = ()) -> Iterator[tuple[Words, Any]]:
    """Yield the commands below a group, with the words that call them."""
    for name, one in group.commands.items():
        if hasattr(one, "commands"):
            yield from commands_of(one, (*words, name))
        else:
            yield (*words, name), one


COMMANDS: dict[Words, Any] = dict(commands_of(TOP))
PATHS = [
    ((*words, *required(command, option)), option.opts[0])
    for words, command in COMMANDS.items()
    for option, is_path in options(command)
    if is_path
]


def start(module: str, *words: str, here: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=here)


@pytest.mark.parametrize("module", ["privaudit", "privaudit.cli"])
def test_a_module_is_the_command_with_its_exit_codes_and_its_name(
    module: str, tmp_path: Path
) -> None:
    shown = start(module, "gate", "--help", here=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "Usage: privaudit gate " in shown.stdout
    unknown = start(module, "gate", "--nothing", here=tmp_path)
    assert unknown.returncode == 2
    assert "Usage: privaudit gate " in unknown.stderr
    bad = start(module, "gate", "--baseline", "--json", here=tmp_path)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith("privaudit: --baseline was given '--json'")


def test_many_commands_take_paths() -> None:
    assert (("export",), "--public") in PATHS
    assert len({words for words, _ in PATHS}) > 12


@pytest.mark.parametrize(("words", "option"), PATHS)
def test_no_option_is_taken_for_a_path(
    words: Words,
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: Cli,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = cli(*words, option, "--help")
    assert (code, err) == (0, "")
    assert "Usage: privaudit" in out
    for value in ("--quiet", "-1"):
        code, _, err = cli(*words, option, value)
        assert code == 2
        assert err.startswith(f"privaudit: {option} was given '{value}'")
        assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words", [("gate", "--baseline", "--json"), ("train", "--name", "--resume")]
)
def test_no_option_is_taken_for_a_name(words: Words, cli: Cli) -> None:
    code, _, err = cli(*words)
    assert code == 2
    assert f"{words[1]} was given '{words[2]}'" in err


def test_a_negative_number_is_a_value(cli: Cli) -> None:
    words = ("tradeoff", "--epsilons", "-1,x")
    _, _, err = cli(*words)
    assert "--epsilons -1,x holds 'x'" in err


GIVEN: dict[type, tuple[str, ...]] = {
    bool: (), int: ("3",), float: ("0.5",), str: ("x",), Path: ("x",)
}  # fmt: skip


@pytest.mark.parametrize(
    "name", sorted(RunFields.model_fields.keys() - {"trainer", "settings"})
)
def test_every_field_of_a_run_is_an_option_of_train(
    name: str, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    command = COMMANDS[("train",)]
    (option,) = (one for one in command.params if one.name == name)
    assert option.help == RunFields.model_fields[name].description
    kind, _ = get_args(get_type_hints(command.callback)[name])  # the other is None
    asked: dict[str, Any] = {}

    def stop(trainer: str, settings: Any, **fields: Any) -> None:
        asked.update(fields)
        raise ConfigError("Enough.")

    monkeypatch.setattr("privaudit.federated.runs.config.make_config", stop)
    words = (option.opts[0], *GIVEN[kind])
    cli("train", *words)
    assert asked == {name: kind(*GIVEN[kind] or [True])}


def test_a_new_field_of_a_run_is_an_option_without_another_line() -> None:
    class More(RunFields):
        patience: Annotated[int, Field(ge=1)] | None = Field(
            None, description="Rounds."
        )

    def command(name: str = "", **fields: Any) -> None:
        raise NotImplementedError

    take_fields(command, More.model_fields)
    assert get_type_hints(command)["patience"] == int | None
    assert next(iter(signature(command).parameters)) == "name"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--alpha", "-1"), "alpha = -1.0"),
        (("--clients", "0"), "clients = 0"),
        (("--partition", "x"), "partition = 'x'"),
        (("--tested", "0"), "tested = 0"),
    ],
)
def test_a_field_out_of_range_is_one_line(words: Words, why: str, cli: Cli) -> None:
    code, _, err = cli("train", *words)
    assert (code, err.count("\n")) == (2, 1)
    assert f"The run cannot take {why}: " in err


def test_help_names_the_columns_of_a_scores_file(cli: Cli) -> None:
    code, out, _ = cli("scores", "--help")
    assert code == 0
    for column in ("client", "class", "record", "group", "baseline", "feature_NAME"):
        assert column in out


def panels_of(said: str) -> list[str]:
    return re.findall(r"^╭─ (.*?) ─+╮$", said, re.M)


def test_help_groups_the_commands_by_what_they_are_for(cli: Cli) -> None:
    code, said, _ = cli("--help")
    assert code == 0
    assert panels_of(said) == ["Options", "Run", "Audit", "Decide", "Share", "More"]
    run = said.partition("─ Run ─")[2].partition("╰")[0]
    assert re.findall(r"^│ (\w+)", run, re.M)[:2] == ["train", "split"]


def test_help_of_train_shows_its_options_by_subject(cli: Cli) -> None:
    options = COMMANDS[("train",)].params
    panels = Counter(getattr(one, "rich_help_panel", None) for one in options)
    assert len(options) > 50
    assert max(panels.values()) <= 12
    code, said, _ = cli("train", "--help")
    assert code == 0
    assert panels_of(said) == ["Options", "Method", *PANELS, "Computing"]


def test_every_field_of_a_run_has_a_panel() -> None:
    placed = [name for names in PANELS.values() for name in names.split()]
    fields = RunFields.model_fields.keys() - {"trainer", "settings"}
    assert sorted(placed) == sorted(fields)
