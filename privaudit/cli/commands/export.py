"""``privaudit export`` and ``privaudit verify``: a card to publish, and its check."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privaudit.cli import options, outputs

if TYPE_CHECKING:
    from privaudit.report.export import Export, Verification


def export(
    public: Annotated[
        Path,
        outputs.folder_option("Folder to create, such as for a CI artefact."),
    ],
    run: Annotated[str | None, typer.Argument(help="By default: the latest.")] = None,
    runs: options.RunsFolder = None,
) -> None:
    """Export what can be shared of a run: verdicts, intervals, settings, hashes.

    Leaves out membership, records, scores, tensors, seeds and paths.
    """
    from privaudit.report.export import export_public

    _say(export_public(run, public, runs=runs))


def _say(found: "Export") -> None:
    left, audits = found.left, found.card["audits"]
    typer.echo(f"{found.folder}: card.json, README.txt; audits: {', '.join(audits)}")
    if not audits:
        typer.echo("  no audit yet: `privaudit attack` makes one")
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
            "The run's seed is small enough to be guessed. Anyone with the data could "
            "train again with it, compare with the card, and identify all members. If "
            "others have the data, train without --seed, or with one of some 18 random "
            "digits.",
            err=True,
        )


def _list(places: list[str], most: int = 5) -> None:
    for place in places[:most]:
        typer.echo(f"    {place}")
    if len(places) > most:
        typer.echo(f"    and {len(places) - most} more")


def verify(
    card: Annotated[str, typer.Argument(help="An audit card, or an export's folder.")],
    run: Annotated[
        str | None,
        typer.Argument(help="By default: the run with the card's transcript."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Run the attacks again, too.")
    ] = False,
    runs: options.RunsFolder = None,
) -> None:
    """Verify an audit card: make it again from its run, and compare.

    Exit code 0 if it matches, 1 if it does not, 2 if the card or the run is missing.
    """
    from privaudit.cli.progress import choose_view
    from privaudit.report.export import verify_card

    with choose_view() as view:
        verification = verify_card(card, run, runs=runs, again=again, watcher=view)
    _say_verification(verification)
    if not verification.matches:
        raise typer.Exit(1)


def _say_verification(found: "Verification") -> None:
    for mismatch in found.mismatches:
        typer.echo(f"  {mismatch}")
    for one in found.replayed:
        for why in one.why:
            typer.echo(f"  {one.scenario}, attacked again: {why}")
        if one.matches:
            typer.echo(
                f"  {one.scenario}, played anew: {one.scores} scores, none differs by "
                f"more than {one.largest:.1g}"
            )
    typer.echo(f"The card {_verdict(found)} {found.run.place}: {found.values} values.")
    if found.run.why_not_repeatable:
        typer.echo(f"  The run was {found.run.why_not_repeatable}.")
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
