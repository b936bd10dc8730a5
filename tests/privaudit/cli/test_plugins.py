"""Commands of other packages are found, listed and run; what is not installed says so."""

from pathlib import Path
from typing import Any

import pytest

from privaudit.cli import plugins
from privaudit.core.registry import Registry
from tests.conftest import Cli
from tests.plugins import install

CODE = '''
import typer

from privaudit.core.errors import ConfigError


def hello(name: str = "nobody", count: int = 1) -> None:
    """Greet somebody."""
    if count < 1:
        raise ConfigError(f"{count} greetings are none. Ask for one.")
    typer.echo(f"hello {name}")


def train() -> None:
    """Stand in for the package's own command."""
    typer.echo("theirs")
'''


def _install(folder: Path, monkeypatch: pytest.MonkeyPatch, **points: str) -> None:
    install(folder, "greeting", {"privaudit.commands": points}, CODE)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(plugins.COMMANDS, "_entries", {})


def test_another_packages_command_is_listed_and_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    _install(tmp_path, monkeypatch, hello="greeting:hello")
    assert cli("hello", "--name", "you") == (0, "hello you\n", "")
    assert "Greet somebody." in cli("--help")[1]
    code, _, said = cli("hello", "--count", "0")
    assert (code, said) == (2, "privaudit: 0 greetings are none. Ask for one.\n")
    code, _, said = cli("hello", "--name", "--count")
    assert code == 2
    assert "looks like an option" in said


def test_no_package_replaces_a_command_and_a_broken_one_stops_only_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    points = {"train": "greeting:train", "broken": "greeting:nothing"}
    _install(tmp_path, monkeypatch, **points)
    assert "theirs" not in cli("train", "--help")[1]
    assert "broken" not in cli("--help")[1]
    code, _, said = cli("broken")
    assert code == 2
    assert "The command 'broken' of the package greeting 1.2 cannot be used" in said


@pytest.mark.parametrize(
    ("words", "package", "folder"),
    [
        (["table", "a.toml"], "privaudit-tools", "./tools"),
        (["figure", "table", "a.json"], "privaudit-tools", "./tools"),
        (["costs"], "privaudit-tools", "./tools"),
        (["active"], "privaudit-labs", "./labs"),
        (["shift"], "privaudit-labs", "./labs"),
        (["retrain", "base-1", "base-2"], "privaudit-labs", "./labs"),
    ],
)
def test_what_is_not_installed_says_what_to_install(
    words: list[str],
    package: str,
    folder: str,
    monkeypatch: pytest.MonkeyPatch,
    cli: Cli,
) -> None:
    alone = Registry[Any]("command", "privaudit.cli.commands", "nobody's.commands")
    monkeypatch.setattr(plugins, "COMMANDS", alone)
    code, _, said = cli(*words)
    assert code == 2
    assert f"stands in {package}, which is not installed" in said
    assert f"pip install {folder}." in said
    assert cli("--help")[0] == 0
