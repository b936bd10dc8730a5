"""``privaudit attack``: attack runs as an adversary, and report the leak.

``privaudit scores`` reports scores of an attack that was made elsewhere.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from privaudit.cli import options

if TYPE_CHECKING:
    from privaudit.auditing.audit import Audit
    from privaudit.cli.progress import Result

ScoreFile = Annotated[
    Path,
    typer.Argument(
        help="A .csv, .tsv, .jsonl or .npz with the columns score (higher: more likely "
        "a member) and member (1 or 0), and if you like client, class, record and "
        "group."
    ),
]
HowSampled = Annotated[
    Literal["coin", "unknown"],
    typer.Option(
        help="coin: an independent fair coin chose each member before training. "
        "Otherwise no verdict on membership is given."
    ),
]
AttackName = Annotated[str, typer.Option(help="What the scores are called.")]
ModelName = Annotated[str, typer.Option(help="What was attacked, in your words.")]
DataName = Annotated[str, typer.Option(help="What the records are, in your words.")]
FolderName = Annotated[
    str | None, typer.Option(help="Name of the folder. By default: that of the file.")
]


def attack(
    run: options.Runs = None,
    scenario: options.ScenarioName = "server-reconstruct",
    attacks: options.NamedAttacks = None,
    clients: options.Attacked = "3",
    shadows: options.Shadows = None,
    seed: options.AuditSeed = 0,
    show_records: options.ShowRecords = False,
    runs: options.RunsFolder = None,
    quiet: options.Quiet = False,
    as_json: options.JsonLines = False,
) -> None:
    """Run the attacks of a scenario on runs, and report what leaks."""
    from privaudit.auditing.auditor import Auditor
    from privaudit.auditing.named_attacks import named_attacks
    from privaudit.auditing.storage.save import save_audit
    from privaudit.cli.progress import choose_view
    from privaudit.federated.runs.folder.run_names import chosen_runs
    from privaudit.report.page import write_report

    view = choose_view(quiet, as_json)
    whom, audits = options.attacked(clients), []
    named = attacks or []
    named_attacks(named, shadows or 0)  # before anything is loaded
    selected_runs = chosen_runs(run, runs)
    with view:
        for one in selected_runs:
            audit = Auditor(one).attack(
                scenario,
                attacks=named,
                clients=whom,
                shadows=shadows,
                seed=seed,
                watcher=view,
            )
            save_audit(audit)
            write_report(
                [audit], report_page(one.path, scenario), show_records=show_records
            )
            audits.append(audit)
    page = _common_page(audits, show_records)
    results = [_result(audit, page, named) for audit in audits]
    view.present(results, lambda: _present(audits, page, named))


def scores(
    file: ScoreFile,
    sampling: HowSampled = "unknown",
    attack: AttackName = "scores",
    model: ModelName = "",
    dataset: DataName = "",
    name: FolderName = None,
    runs: options.RunsFolder = None,
    quiet: options.Quiet = False,
    as_json: options.JsonLines = False,
) -> None:
    """Audit scores that were computed elsewhere, by any attack on any model.

    The folder that it writes is taken by report, gate, compare and export.
    """
    from privaudit.auditing.scores.score_file import read_scores
    from privaudit.auditing.scores.scored_audit import Declared, audit_scores
    from privaudit.auditing.storage.save import save_audit
    from privaudit.cli.progress import choose_view
    from privaudit.federated.runs.folder.run_names import (
        check_name,
        load_run,
        mark_latest,
        runs_folder,
    )
    from privaudit.report.page import write_report

    view = choose_view(quiet, as_json)
    declared = Declared(attack, sampling, model=model, dataset=dataset)
    with view:
        audit = audit_scores(read_scores(file), declared)
        folder = runs_folder(runs) / check_name(name or file.stem)
        save_audit(audit, folder)
        audit = replace(audit, run=load_run(folder.resolve()))
        page = report_page(audit.run.path, audit.scenario.name)
        write_report([audit], page)
        mark_latest([audit.run])
    view.present([_result(audit, page, [])], lambda: _present([audit], page, []))


def _common_page(audits: Sequence["Audit"], show_records: bool) -> Path:
    """Return the report on all runs, made if there are several."""
    from privaudit.report.page import write_report

    first, scenario = audits[0].run.path, audits[0].scenario.name
    if len(audits) == 1:
        return report_page(first, scenario)
    page = first.parent / f"report-{scenario}.html"
    write_report(audits, page, show_records=show_records)
    return page


def _present(audits: Sequence["Audit"], page: Path, named: Sequence[str]) -> None:
    """Print the table, what was asked for by name, and where the report lies."""
    from rich.console import Console

    from privaudit.report.tables.table import print_table

    console = Console()
    print_table(audits, console)
    for audit in audits:
        for line in _requested(audit, named):
            console.print(line, soft_wrap=True, highlight=False, markup=False)
    console.print(f"Report: {_from_here(page)}", soft_wrap=True, highlight=False)


def _requested(audit: "Audit", named: Sequence[str]) -> list[str]:
    """Return a line for each attack that was asked for by name."""
    requested = {text.partition(":")[0] for text in named}
    return [
        f"{audit.run.name}, {label}: {result.verdict}"
        for label, result in audit.results.items()
        if label.partition(":")[0] in requested
    ]


def _result(audit: "Audit", page: Path, named: Sequence[str]) -> "Result":
    """Return the numbers of an audit; audit.json holds the others."""
    from privaudit.cli.progress import Result

    headline, place = audit.headline, audit.run.path / "audits" / audit.scenario.name
    contents = {
        "run": audit.run.name,
        "path": str(place),
        "report": str(page),
        "scenario": audit.scenario.name,
        "attack": headline.attack,
        "verdict": headline.verdict.kind,
        "sentence": headline.verdict.sentence,
        "auroc": headline.auroc.to_dict(),
        "success": audit.guesses.success.to_dict(),
        "utility": audit.utility and audit.utility.local.to_dict(),
        "metric": audit.utility and audit.utility.metric,
        "certified": audit.certificate,
        "assurance": audit.assurance.kind,
        "unproved": audit.assurance.sentence,
        "others": {
            name: leak.auroc.to_dict()
            for name, leak in audit.results.items()
            if leak is not headline
        },
    }
    summary = f"{audit.run.name}: {headline.verdict} {audit.assurance.sentence}"
    lines = [summary.rstrip(), *_requested(audit, named)]
    return Result("\n".join(lines), contents)


def _from_here(page: Path) -> Path:
    """Return a path as short as it can be typed in this folder."""
    here = Path.cwd()
    return page.relative_to(here) if page.is_relative_to(here) else page


def report_page(run: Path, scenario: str) -> Path:
    """Return where the report of a run lies, or will."""
    return run / "audits" / scenario / "report.html"
