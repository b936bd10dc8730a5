"""``privaudit export``: a copy of a run that is fit for others to see."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privaudit import cli_options as options

if TYPE_CHECKING:
    from privaudit.public import Export


def export(
    public: Annotated[
        Path, typer.Option(help="The folder to make, such as for a CI artefact.")
    ],
    run: Annotated[str | None, typer.Argument(help="By default: the latest.")] = None,
    runs: options.RunsFolder = None,
) -> None:
    """Write what may leave of a run: verdicts, intervals, settings, hashes.

    No truth about membership, no records, scores, tensors, seeds or paths.
    """
    from privaudit.public import export_public

    _say(export_public(run, public, runs=runs))


def _say(found: "Export") -> None:
    left, audits = found.left, found.card["audits"]
    typer.echo(f"{found.folder}: card.json, README.txt; audits: {', '.join(audits)}")
    if not audits:
        typer.echo("  no audit is there: `privaudit attack` makes one")
    typer.echo(f"Left out: {sum(found.files.values())} files, and")
    for said, places in (
        ("entries that are private, or said elsewhere", left.withheld),
        ("figures on too few records", left.few),
        ("unknown keys", left.unknown),
        ("values of an unknown form", left.odd),
    ):
        typer.echo(f"  {len(places)} {said}")
        if places is not left.withheld:
            _list(places)
    if found.seed_is_guessable:
        typer.echo(
            "The run's seed is small enough to be guessed. Whoever has the data could "
            "train again with it, compare with the card, and know all members. If the "
            "data are not yours alone, train with a --seed of some 18 random digits.",
            err=True,
        )


def _list(places: list[str], most: int = 5) -> None:
    for place in places[:most]:
        typer.echo(f"    {place}")
    if len(places) > most:
        typer.echo(f"    and {len(places) - most} more")
