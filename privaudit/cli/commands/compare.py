"""Commands ``compare`` and ``tradeoff``: differences of runs, leakage against utility."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privaudit.cli import options
from privaudit.cli.printing import print_lines, print_rows, show
from privaudit.core.errors import ConfigError
from privaudit.core.formatting import outcome_in_words
from privaudit.core.parameters import parse_pairs
from privaudit.evaluation.tradeoff.plan import SweepPlan, make_plan, read_sweep_plan

if TYPE_CHECKING:
    from privaudit.cli.progress import Display
    from privaudit.evaluation.compare.compare import RunComparison
    from privaudit.evaluation.tradeoff.result import Tradeoff
    from privaudit.statistics.estimate import Estimate

Compared = Annotated[
    list[str],
    typer.Argument(
        help="Two runs with the same seed; or runs of one setting with several seeds, "
        "and --against."
    ),
]
Against = Annotated[
    str | None,
    typer.Option(help="Comma-separated runs of the other setting, same seeds."),
]
Attacks = Annotated[
    str | None,
    typer.Option(
        help="Comma-separated attacks, all primary. By default: the headline attack is "
        "primary, the others that both audits have are secondary."
    ),
]
Margin = Annotated[
    float,
    typer.Option(help="Equivalence margin: a smaller difference does not matter."),
]
Alpha = Annotated[
    float, typer.Option(help="Family-wise error rate, per family of metrics.")
]


def compare(
    run: Compared,
    against: Against = None,
    scenario: options.ScenarioName = "server-reconstruct",
    attacks: Attacks = None,
    margin: Margin = 0.05,
    utility_margin: Margin = 0.05,
    alpha: Alpha = 0.05,
    utility: Annotated[bool, typer.Option(help="Compare utility too.")] = True,
    runs: options.RunsFolder = None,
) -> None:
    """Compare two audited runs: does the first leak more, or have less utility?"""
    first, second = _sides(run, against)
    names = options.maybe_listed("--attacks", attacks)
    from privaudit.evaluation.compare.compare import compare as compare_runs

    comparison = compare_runs(
        first,
        second,
        scenario=scenario,
        attacks=names,
        margin=margin,
        utility_margin=utility_margin,
        alpha=alpha,
        utility=utility,
        folder=runs,
    )
    show(comparison.to_dict(), partial(_print_comparison, comparison))


def _sides(run: list[str], against: str | None) -> tuple[list[str], list[str]]:
    if against is not None:
        return run, options.listed("--against", against, str, "names")
    if len(run) != 2:
        raise ConfigError(
            f"{len(run)} runs were given without --against; a comparison needs "
            "two. Give two runs; or one setting's runs, and --against with the other's."
        )
    return run[:1], run[1:]


def _print_comparison(found: "RunComparison") -> None:
    from privaudit.core.formatting import percent
    from privaudit.report.wording import interval, point

    confidence = percent(found.changes[0].change.estimate.confidence)
    heads = ("Metric", "First", "Second", f"Difference [{confidence}]", "p", "Verdict")
    rows = [
        (
            entry.name,
            f"{entry.first:.3f}",
            f"{entry.second:.3f}",
            f"{point(entry.change.estimate, signed=True)} "
            f"{interval(entry.change.estimate)}",
            p_text(entry.change.p_value),
            outcome_in_words(entry.change.kind),
        )
        for entry in found.changes
    ]
    typer.echo(f"First: {', '.join(found.first)}")
    typer.echo(f"Second: {', '.join(found.against)}\n")
    print_rows(heads, rows, folded=heads[:1], section=len(found.primary))
    typer.echo()
    print_lines(sentences_of(found))
    print_lines([legend(found)], style="dim")


def sentences_of(found: "RunComparison") -> list[str]:
    """Return what may be said: of what decides always, of the rest where it changed."""
    quiet = ("no difference", "underpowered", "sampling unknown")
    return [
        *(one.sentence for one in found.primary),
        *(
            f"Secondary: {one.sentence}"
            for one in found.secondary
            if one.change.kind not in quiet
        ),
    ]


def p_text(value: float) -> str:
    """Return a p-value as text."""
    return "<0.001" if value < 0.001 else f"{value:.2g}"


def legend(found: "RunComparison") -> str:
    """Say what was compared, and what the numbers were corrected for."""
    by = {
        "record": "Each record is compared with itself: this is about these two models",
        "seed": "Seeds are the replicates, with Student's t",
    }[found.paired_by]
    counted, others = len(found.primary), len(found.secondary)
    apart = (
        f"; the {others} below the line are secondary, corrected among themselves, and "
        "decide nothing"
    )
    return (
        f"Scenario: {found.scenario}. {by}. p: of no difference, after Holm for the "
        f"{counted} primary metrics{apart * (others > 0)}. Verdicts test against the "
        "margin, with Holm likewise."
    )


PlanFile = Annotated[
    Path | None,
    typer.Option(help="A TOML file with the same settings; flags override it."),
]
Vary = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME=V1,V2: values of a trainer parameter or run setting; repeatable, "
        "all combinations are run."
    ),
]
Recorded = Annotated[
    list[str] | None,
    typer.Option(
        help="A recorded federation, in place of what is trained; repeatable. Needs "
        "--owner."
    ),
]
SweepFolder = Annotated[
    Path | None, options.folder_option("Output folder. By default: RUNS/tradeoff.")
]
_OF_TRAINING = (
    "trainers",
    "epsilons",
    "modes",
    "vary",
    "seeds",
    "report_seeds",
    "stop_after",
    "until_decided",
    "settings",
    "fields",
)
_FIELDS = {
    name: field
    for name, field in SweepPlan.model_fields.items()
    if name not in ("vary", "settings", "fields")  # tables, with options of their own
}


def tradeoff(
    plan: PlanFile = None,
    vary: Vary = None,
    recorded: Recorded = None,
    setting: options.Settings = None,
    field: options.Fields = None,
    out: SweepFolder = None,
    on: options.On = "local",
    quiet: options.Quiet = False,
    runs: options.RunsFolder = None,
    **fields: Any,
) -> None:
    """Sweep trainers, privacy budgets and settings: leakage against utility."""
    from privaudit.cli.progress import choose_view

    given = options.from_texts(_FIELDS, fields) | options.given(
        vary=_varied(vary),
        settings=options.settings(setting) or None,
        fields=parse_pairs("--field clients=3", field or []) or None,
        recorded=recorded or None,
    )
    _sweep(plan, given, out, runs, on, choose_view(quiet))


options.take_fields(tradeoff, _FIELDS)


def _sweep(
    plan: Path | None,
    given: dict[str, Any],
    out: Path | None,
    runs: Path | None,
    on: str,
    view: "Display",
) -> None:
    from privaudit.cli.progress import Result
    from privaudit.evaluation.tradeoff.sweep import sweep
    from privaudit.execution.executors import find_executor
    from privaudit.report.sweep import write_sweep
    from privaudit.runs.run import runs_folder

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
    lines = [
        f"{cell.name}: {sweep_result.points[0].metric} {_number(cell.local)}, "
        f"AUROC {_number(cell.auroc)}, {sweep_result.standing(n)}"
        for n, cell in enumerate(sweep_result.cells)
    ]
    result = Result("\n".join(lines), contents)
    view.present([result], lambda: _print_tradeoff(sweep_result, folder))


def _of_recorded(
    entries: dict[str, Any], folder: Path | None, view: "Display"
) -> "Tradeoff":
    """Weigh federations that others trained."""
    from privaudit.evaluation.tradeoff.sweep import weigh_runs
    from privaudit.runs.run import load_run

    names = entries.pop("recorded")
    trained = [name for name in _OF_TRAINING if name in entries]
    if trained:
        raise ConfigError(
            f"--recorded was given with {', '.join(trained)}, which are about training. "
            "Leave one of both out."
        )
    runs = [load_run(name, folder=folder) for name in names]
    return weigh_runs(runs, make_plan(entries), watcher=view)


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


def _print_tradeoff(found: "Tradeoff", folder: Path) -> None:
    from privaudit.report.wording import heading

    judged = [(cell, found.standing(n)) for n, cell in enumerate(found.cells)]
    judged += [(cell, "on other seeds") for cell in found.reported]
    utility = heading(found.points[0].metric)
    heads = ("Cell", "Seeds", utility, "AUROC", "TPR", "Standing")
    rows = [
        (
            cell.name,
            str(len(cell.seeds)),
            *(_number(one) for one in (cell.local, cell.auroc, cell.tpr)),
            standing,
        )
        for cell, standing in judged
    ]
    print_rows(heads, rows, folded=heads)
    print_lines(found.remarks())
    done = len(found.points) + len(found.report_points)
    typer.echo(f"{done} runs audited. Pictures and tables: {folder}")
