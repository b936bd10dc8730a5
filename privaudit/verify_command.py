"""``privaudit verify``: does an audit card say what its run says?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privaudit import cli_options as options

if TYPE_CHECKING:
    from privaudit.public import Verification


def verify(
    card: Annotated[Path, typer.Argument(help="The file, or an export's folder.")],
    run: Annotated[
        str | None,
        typer.Argument(help="By default: the run with the card's transcript."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Play the attacks anew, too.")
    ] = False,
    runs: options.RunsFolder = None,
) -> None:
    """Make an audit card again from its run, and compare.

    Exit code 0 if it matches, 1 if it does not, 2 if there is no card or no run.
    """
    from privaudit.live import choose_view
    from privaudit.public import verify_card

    with choose_view() as view:
        found = verify_card(card, run, runs=runs, again=again, watcher=view)
    _say(found)
    if not found.matches:
        raise typer.Exit(1)


def _say(found: "Verification") -> None:
    for mismatch in found.mismatches:
        typer.echo(f"  {mismatch}")
    for one in found.replayed:
        for why in one.why:
            typer.echo(f"  {one.scenario}, played anew: {why}")
        if one.matches:
            typer.echo(
                f"  {one.scenario}, played anew: {one.scores} scores, none differs by "
                f"more than {one.largest:.1g}"
            )
    typer.echo(f"The card {_verdict(found)} {found.run.path}: {found.values} values.")
    made = found.values - found.on_trust
    typer.echo(f"  made again from what the run holds, and compared: {made}")
    trained, audited = found.run.signers
    whose = f"the training {trained}" + (f", the audits {audited}" if audited else "")
    typer.echo(f"  compared with the run's signed files: {found.on_trust}")
    if found.on_trust:
        typer.echo(f"  These are taken on trust. Who signed: {whose}.")


def _verdict(found: "Verification") -> str:
    if not found.matches:
        return "does NOT match"
    return "does not differ from" if found.on_trust else "matches"
