"""``privaudit retrain``: train again without the most exposed records, and compare."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privaudit.cli import options
from privaudit.cli.printing import with_json

if TYPE_CHECKING:
    from privaudit_labs.removal.over_runs import Effect, RemovalOverRuns
    from privaudit_labs.removal.removal import Kept, Paired, Removal

Share = Annotated[
    float, typer.Option(help="Of each client's candidates, that which loses most.")
]


def _printed() -> Any:
    """Return the type of a line: what is done next, or what came of it."""
    from dataclasses import dataclass

    from privaudit.cli.progress import Phase, Result, RoundDone
    from privaudit_labs.removal.over_runs import RemovalOverRuns
    from privaudit_labs.removal.removal import Removal

    @dataclass(frozen=True)
    class Retrained(Removal):
        event = Result.event

    @dataclass(frozen=True)
    class RetrainedOverRuns(RemovalOverRuns):
        event = Result.event

    return RoundDone | Phase | Retrained | RetrainedOverRuns


@partial(with_json, words="retrain", load=_printed)
@options.with_computing
def retrain(
    run: Annotated[
        list[str] | None,
        typer.Argument(
            help="An audited run; several that differ in their seed give means over "
            "trainings. By default: the latest."
        ),
    ] = None,
    scenario: options.ScenarioName = "server-reconstruct",
    share: Share = 0.1,
    seed: Annotated[
        int,
        typer.Option(
            min=0,
            max=options.MOST_SEED,
            help="Of the adversary who measures: another than that of the audit.",
        ),
    ] = 1,
    runs: options.RunsFolder = None,
    quiet: options.Quiet = False,
) -> None:
    """Train a run again without its most exposed records: who stays, and pays?"""
    from privaudit.cli.progress import Result, choose_view
    from privaudit.core.parameters import to_plain
    from privaudit.runs.run import load_run
    from privaudit_labs.removal.over_runs import (
        RemovalOverRuns,
        check_replicates,
        over_runs,
    )
    from privaudit_labs.removal.removal import Removal, retrain_without

    options.check_kept(runs)
    names: Sequence[str | None] = run or [None]
    loaded = [load_run(name, folder=runs) for name in names]
    check_replicates(loaded)
    view = choose_view(quiet)
    with view:
        removals = [
            retrain_without(
                one, scenario, share=share, seed=seed, folder=runs, watcher=view
            )
            for one in loaded
        ]
    lines = [line for one in removals for line in _lines(one)]
    if len(removals) == 1:
        contents = to_plain(Removal, removals[0])
    else:
        found = over_runs(removals)
        lines += ["", *_mean_lines(found)]
        contents = to_plain(RemovalOverRuns, found)
    view.present(
        [Result("\n".join(lines), contents)],
        lambda: typer.echo("\n".join(lines)),
    )


def _mean_lines(found: "RemovalOverRuns") -> list[str]:
    return [
        f"Means over {len(found.removals)} runs, with Student's intervals: for other runs "
        "of this setting, their coins, trainings and random removals.",
        *_effects(found, ""),
    ]


def _effects(found: "Removal | RemovalOverRuns", here: str) -> list[str]:
    return [
        f"Most exposed gone, less before{here}: {_effect(found.exposed_effect)}",
        f"At random gone, less before{here}: {_effect(found.random_effect)}",
        f"Most exposed gone, less at random gone{here}: {_effect(found.onion)}",
    ]


def _effect(effect: "Effect | Paired") -> str:
    return (
        f"AUROC {effect.auroc}; mean privacy loss {effect.loss}; as exposed "
        f"{effect.as_exposed}"
    )


def _lines(found: "Removal") -> list[str]:
    kept, others = found.before, found.gone
    count = kept.loss.n[0]
    return [
        f"{others} records that lose {found.threshold:.2f} deviations or more went, and in "
        f"another run as many at random. Below: the {count} that all runs have. "
        f"{found.intervals}.",
        f"Before ({kept.run}), in this training: {_kept(kept)}",
        f"Without the most exposed ({found.without_exposed.run}), in this training: "
        f"{_kept(found.without_exposed)}",
        f"Without as many at random ({found.without_random.run}), in this training: "
        f"{_kept(found.without_random)}",
        *_effects(found, ", in these trainings"),
        f"{found.attack} on all candidates, before: AUROC {found.everyone}",
    ]


def _kept(kept: "Kept") -> str:
    return (
        f"AUROC {kept.auroc}; mean privacy loss {kept.loss}; as exposed as those who "
        f"went {kept.as_exposed}"
    )
