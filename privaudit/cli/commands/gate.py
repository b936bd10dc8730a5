"""The command ``privaudit gate``: may this run be merged?"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privaudit.cli import options, outputs
from privaudit.core.errors import ConfigError

if TYPE_CHECKING:
    from privaudit.checks.gate.gate import GateResult
    from privaudit.checks.gate.settings import Configured

RunName = Annotated[
    str | None, typer.Argument(help="An audited run. By default: the latest.")
]
BaselineFile = Annotated[
    str | None,
    typer.Option(help="A file of --write-baseline; or an export (unpaired)."),
]
WriteBaseline = Annotated[
    Path | None,
    outputs.file_option(
        "Write the baseline for later runs, and check nothing. As sensitive as the run "
        "itself."
    ),
]
ScenarioName = Annotated[str | None, typer.Option(help="Default: server-reconstruct.")]
Metrics = Annotated[
    str | None,
    typer.Option(
        help="Comma-separated codes, as auroc, success, utility. By default: "
        "auroc,utility."
    ),
]
Attacks = Annotated[
    str | None, typer.Option(help="Comma-separated. By default: the headline attack.")
]
Margin = Annotated[
    float | None, typer.Option(help="Non-inferiority margin of leakage.")
]
UtilityMargin = Annotated[
    float | None, typer.Option(help="Non-inferiority margin of utility.")
]
Alpha = Annotated[float | None, typer.Option(help="Family-wise false-alarm rate.")]
Guarantees = Annotated[
    bool | None,
    typer.Option(help="Fail if an epsilon is weaker than the baseline's."),
]
MaxAuroc = Annotated[
    float | None, typer.Option(help="Limit on the AUROC of every attack.")
]
MinUtility = Annotated[float | None, typer.Option(help="Lower limit on utility.")]
LeastShadows = Annotated[
    int | None,
    typer.Option(
        help="Fewest shadow models that are enough; 0: attacks without any. By "
        "default: as the baseline; without one the scenario's first attack is asked."
    ),
]
LeastClients = Annotated[
    str | None,
    typer.Option(
        help="Fewest attacked clients, or 'all'. By default: as the baseline."
    ),
]
SettingsFrom = Annotated[
    str | None,
    typer.Option(
        help="A TOML file, or a git revision such as origin/main: settings in "
        "pyproject.toml that ask for less than there are a regression. By default: "
        "those of the baseline."
    ),
]
AcceptUnsigned = Annotated[
    bool,
    typer.Option(
        "--accept-unsigned", help="Compare with numbers that nobody signed: an export."
    ),
]
Junit = Annotated[Path | None, outputs.file_option("Write JUnit XML.")]
Sarif = Annotated[Path | None, outputs.file_option("Write SARIF 2.1.0.")]
Markdown = Annotated[
    Path | None,
    outputs.file_option("Write Markdown; appended if it is $GITHUB_STEP_SUMMARY."),
]
Badge = Annotated[
    Path | None,
    outputs.file_option("Write a badge: JSON for an endpoint of shields.io."),
]


def gate(
    run: RunName = None,
    baseline: BaselineFile = None,
    write_baseline: WriteBaseline = None,
    scenario: ScenarioName = None,
    metrics: Metrics = None,
    attacks: Attacks = None,
    guarantees: Guarantees = None,
    margin: Margin = None,
    utility_margin: UtilityMargin = None,
    alpha: Alpha = None,
    max_auroc: MaxAuroc = None,
    min_utility: MinUtility = None,
    shadows: LeastShadows = None,
    clients: LeastClients = None,
    settings_from: SettingsFrom = None,
    accept_unsigned: AcceptUnsigned = False,
    junit: Junit = None,
    sarif: Sarif = None,
    markdown: Markdown = None,
    badge: Badge = None,
    as_json: options.AsJson = False,
    runs: options.RunsFolder = None,
) -> None:
    """Check a run against a baseline and limits, for CI.

    Settings: table tool.privaudit.gate in pyproject.toml; flags override it. Exit code
    0: pass. 1: regression, or less was asked. 3: underpowered, too few records, or a
    weaker attack. 2: bad input.
    """
    from privaudit.checks.gate.settings import configure

    configured = configure(
        settings_from=settings_from,
        scenario=scenario,
        metrics=options.maybe_listed("--metrics", metrics),
        attacks=options.maybe_listed("--attacks", attacks),
        guarantees=guarantees,
        margin=margin,
        utility_margin=utility_margin,
        alpha=alpha,
        max_auroc=max_auroc,
        min_utility=min_utility,
        shadows=shadows,
        clients=None if clients is None else options.attacked(clients),
        baseline=baseline,
    )
    if write_baseline is not None:
        _refuse_both(baseline)
        _write(run, write_baseline, configured, runs)
        return
    from privaudit.checks.gate.gate import gate as run_gate

    wanted = {"junit": junit, "sarif": sarif, "markdown": markdown, "badge": badge}
    result = run_gate(
        run, None, configured, folder=runs, accept_unsigned=accept_unsigned
    )
    _report(result, wanted)
    if as_json:
        typer.echo(json.dumps(result.to_dict(), indent=2, allow_nan=False))
    else:
        _print(result)
    raise typer.Exit(result.exit_code)


def _refuse_both(baseline: str | None) -> None:
    if baseline is not None:
        raise ConfigError(
            f"--write-baseline writes a baseline and --baseline {baseline} compares "
            "with one. Give one of the two."
        )


def _write(
    run: str | None, path: Path, configured: "Configured", runs: Path | None
) -> None:
    from privaudit.checks.gate.gate import write_baseline
    from privaudit.evaluation.metric import metrics_of

    settings = configured.settings
    utility = bool(metrics_of("use", settings.metrics))
    written = write_baseline(
        run,
        path,
        scenario=settings.scenario,
        utility=utility,
        settings=configured.reference or settings,
        folder=runs,
    )
    typer.echo(f"Baseline: {written} (as sensitive as the run: keep it private)")


def _report(result: "GateResult", wanted: Mapping[str, Path | None]) -> None:
    from privaudit.core.storage import to_json
    from privaudit.federated.runs.folder.outputs import write_output
    from privaudit.report.badge import gate_badge
    from privaudit.report.junit import gate_junit
    from privaudit.report.markdown import gate_markdown, write_summary
    from privaudit.report.sarif import gate_sarif

    if (path := wanted["junit"]) is not None:
        write_output(path, gate_junit(result).encode())
    if (path := wanted["sarif"]) is not None:
        write_output(path, to_json(gate_sarif(result)))
    if (path := wanted["markdown"]) is not None:
        write_summary(path, gate_markdown(result))
    if (path := wanted["badge"]) is not None:
        write_output(path, to_json(gate_badge(result)))


def _print(result: "GateResult") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False, pad_edge=False)
    confidence = f"{100 * (1 - result.alpha):.3g} %"
    table.add_column("Check", overflow="fold")
    for head in (f"Change or value [{confidence}]", "Line", "Outcome"):
        table.add_column(Text(head), no_wrap=True)
    for cells in _rows(result):
        table.add_row(*map(Text, cells))
    console = Console()
    console.print(table)
    console.print()
    for check in result.checks:
        console.print(Text(check.sentence))
    for note in result.notes:
        console.print(Text(note))
    console.print()
    console.print(Text(result.sentence, style="bold"))
    if result.plain:
        console.print(Text(result.plain))
    if result.assurance.sentence:
        console.print(Text(result.assurance.sentence, style="bold"))
    console.print(Text(_legend(result), style="dim"))


def _rows(result: "GateResult") -> Sequence[tuple[str, ...]]:
    from privaudit.report.tables.gate_rows import gate_row

    rows = [gate_row(check) for check in result.checks]
    return [
        (row.name, row.found, row.line.replace("_", " "), row.outcome) for row in rows
    ]


def _legend(result: "GateResult") -> str:
    paired: Mapping[Any, str] = {
        "record": "Each record is compared with itself: this is about these two models",
        "no": "Nothing is paired: the baseline holds numbers only",
        "no baseline": "There is no baseline: only limits are asked",
    }
    unasked = result.baseline is not None and not result.settings.guarantees
    exactly = "not compared, as the settings say" if unasked else "compared exactly"
    return (
        f"Scenario: {result.settings.scenario}. {paired[result.paired]}. A regression "
        f"is beyond its line at alpha {result.alpha:.3g}, after Holm for "
        f"{len(result.tested)} check{'s' * (len(result.tested) != 1)}. Epsilons are {exactly}."
    )
