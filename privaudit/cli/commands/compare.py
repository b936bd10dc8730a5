"""The command ``privaudit compare``: what two audited runs differ in."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from privaudit.cli import options
from privaudit.cli.printing import print_lines, print_rows, show
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
            entry.change.kind,
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
    changed = ("increase", "decrease")
    return [
        *(one.sentence for one in found.primary),
        *(
            f"Secondary: {one.sentence}"
            for one in found.secondary
            if one.change.kind in changed
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
