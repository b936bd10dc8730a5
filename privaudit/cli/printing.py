"""What a command prints: text and tables for people, JSON of a schema for programs."""

import json
from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from typing import Annotated, Any

import typer

from privaudit.cli.options import AsJson, keyword_option, offering
from privaudit.core.context import set_within

as_json: ContextVar[bool] = ContextVar("as_json", default=False)
"""Whether the command that runs was asked for JSON."""


def with_json(
    command: Callable[..., None], words: str, load: Callable[[], Any] | None = None
) -> Callable[..., None]:
    """Return a command with ``--json``, for what it prints by :func:`show` or a view.

    Args:
        command: It prints nothing else on the output.
        words: That call it, as "train" or "key show": its schema's name.
        load: Returns the type that it prints, for a command of another package.
    """

    def answer(in_json: bool = False, json_schema: bool = False, **named: Any) -> None:
        with set_within(as_json, in_json):
            command(**named)

    def print_schema(asked: bool) -> bool:
        if asked:
            from privaudit.cli.json_schemas import schema_of, schema_of_type

            schema = schema_of_type(load()) if load else schema_of(words)
            typer.echo(json.dumps(schema, indent=2))
            raise typer.Exit
        return asked

    option = typer.Option(
        "--json-schema",
        is_eager=True,
        callback=print_schema,
        help="Print the JSON Schema of --json, and exit.",
    )
    return offering(
        command,
        answer,
        keyword_option("in_json", False, AsJson),
        keyword_option("json_schema", False, Annotated[bool, option]),
    )


def show(
    contents: Any, in_full: str | Callable[[], object], *, in_a_line: bool = False
) -> None:
    """Print a result: JSON where it was asked for, else text.

    Args:
        contents: As JSON knows it, without NaN; of the command's schema.
        in_full: The text, or what prints it.
        in_a_line: Where a command has several results: JSON, one a line.
    """
    if as_json.get():
        indent = None if in_a_line else 2
        typer.echo(json.dumps(contents, indent=indent, allow_nan=False))
    elif isinstance(in_full, str):
        typer.echo(in_full)
    else:
        in_full()


def print_rows(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    folded: Collection[str],
    section: int | None = None,
) -> None:
    """Print a table without edges; cells below folded heads go on in further lines."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False, pad_edge=False)
    for head in heads:
        is_folded = head in folded
        overflow: Any = "fold" if is_folded else "ellipsis"
        table.add_column(Text(head), no_wrap=not is_folded, overflow=overflow)
    for number, row in enumerate(rows):
        if number == section:
            table.add_section()
        table.add_row(*map(Text, row))
    Console().print(table)


def print_lines(lines: Sequence[str], style: str = "") -> None:
    """Print lines as they are, broken at the terminal's width; empty ones left out."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for line in filter(None, lines):
        console.print(Text(line, style=style))
