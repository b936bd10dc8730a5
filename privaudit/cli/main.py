"""The command line: every command is one library call, and printing.

Imports of the library stand inside the commands, so that ``--help`` needs no torch.
"""

import errno
import gc
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from privaudit.cli.commands.attack import attack, scores
from privaudit.cli.commands.claim import claim, lint
from privaudit.cli.commands.compare import compare, tradeoff
from privaudit.cli.commands.export import app as key_app
from privaudit.cli.commands.export import export, verify
from privaudit.cli.commands.gate import gate, plan
from privaudit.cli.commands.new import new
from privaudit.cli.commands.report import figure, report
from privaudit.cli.commands.train import import_recording, split, train
from privaudit.cli.options import with_computing, with_owner
from privaudit.cli.plugins import installed_commands, load_command
from privaudit.cli.printing import show, with_json
from privaudit.cli.start import run_to_its_end
from privaudit.core.errors import (
    ConfigError,
    PrivauditError,
    PrivauditWarning,
    StorageError,
    one_line,
    shown,
    without_exits,
)
from privaudit.core.lazy_torch import when_imported
from privaudit.core.limits import REASONS, reason_of

_AGAIN: Mapping[str | None, str] = {
    "train": "Finished rounds are kept: add --resume to the same command to continue.",
    "tradeoff": "Finished rounds and audits are kept: run the same command again.",
    "table": "Finished rounds are kept: run the same command again.",
    "retrain": "Finished rounds are kept: run the same command again.",
}


_BEYOND_VERIFYING = (  # what requirements-verify.txt leaves out, as it is imported
    "torch opacus transformers safetensors peft open_clip matplotlib PIL sklearn fsspec"
)
_LOST = (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EBADF, errno.EDQUOT)


class _InterruptedError(Exception):
    """Ctrl-C, with what to do; Typer would make a silent exit of it."""


