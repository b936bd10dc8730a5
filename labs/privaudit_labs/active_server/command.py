"""``privaudit active``: what a server learns that changes what it sends to one client."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privaudit.cli import options
from privaudit.cli.printing import show, with_json

if TYPE_CHECKING:
    from privaudit_labs.active_server.audit import ActiveAudit

FinishedRun = Annotated[
    str | None, typer.Argument(help="A finished run. By default: the latest.")
]
Singled = Annotated[
    list[str] | None,
    typer.Option(
        help="A client that is singled out, or `all`; repeatable. By default: client-0."
    ),
]
Count = Annotated[
    int, typer.Option(min=10, max=10_000, help="Of its candidates, a round for each.")
]
Rounds = Annotated[
    int | None,
    typer.Option(help="Of the server's training of what it sends. By default: 4."),
]
Copies = Annotated[
    int | None,
    typer.Option(help="Of a record with a wrong label in that training: 20."),
]
Shadows = Annotated[
    int | None,
    typer.Option(help="Shadow clients for each record, an even number from 6: 8."),
]
Unnoticed = Annotated[
    bool,
    typer.Option(
        "--unnoticed",
        help="Send nothing farther from the rule than a client's own bound on moves.",
    ),
]
Written = Annotated[
    Path | None,
    options.folder_option(
        "A new folder for the transcript: who was sent what, and what the rule says."
    ),
]


def _printed() -> Any:
    """Return the type of what is printed."""
    from privaudit_labs.active_server.audit import PrintedActive

    return PrintedActive


@partial(with_json, words="active", load=_printed)
@options.with_computing
def active(
    run: FinishedRun = None,
    client: Singled = None,
    records: Count = 24,
    rounds: Rounds = None,
    copies: Copies = None,
    shadows: Shadows = None,
    unnoticed: Unnoticed = False,
    seed: options.AuditSeed = 0,
    output: Written = None,
    runs: options.RunsFolder = None,
) -> None:
    """Let a server single out clients: what does it learn, and who notices?"""
    from privaudit.core.errors import ConfigError
    from privaudit.core.parameters import build, to_plain
    from privaudit.runs.run import load_run
    from privaudit_labs.active_server.amplified import Amplifier
    from privaudit_labs.active_server.audit import (
        PrintedActive,
        attack_actively,
        write_messages,
    )

    if output is not None and output.exists():
        raise ConfigError(
            f"{output} is there, and a transcript was to be written. Name a new folder."
        )
    given = options.given(rounds=rounds, copies=copies, shadows=shadows)
    how = build("active server", Amplifier, given)
    finished = load_run(run, folder=runs)
    everybody = list(finished.population.numbers)
    found = attack_actively(
        finished,
        everybody if client == ["all"] else client or "client-0",
        records=records,
        how=how,
        seed=seed,
        unnoticed=unnoticed,
    )
    lines, end = _lines(found), None
    if output is not None:
        end = write_messages(output, found.messages)
        lines.append(f"Transcript: {output}, {end.length} lines, head {end.head}")
    printed = PrintedActive.of(finished.name, found, output, end)
    show(to_plain(PrintedActive, printed), "\n".join(lines))


def _lines(found: "ActiveAudit") -> list[str]:
    who = ", ".join(found.clients)
    return [
        f"Active, on {who}: AUROC {found.active}",
        f"Passive, the same records and as many shadow models: AUROC {found.passive}",
        f"Difference: {found.gain}",
        *(
            f"Check, {check.name}: notices {check.detected} of what was crafted, and of "
            f"what the rule says {check.false_alarms or '- (no trial)'}"
            for check in found.checks
        ),
    ]
