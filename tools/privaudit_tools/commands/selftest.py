"""The command ``privaudit selftest``: does the installed version hold what it says?"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privaudit.cli import options
from privaudit.cli.printing import show, with_json
from privaudit.core.errors import ConfigError

if TYPE_CHECKING:
    from privaudit_tools.selftest.check import SelftestCheck, SelftestOutcome

Only = Annotated[
    str | None, typer.Option(help="Only checks whose group or name contains this.")
]
Seed = Annotated[int, typer.Option(min=0, max=options.MOST_SEED, help="Random seed.")]


def _printed() -> Any:
    """Return the type of what is printed."""
    from privaudit.cli.json_schemas import json_object
    from privaudit_tools.selftest.check import PrintedCheck

    return json_object(
        "Selftest",
        privaudit=str,
        seed=int,
        passed=bool,
        seconds=float,
        checks=list[PrintedCheck],
    )


@partial(with_json, words="selftest", load=_printed)
@options.with_bits
def selftest(seed: Seed = 0, only: Only = None, on: options.On = "local") -> None:
    """Check the statistics on simulated data: coverage, false alarms, known leaks.

    Exit code 1 if a check fails.
    """
    from privaudit.cli.progress import Phase, choose_view
    from privaudit.execution.executors import find_executor
    from privaudit_tools.selftest.catalogue import CHECKS
    from privaudit_tools.selftest.check import run_checks

    checks, executor = _chosen(CHECKS, only), find_executor(on)
    order = [check.name for check in checks]
    with choose_view(in_json=False) as view:
        outcomes = run_checks(
            checks,
            seed,
            lambda name: view(
                Phase("selftest", "check", name, order.index(name), len(order))
            ),
            executor,
        )
    failed = sum(not outcome.passed for outcome in outcomes)
    show(_as_json(outcomes, seed), lambda: _print(outcomes, seed))
    if failed:
        raise typer.Exit(1)


def _chosen(
    checks: Sequence["SelftestCheck"], only: str | None
) -> list["SelftestCheck"]:
    words = (only or "").lower()
    chosen = [c for c in checks if words in f"{c.group} {c.name}".lower()]
    if not chosen:
        raise ConfigError(
            f"No check's group or name contains {only!r}. There are: "
            f"{', '.join(dict.fromkeys(c.group for c in checks))}."
        )
    return chosen


def _as_json(outcomes: Sequence["SelftestOutcome"], seed: int) -> dict[str, Any]:
    from importlib.metadata import version

    return {
        "privaudit": version("privaudit"),
        "seed": seed,
        "passed": all(outcome.passed for outcome in outcomes),
        "seconds": round(sum(outcome.seconds for outcome in outcomes), 1),
        "checks": [outcome.to_dict() for outcome in outcomes],
    }


def _print(outcomes: Sequence["SelftestOutcome"], seed: int) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False, pad_edge=False)
    table.add_column("Check", overflow="fold")
    for head in ("Expected", "Observed [99.9 %]", "n", ""):
        table.add_column(Text(head), no_wrap=True)
    group = ""
    for outcome in outcomes:
        if outcome.check.group != group:
            group = outcome.check.group
            table.add_section()
            table.add_row(Text(group, style="bold"))
        table.add_row(*map(Text, _cells(outcome)))
    console.print(table)
    failed = [outcome.check.name for outcome in outcomes if not outcome.passed]
    seconds = sum(outcome.seconds for outcome in outcomes)
    said = f"{len(outcomes) - len(failed)} of {len(outcomes)} checks passed"
    console.print(f"\n{said}, in {seconds:.0f} s, seed {seed}.", highlight=False)
    for name in failed:
        console.print(Text(f"Failed: {name}"))


def _cells(outcome: "SelftestOutcome") -> tuple[str, ...]:
    from privaudit.report.wording import interval, point

    seen = outcome.observed
    counts = "+".join(str(count) for count in seen.n)
    number = f"{point(seen)} {interval(seen)}"
    verdict = "pass" if outcome.passed else "FAIL"
    return outcome.check.name, outcome.check.expected, number, counts, verdict
