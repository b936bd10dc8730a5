"""``privaudit shift``: how much of an AUROC is distribution shift."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privaudit import cli_options as options

if TYPE_CHECKING:
    from privaudit.runs import Run
    from privaudit.shift import Shift


def shift(
    run: options.Runs = None,
    foreign: Annotated[
        str, typer.Option(help="The data set that non-members are taken from.")
    ] = "scenes-far",
    data: options.Data = None,
    scenario: options.ScenarioName = "server-reconstruct",
    attacks: Annotated[
        str, typer.Option(help="Comma-separated names of the scenario's attacks.")
    ] = "max-renyi,token-loss",
    most: Annotated[int, typer.Option(help="Foreign records at most.")] = 300,
    seed: options.AuditSeed = 0,
    runs: options.RunsFolder = None,
) -> None:
    """Attack with non-members from elsewhere, on the model before and after training.

    What the untrained model already tells apart is a difference of data sets.
    """
    from privaudit.runs import latest_runs, load_run
    from privaudit.shift import measure_shift

    names = options.listed("--attacks", attacks, str, "names")
    for one in [load_run(r, folder=runs) for r in run or []] or latest_runs(runs):
        found = measure_shift(
            one,
            foreign,
            data=None if data is None else str(data),
            scenario=scenario,
            attacks=names,
            most=most,
            seed=seed,
        )
        typer.echo(f"{one.name}, non-members from {foreign}:")
        for entry in found:
            _print(entry)
        typer.echo(f"  {_save(one, foreign, found)}")


def _print(entry: "Shift") -> None:
    typer.echo(f"  {entry.attack}: {entry.sentence}")
    for what, number in (
        ("non-members of the same distribution", entry.inside),
        ("foreign non-members", entry.foreign),
        ("the same, untrained model", entry.untuned),
        ("trained less untrained", entry.beyond),
    ):
        typer.echo(f"    {what:36s} {number}")


def _save(run: "Run", foreign: str, found: list["Shift"]) -> Path:
    from privaudit.storage import make_private_folder, write_json

    place = make_private_folder(run.path / "audits") / f"shift-{foreign}.json"
    write_json(place, {entry.attack: entry.to_dict() for entry in found})
    return place
