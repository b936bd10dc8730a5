"""Commands of other packages, by entry points of the group ``privaudit.commands``.

An entry point names a function as Typer takes it, or a ``typer.Typer`` of several. The
package's own commands cannot be replaced::

    [project.entry-points."privaudit.commands"]
    my-command = "my_package.commands:my_command"
"""

from collections.abc import Mapping
from typing import Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from privaudit.core.errors import ConfigError, not_installed
from privaudit.core.registry import Registry

COMMANDS: Registry[Any] = Registry(
    "command", "privaudit.cli.commands", "privaudit.commands"
)
APART: Mapping[str, str] = {
    "benchmark": "tools",
    "table": "tools",
    "table-figure": "tools",
    "selftest": "tools",
    "pretrain": "tools",
    "serve": "tools",
    "costs": "tools",
    "active": "labs",
    "annex": "labs",
    "retrain": "labs",
    "shift": "labs",
}
"""Commands that stand in packages of the repository, and in which folder of it."""


def installed_commands() -> list[str]:
    """Return the names of other packages' commands that can be used."""
    return sorted(COMMANDS.usable())


def find_command(name: str) -> Any:
    """Return the function or ``typer.Typer`` behind another package's command.

    Raises:
        ConfigError: It stands in a package of the repository that is not installed.
        UnknownNameError: No package has it.
        PluginError: It cannot be imported.
    """
    if name in APART and name not in COMMANDS.names():
        raise ConfigError(not_installed(f"`privaudit {name}` stands in", APART[name]))
    return COMMANDS.find(name)


def load_command(name: str, kind: type[TyperCommand]) -> Any:
    """Return another package's command, of the class ``kind``; None where there is none."""
    if name not in APART and name not in COMMANDS.names():
        return None
    found = find_command(name)
    if isinstance(found, typer.Typer):
        for one in found.registered_commands:
            one.cls = kind
    else:
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(name=name, cls=kind)(found)
        found = alone
    command = get_command(found)
    command.name = name
    command.rich_help_panel = "More"  # type: ignore[attr-defined]
    return command
