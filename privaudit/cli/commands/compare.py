"""The command ``privaudit compare``: what two audited runs differ in."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from privaudit.cli import options
from privaudit.core.errors import ConfigError

if TYPE_CHECKING:
    from privaudit.evaluation.compare.compare import RunComparison

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
    as_json: options.AsJson = False,
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
    if as_json:
        typer.echo(json.dumps(comparison.to_dict(), indent=2, allow_nan=False))
        return
    _print(comparison)


def _sides(run: list[str], against: str | None) -> tuple[list[str], list[str]]:
    if against is not None:
        return run, options.listed("--against", against, str, "names")
    if len(run) != 2:
        raise ConfigError(
            f"{len(run)} runs were given without --against; a comparison needs "
            "two. Give two runs; or one setting's runs, and --against with the other's."
        )
    return run[:1], run[1:]


def _print(found: "RunComparison") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from privaudit.core.formatting import percent
    from privaudit.report.wording import interval, point

    confidence = percent(found.changes[0].change.estimate.confidence)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False, pad_edge=False)
    for head in ("Metric", "First", "Second", f"Difference [{confidence}]", "p"):
        table.add_column(Text(head), no_wrap=head != "Metric", overflow="fold")
    table.add_column("Verdict", no_wrap=True)
    for number, entry in enumerate(found.changes):
        estimate = entry.change.estimate
        if number == len(found.primary):
            table.add_section()
        table.add_row(
            Text(entry.name),
            f"{entry.first:.3f}",
            f"{entry.second:.3f}",
            Text(f"{point(estimate, signed=True)} {interval(estimate)}"),
            p_text(entry.change.p_value),
            Text(entry.change.kind),
        )
    console = Console()
    console.print(f"First: {', '.join(found.first)}", highlight=False)
    console.print(f"Second: {', '.join(found.against)}\n", highlight=False)
    console.print(table)
    console.print()
    for entry in found.primary:
        console.print(Text(entry.sentence))
    for entry in found.secondary:
        if entry.change.kind in ("increase", "decrease"):
            console.print(Text(f"Secondary: {entry.sentence}"))
    console.print(Text(legend(found), style="dim"))


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
