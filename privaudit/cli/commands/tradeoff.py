"""The command ``privaudit tradeoff``: what attacks learn against utility."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privaudit.cli import options
from privaudit.core.errors import ConfigError
from privaudit.core.parameters import parse_pairs

if TYPE_CHECKING:
    from privaudit.cli.progress import Display
    from privaudit.evaluation.tradeoff.result import Tradeoff
    from privaudit.statistics.estimate import Estimate

PlanFile = Annotated[
    Path | None,
    typer.Option(help="A TOML file with the same settings; flags override it."),
]
TrainerNames = Annotated[
    str | None,
    typer.Option(help="Comma-separated trainers. By default: dp-fpl."),
]
Epsilons = Annotated[
    str | None,
    typer.Option(
        help="Comma-separated; 'none': no noise. By default: none,8,4,1,0.4,0.1."
    ),
]
Modes = Annotated[
    str | None,
    typer.Option(
        help="Comma-separated modes of DP trainers. By default: published-paper,sound."
    ),
]
Vary = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME=V1,V2: values of a trainer parameter or run setting; repeatable, "
        "all combinations are run."
    ),
]
Seeds = Annotated[
    str | None, typer.Option(help="Comma-separated. By default: 10,11,12,13,14.")
]
ReportSeeds = Annotated[
    str | None,
    typer.Option(
        help="Comma-separated other seeds, at least 5, to report the settings that no "
        "other dominates."
    ),
]
Recorded = Annotated[
    list[str] | None,
    typer.Option(
        help="A recorded federation, in place of what is trained; repeatable. Needs "
        "--owner."
    ),
]
_OF_TRAINING = (
    "trainers",
    "epsilons",
    "modes",
    "vary",
    "seeds",
    "report_seeds",
    "settings",
    "fields",
)
ScenarioName = Annotated[
    str | None, typer.Option(help="By default: prompt-release.", show_default=False)
]
AttackName = Annotated[
    str | None,
    typer.Option(
        help="Attack to compare by, such as lira; choose it beforehand. By default: "
        "the scenario's headline attack."
    ),
]
Attacked = Annotated[
    str | None,
    typer.Option(
        help="How many clients get shadow models, or 'all' of them. By default: all."
    ),
]
Shadows = Annotated[
    int | None,
    typer.Option(
        help="Shadow models per client, the same for all cells; 0 for none. By "
        "default: 16."
    ),
]
Margin = Annotated[
    float | None,
    typer.Option(help="Margin: a smaller difference does not matter. Default: 0.05."),
]
Alpha = Annotated[
    float | None,
    typer.Option(help="Family-wise error rate of the dominance tests: 0.05."),
]


def tradeoff(
    plan: PlanFile = None,
    trainers: TrainerNames = None,
    epsilons: Epsilons = None,
    modes: Modes = None,
    vary: Vary = None,
    seeds: Seeds = None,
    report_seeds: ReportSeeds = None,
    recorded: Recorded = None,
    scenario: ScenarioName = None,
    attack: AttackName = None,
    clients: Attacked = None,
    shadows: Shadows = None,
    setting: options.Settings = None,
    field: options.Fields = None,
    margin: Margin = None,
    utility_margin: Margin = None,
    alpha: Alpha = None,
    out: options.SweepFolder = None,
    against_first: options.AgainstFirst = False,
    on: options.On = "local",
    quiet: options.Quiet = False,
    as_json: options.JsonLines = False,
    runs: options.RunsFolder = None,
) -> None:
    """Sweep trainers, privacy budgets and settings: leakage against utility."""
    given = options.given(
        trainers=options.maybe_listed("--trainers", trainers),
        epsilons=options.maybe_listed(
            "--epsilons", epsilons, options.epsilon, "numbers above 0 or 'none'"
        ),
        modes=options.maybe_listed("--modes", modes),
        vary=_varied(vary),
        seeds=options.maybe_listed("--seeds", seeds, int, "whole numbers"),
        report_seeds=options.maybe_listed(
            "--report-seeds", report_seeds, int, "whole numbers"
        ),
        scenario=scenario,
        attack=attack,
        clients=None if clients is None else options.attacked(clients),
        shadows=shadows,
        settings=options.settings(setting) or None,
        fields=parse_pairs("--field clients=3", field or []) or None,
        margin=margin,
        utility_margin=utility_margin,
        alpha=alpha,
        against_first=against_first or None,
    )
    from privaudit.cli.progress import choose_view

    if recorded:
        given["recorded"] = recorded
    _sweep(plan, given, out, runs, on, choose_view(quiet, as_json))


def _sweep(
    plan: Path | None,
    given: dict[str, Any],
    out: Path | None,
    runs: Path | None,
    on: str,
    view: "Display",
) -> None:
    from privaudit.cli.progress import Result
    from privaudit.evaluation.tradeoff.plan import SweepPlan, read_sweep_plan
    from privaudit.evaluation.tradeoff.sweep import sweep
    from privaudit.execution.places import find_executor
    from privaudit.federated.runs.folder.run_names import runs_folder
    from privaudit.report.galleries.sweep import write_sweep

    entries, executor = read_sweep_plan(plan) if plan else {}, find_executor(on)
    for name, value in given.items():  # of a table single names are replaced
        there = entries.get(name)
        entries[name] = {**there, **value} if isinstance(there, dict) else value
    options.check_kept(runs)
    folder = out or runs_folder(runs) / "tradeoff"
    with view:
        if "recorded" in entries:
            sweep_result = _of_recorded(entries, runs, view)
        else:
            entries.setdefault("trainers", SweepPlan().trainers)
            sweep_result = sweep(
                **entries, folder=runs, watcher=view, executor=executor
            )
    write_sweep(sweep_result, folder)
    contents = {"path": str(folder), **sweep_result.to_dict()}
    result = Result("\n".join(_essentials(sweep_result)), contents)
    view.present([result], lambda: _present(sweep_result, folder))


def _of_recorded(
    entries: dict[str, Any], folder: Path | None, view: "Display"
) -> "Tradeoff":
    """Weigh federations that others trained."""
    from privaudit.evaluation.tradeoff.plan import make_plan
    from privaudit.evaluation.tradeoff.recorded_tradeoff import weigh_runs
    from privaudit.federated.runs.folder.run_names import load_run

    names = entries.pop("recorded")
    trained = [name for name in _OF_TRAINING if name in entries]
    if trained:
        raise ConfigError(
            f"--recorded was given with {', '.join(trained)}, which are about training. "
            "Leave one of both out."
        )
    runs = [load_run(name, folder=folder) for name in names]
    return weigh_runs(runs, make_plan(entries), watcher=view)


def _essentials(found: "Tradeoff") -> Iterator[str]:
    """Yield a line for each cell."""
    for n, cell in enumerate(found.cells):
        yield (
            f"{cell.name}: {found.points[0].metric} {_number(cell.local)}, "
            f"AUROC {_number(cell.auroc)}, {found.standing(n)}"
        )


def _present(found: "Tradeoff", folder: Path) -> None:
    _print(found)
    done = len(found.points) + len(found.report_points)
    typer.echo(f"{done} runs audited. Pictures and tables: {folder}")


def _varied(texts: Sequence[str] | None) -> dict[str, list[Any]] | None:
    """Return the values by name; a name given twice is a slip."""
    varied: dict[str, list[Any]] = {}
    for text in texts or []:
        ((name, values),) = parse_pairs("--vary rank=4,8", [text]).items()
        if name in varied:
            raise ConfigError(
                f"--vary {name} was given twice. Write all values in one: "
                f"--vary {name}=V1,V2."
            )
        listed = "none" if values is None else values
        varied[name] = options.listed(f"--vary {name}", listed, _value, "values")
    return varied or None


def _value(text: str) -> str | None:
    if not text:
        raise ValueError("an empty value")
    return None if text == "none" else text


def _number(estimate: "Estimate | None") -> str:
    from privaudit.report.wording import interval, point

    if estimate is None:
        return ""
    if math.isnan(estimate.value):
        return point(estimate)  # what is missing stands in the written table
    return f"{point(estimate)} {interval(estimate)}"


def _print(found: "Tradeoff") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from privaudit.report.wording import heading

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False, pad_edge=False)
    use = heading(found.points[0].metric)
    for head in ("Cell", "Seeds", use, "AUROC", "TPR", "Standing"):
        table.add_column(Text(head), overflow="fold")
    places = [(cell, found.standing(n)) for n, cell in enumerate(found.cells)]
    for cell, standing in [*places, *((c, "on other seeds") for c in found.reported)]:
        numbers = [_number(one) for one in (cell.local, cell.auroc, cell.tpr)]
        row = [cell.name, str(len(cell.seeds)), *numbers, standing]
        table.add_row(*(Text(entry) for entry in row))
    console = Console()
    console.print(table)
    for remark in found.remarks():
        console.print(Text(remark))