class _Commands(TyperGroup):
    """The package's own commands, and then those of other packages."""

    def list_commands(self, ctx: Any) -> list[str]:
        own = super().list_commands(ctx)
        return [*own, *(name for name in installed_commands() if name not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        return own or load_command(cmd_name, _Command)

    def invoke(self, ctx: Any) -> Any:
        try:
            with without_exits():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            again = _AGAIN.get(ctx.invoked_subcommand, "Run the same command again.")
            raise _InterruptedError(f"interrupted. {again}") from None


class _Command(TyperCommand):
    """Takes no option for another one's value, as Click does by itself.

    So ``--public --help`` shows help, and ``--public --runs`` is an error.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        before = args[: args.index("--")] if "--" in args else args
        _refuse_empty(before)
        rest = super().parse_args(ctx, ["--help"] if "--help" in before else args)
        for option in self.params:
            if option.param_type_name == "option":
                _refuse_options(option, ctx.params.get(option.name))
        return rest


def _refuse_empty(args: Sequence[str]) -> None:
    """Refuse values of no letters, which a path would take for the folder it is in."""
    for number, one in enumerate(args):
        if one and not (one.startswith("--") and one.find("=") == len(one) - 1):
            continue
        before = args[number - 1] if number and args[number - 1].startswith("-") else ""
        raise ConfigError(
            f"{shown(one or before) if one or before else 'An argument'} has an empty "
            "value. Give one, or leave it out."
        )


def _refuse_options(option: Any, value: Any) -> None:
    """Refuse a value that begins with a dash, unless it may be a negative number."""
    for one in value if isinstance(value, list | tuple) else [value]:
        if not isinstance(one, str | Path) or not str(one).startswith("-"):
            continue
        kind = getattr(option, "type", None)  # typer 0.20 has a path as a str here
        is_path = isinstance(one, Path) or getattr(kind, "name", "") == "path"
        if not is_path and str(one)[1:2].isdecimal():
            continue
        name = option.opts[0]
        raise ConfigError(
            f"{name} was given {str(one)!r}, which looks like an option and not like a "
            f"value. Give {name} a value; write a path as ./{one}."
        )


app = typer.Typer(cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False)


def list_names(
    what: Annotated[
        str,
        typer.Argument(
            help="trainers, attacks, scenarios, datasets, models, peft-methods; or the "
            "name of one of these, such as lira, for its source and parameters; "
            "by default, what there is of each."
        ),
    ] = "",
) -> None:
    """List trainers, attacks, scenarios and so on, or say what one of them is."""
    from privaudit.cli.list import names_of

    found = [(name, [*lines]) for name, *lines in names_of(what)]
    text = [
        f"{name * (number == 0):20} {line}"
        for name, lines in found
        for number, line in enumerate(lines)
    ]
    show([{"name": n, "lines": lines} for n, lines in found], "\n".join(text))


def show_status(
    runs: Annotated[
        str | None,
        typer.Argument(help="Folder of all runs, or its URL. By default: ./runs."),
    ] = None,
) -> None:
    """Show sweeps and runs: how far they are, who trains them, and what failed."""
    from privaudit.cli.status import lines_of, read_status
    from privaudit.runs.run import runs_folder, shared_place

    folder = runs_folder(runs)
    status = read_status(folder)
    text = "\n".join(lines_of(status)).rstrip()
    show(status, text or f"There is no run in {shared_place(folder)}.")


def doctor(
    what: Annotated[
        Literal["", "flower"],
        typer.Argument(
            help="flower: of the Flower app in this folder, what a recording would hold, "
            "and what to add; nothing of it is run."
        ),
    ] = "",
) -> None:
    """Show what is installed, and which device, data sets and models are found."""
    from privaudit.cli.list import findings
    from privaudit.recording.preflight import app_findings

    found = [*(app_findings(Path.cwd()) if what else findings())]
    text = "\n".join(f"{name:20} {finding}" for name, finding in found)
    show([{"name": name, "found": finding} for name, finding in found], text)


_COMPUTING = (train, attack, tradeoff, compare, gate, claim, verify)
_ASKING = (attack, tradeoff, compare, gate, lint, verify)  # models of runs
_NAMES = {import_recording: "import", list_names: "list", show_status: "status"}
_PANELS: Mapping[str, Sequence[Callable[..., None] | typer.Typer]] = {
    "Run": (train, split, import_recording, show_status),
    "Audit": (attack, scores, claim, lint),
    "Decide": (report, compare, tradeoff, gate, plan),
    "Share": (export, verify, key_app),
    "More": (list_names, new, doctor, figure),
}


def _add_commands() -> None:
    for panel, members in _PANELS.items():
        for one in members:
            if isinstance(one, typer.Typer):
                app.add_typer(one, name="key", rich_help_panel=panel)
                continue
            made = with_computing(one) if one in _COMPUTING else one
            made = with_owner(made) if one in _ASKING else made
            name = _NAMES.get(one, one.__name__)
            app.command(name, rich_help_panel=panel)(with_json(made, name))


_add_commands()


def _show_version(asked: bool | None) -> None:
    if asked:
        typer.echo(f"privaudit {version('privaudit')}")
        raise typer.Exit


@app.callback()
def _main(
    _: Annotated[
        bool | None,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = None,
) -> None:
    """Audit the privacy of federated fine-tuning of vision-language models."""


for _app in (app, key_app):
    for _command in _app.registered_commands:
        _command.cls = _Command


def run() -> None:
    """Run the command line: expected errors are one line, and exit code 2."""
    if "torch" in sys.modules or not hasattr(os, "fork"):  # called by a program
        _run_here()
    else:
        run_to_its_end(_run_here)


def _run_here() -> None:
    for stream in (sys.stdout, sys.stderr):  # an ASCII terminal has no …
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    when_imported(gc.freeze)  # torch stays: it is searched for garbage no more
    try:
        with _written_out():
            app(prog_name="privaudit")  # also as `python -m privaudit`
    except PrivauditError as error:
        typer.echo(f"privaudit: {one_line(str(error))}", err=True)
        sys.exit(2)
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        if missing not in _BEYOND_VERIFYING.split():
            raise
        typer.echo(
            f"privaudit: this needs {missing}, which is not installed: what "
            "requirements-verify.txt installs checks cards and audits, and no more. "
            "Install the whole tool.",
            err=True,
        )
        sys.exit(2)
    except _InterruptedError as interruption:
        typer.echo(f"privaudit: {interruption}", err=True)
        sys.exit(130)
    except Exception as error:
        from privaudit.core.registry import fault_of_plugin

        fault = fault_of_plugin(error)
        if not fault:
            raise
        advice = "`pytest --privaudit-contract PACKAGE` says what a plugin has to give."
        typer.echo(f"privaudit: {one_line(fault)} {advice}", err=True)
        sys.exit(2)


_show_others = warnings.showwarning


def _show_warning(message: Any, category: Any, *where: Any) -> None:
    if issubclass(category, PrivauditWarning):
        typer.echo(f"privaudit: {one_line(str(message))}", err=True)
    else:
        _show_others(message, category, *where)


@contextmanager
def _written_out() -> Iterator[None]:
    """Say so where a place cannot be used, or what is printed arrives nowhere."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.filename is not None and error.errno in REASONS:
            raise StorageError(
                f"{shown(str(error.filename))} cannot be used: {reason_of(error)}. "
                "Name another place."
            ) from None
        if error.filename is not None or error.errno not in _LOST:
            raise
        with suppress(OSError):  # else Python tries to write the rest at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise StorageError(
            f"The output cannot be written: {reason_of(error)}. Send it elsewhere."
        ) from None
