"""Commands ``gate`` and ``plan``: may this run be merged, by thresholds fixed before?"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privaudit.checks.gate.settings import GATE_FIELDS, configure, make_settings
from privaudit.cli import options
from privaudit.cli.commands.attack import Budget
from privaudit.cli.printing import print_lines, print_rows, show
from privaudit.core.errors import ConfigError
from privaudit.core.parameters import parse_pairs

if TYPE_CHECKING:
    from privaudit.checks.gate.gate import GateResult
    from privaudit.checks.gate.settings import Configured, GateSettings

RunName = Annotated[
    str | None, typer.Argument(help="An audited run. By default: the latest.")
]
WriteBaseline = Annotated[
    Path | None,
    options.file_option(
        "Write the baseline for later runs, and check nothing. As sensitive as the run "
        "itself."
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
Junit = Annotated[Path | None, options.file_option("Write JUnit XML.")]
Sarif = Annotated[Path | None, options.file_option("Write SARIF 2.1.0.")]
Markdown = Annotated[
    Path | None,
    options.file_option("Write Markdown; appended if it is $GITHUB_STEP_SUMMARY."),
]
Badge = Annotated[
    Path | None,
    options.file_option("Write a badge: JSON for an endpoint of shields.io."),
]
MethodSpec = Annotated[
    str | None,
    typer.Option(
        help="Compare methods and no runs: a trainer, as NAME or NAME:key=value,key=value."
    ),
]
OtherMethod = Annotated[
    str | None,
    typer.Option(help="The other one; or a file of --method and --write-baseline."),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        help="What both methods may take in all: the first seed's time says how many "
        "seeds that pays for. By default: 20."
    ),
]
Seeds = Annotated[
    int | None, typer.Option(help="Seeds of methods at most. By default: 12.")
]
FirstSeed = Annotated[
    int | None,
    typer.Option(max=options.MOST_SEED, help="The first of them. By default: 0."),
]
_OF_METHODS = {"scenario", "attacks", "clients", "shadows", "margin", "alpha"}


def gate(
    run: RunName = None,
    write_baseline: WriteBaseline = None,
    settings_from: SettingsFrom = None,
    accept_unsigned: AcceptUnsigned = False,
    junit: Junit = None,
    sarif: Sarif = None,
    markdown: Markdown = None,
    badge: Badge = None,
    runs: options.RunsFolder = None,
    method: MethodSpec = None,
    against: OtherMethod = None,
    minutes: Minutes = None,
    seeds: Seeds = None,
    seed: FirstSeed = None,
    setting: options.Settings = None,
    field: options.Fields = None,
    **fields: Any,
) -> None:
    """Check a run against a baseline and limits, for CI; or one method against another.

    Settings: table tool.privaudit.gate in pyproject.toml; flags override it. Exit code
    0: pass. 1: regression, or less was asked. 3: open, as there were too few records or
    seeds, or a weaker attack. 2: bad input.
    """
    flags = options.from_texts(GATE_FIELDS, fields)
    configured = configure(settings_from=settings_from, **flags)
    wanted = {"junit": junit, "sarif": sarif, "markdown": markdown, "badge": badge}
    effort = options.given(minutes=minutes, most=seeds, first_seed=seed)
    if write_baseline is not None:
        judged = [*options.given(**wanted), *["accept_unsigned"] * accept_unsigned]
        _refuse(judged, "--write-baseline", "That judges nothing: gate without it.")
    if method is not None:
        unsigned = accept_unsigned or None
        of_runs = options.given(
            run=run, settings_from=settings_from, accept_unsigned=unsigned
        )
        _refuse([*of_runs, *(flags.keys() - _OF_METHODS)], "--method")
        texts = [method] if against is None else [method, against]
        of_both = parse_pairs("--field clients=3", field or [])
        parts = configured.settings, options.settings(setting), of_both
        _gate_methods(texts, parts, {"runs": runs, **effort}, write_baseline, wanted)
        return
    both = options.given(against=against, set=setting, field=field)
    _refuse([*both, *effort], "no --method")
    if write_baseline is not None:
        if "baseline" in flags:
            raise ConfigError(
                f"--write-baseline writes a baseline and --baseline {flags['baseline']} "
                "compares with one. Give one of the two."
            )
        _write(run, write_baseline, configured, runs)
        return
    from privaudit.checks.gate.gate import gate as run_gate

    result = run_gate(
        run, None, configured, folder=runs, accept_unsigned=accept_unsigned
    )
    _report(result, wanted)
    show(result.to_dict(), partial(_print, result))
    raise typer.Exit(result.exit_code)


options.take_fields(gate, GATE_FIELDS)


_WHOSE = (
    "A gate on runs takes a RUN, one on methods --method NAME --against NAME. "
    "`privaudit gate --help` says whose options are which."
)


def _refuse(names: Sequence[str], beside: str, advice: str = _WHOSE) -> None:
    if names:
        said = ", ".join(sorted(name.replace("_", "-") for name in names))
        raise ConfigError(f"The gate was given {said} and {beside}. {advice}")


def _gate_methods(
    texts: Sequence[str],
    parts: tuple["GateSettings", Mapping[str, Any], Mapping[str, Any]],
    effort: Mapping[str, Any],
    file: Path | None,
    wanted: Mapping[str, Path | None],
) -> None:
    """Compare methods, or write one's numbers; settings, parameters and fields are of both."""
    from privaudit.checks.gate import methods
    from privaudit.cli.progress import Result, choose_view

    if (len(texts) == 1) == (file is None):
        raise ConfigError(
            "A gate on methods takes --method and --against, another method or a file; "
            "or --method and --write-baseline, which compares nothing. Give one of both."
        )
    options.check_kept(effort["runs"])
    stored = None
    if file is None and ((path := Path(texts[1])).suffix == ".json" or path.is_file()):
        stored, texts = methods.SeedNumbers.read(path), texts[:1]
    sides = tuple(methods.Method.of(text, *parts) for text in texts)
    view = choose_view()
    pairs = methods.Pairs(sides, stored=stored, watcher=view, **effort)
    if file is not None:
        with view:
            pairs.go_on(judge=False).save(file)
        text = f"Baseline: {file} (one AUROC a seed)"
        view.present([Result(text, {"baseline": str(file)})], partial(typer.echo, text))
        return
    with view:
        found = methods.gate_methods(pairs)
    _report(found, wanted)
    view.present([Result(found.sentence, found.to_dict())], partial(_print, found))
    raise typer.Exit(found.exit_code)


