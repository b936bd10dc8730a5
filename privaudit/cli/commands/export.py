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
    scenario: Annotated[
        list[str] | None,
        typer.Option(
            help="Whose audit the card holds; may be repeated. By default: all made."
        ),
    ] = None,
    budget: Annotated[
        float, typer.Option(help="Epsilon of all cards of the ledger together.")
    ] = 2.0,
    runs: options.RunsFolder = None,
) -> None:
    """Export a card of a run that can be shared: noised AUROCs, verdicts, guarantees.

    Leaves out membership, records, exact numbers, scores, tensors, seeds and paths.
    """
    from privaudit.report.export import export_public

    _say(export_public(run, public, scenarios=scenario or (), budget=budget, runs=runs))


def _say(found: "Export") -> None:
    card = found.card
    typer.echo(f"{found.folder}: card.json")
    for name, audit in card.audits.items():
        auroc = audit.auroc
        said = f"AUROC {auroc.estimate}" if auroc else "no number without fair coins"
        spread = f", noise of sd {auroc.noise_sd:.3f}" if auroc else ""
        typer.echo(f"  {name}, {audit.headline}: {audit.verdict}; {said}{spread}")
    if not card.audits:
        typer.echo("  no audit yet: `privaudit attack` makes one")
    count = card.ledger.numbers
    typer.echo(
        f"All cards of this ledger: {count} number{'s' * (count != 1)}, epsilon "
        f"{card.ledger.epsilon:.3g} of {found.budget:g} at delta {card.ledger.delta:g}. "
        "Attacked together before writing: within chance."
    )


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