def _write(
    run: str | None, path: Path, configured: "Configured", runs: Path | None
) -> None:
    from privaudit.checks.gate.gate import write_baseline
    from privaudit.evaluation.metric import metrics_of

    settings = configured.settings
    utility = bool(metrics_of("utility", settings.metrics))
    written = write_baseline(
        run,
        path,
        scenario=settings.scenario,
        utility=utility,
        settings=configured.reference or settings,
        folder=runs,
    )
    text = f"Baseline: {written} (as sensitive as the run: keep it private)"
    show({"baseline": str(written)}, text)


def _report(result: "GateResult", wanted: Mapping[str, Path | None]) -> None:
    from privaudit.core.storage import to_json
    from privaudit.report.ci_formats import (
        gate_badge,
        gate_junit,
        gate_markdown,
        gate_sarif,
        write_summary,
    )
    from privaudit.runs.own_files import write_output

    if (path := wanted["junit"]) is not None:
        write_output(path, gate_junit(result).encode())
    if (path := wanted["sarif"]) is not None:
        write_output(path, to_json(gate_sarif(result)))
    if (path := wanted["markdown"]) is not None:
        write_summary(path, gate_markdown(result))
    if (path := wanted["badge"]) is not None:
        write_output(path, to_json(gate_badge(result)))


def _print(result: "GateResult") -> None:
    from privaudit.report.ci_formats import gate_cells

    confidence = f"{100 * (1 - result.alpha):.3g} %"
    heads = ("Check", f"Change or value [{confidence}]", "Line", "Outcome")
    rows = [gate_cells(check) for check in result.checks]
    print_rows(heads, rows, folded=heads[:1])
    typer.echo()
    print_lines([*(check.sentence for check in result.checks), *result.notes])
    typer.echo()
    print_lines([result.sentence], style="bold")
    print_lines([result.plain])
    print_lines([result.assurance.sentence], style="bold")
    print_lines([_legend(result)], style="dim")


def _legend(result: "GateResult") -> str:
    paired: Mapping[Any, str] = {
        "record": "Each record is compared with itself: this is about these two models",
        "seed": "Both are trained with the same seeds, which are the replicates: this is "
        "about the methods",
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


PlanFile = Annotated[Path, options.file_argument]
Scenarios = Annotated[
    list[str] | None,
    typer.Option(
        "--scenario",
        help="A scenario to be audited; repeatable. By default: server-reconstruct.",
    ),
]
_PLANNED = ("max_auroc", "max_tpr", "margin", "alpha")
_THRESHOLDS = {name: GATE_FIELDS[name] for name in _PLANNED}


def plan(
    file: PlanFile,
    scenario: Scenarios = None,
    attacks: options.NamedAttacks = None,
    clients: options.Attacked = "all",
    shadows: options.Shadows = None,
    budget: Budget = None,
    seed: options.AuditSeed = 0,
    **thresholds: Any,
) -> None:
    """Fix audits and thresholds in a file with a hash, for `train --plan`.

    The same options as those of attack and gate; `attack --planned` makes the audits.
    """
    from privaudit.auditing.audit_log import make_plan, write_plan
    from privaudit.auditing.named_attacks import check_arguments

    asked: dict[str, Any] = {
        "attacks": sorted(attacks or []),
        "clients": options.attacked(clients),
        "shadows": shadows,
        "budget": budget,
        "seed": seed,
    }
    names = scenario or ["server-reconstruct"]
    for name in names:
        check_arguments(name, **asked)
    if len(set(names)) < len(names):
        raise ConfigError(
            f"The scenarios {', '.join(names)} were to be planned. Name each once: a "
            "second audit of one would replace the first."
        )
    wanted = options.given(**thresholds)
    make_settings(wanted, "the plan")
    made = make_plan({name: asked for name in names}, wanted)  # noqa: C420
    write_plan(made, file)
    text = (
        f"Plan: {file}\nSHA-256: {made.hash}\n"
        "Train with --plan, and audit with `privaudit attack --planned`."
    )
    show({"plan": str(file), "sha256": made.hash, "scenarios": names}, text)


options.take_fields(plan, _THRESHOLDS)
