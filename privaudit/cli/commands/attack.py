"""``privaudit attack``: attack runs as an adversary, and report the leak.

``privaudit scores`` reports scores of an attack that was made elsewhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from privaudit.cli import options

if TYPE_CHECKING:
    from privaudit.auditing.audit import Audit
    from privaudit.cli.progress import Result, Watcher
    from privaudit.federated.runs.runs import Run

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
    on: options.On = "local",
    quiet: options.Quiet = False,
    as_json: options.JsonLines = False,
) -> None:
    """Run the attacks of a scenario on runs, and report what leaks."""
    from privaudit.auditing.named_attacks import named_attacks
    from privaudit.auditing.shadow_models.jobs import shadow_jobs
    from privaudit.cli.progress import Phase, choose_view
    from privaudit.execution.jobs import Job, results_of
    from privaudit.execution.local import HERE
    from privaudit.execution.places import find_executor
    from privaudit.federated.runs.folder.run_names import chosen_runs
    from privaudit.recording.owner import owners_place

    view, executor = choose_view(quiet, as_json), find_executor(on)
    asked = {"clients": options.attacked(clients), "shadows": shadows, "seed": seed}
    named = attacks or []
    named_attacks(named, shadows or 0)  # before anything is loaded
    wanted, owner = {**asked, "attacks": named}, owners_place()
    chosen = chosen_runs(run, runs)
    given = (scenario, wanted, show_records, owner)
    jobs = [
        Job(f"attack {place}, {one.name}", attack_run, (one, *given), one.name)
        for place, one in enumerate(chosen, start=1)
    ]

    def begin(job: Job["Audit"]) -> None:
        if len(jobs) > 1:
            done = jobs.index(job)
            view(Phase(job.run, "attack", scenario, done, len(jobs)))

    with view:
        if executor != HERE:
            shared = [
                j for one in chosen for j in shadow_jobs(one, scenario, wanted, owner)
            ]
            results_of(executor, shared, watcher=view)
        audits = results_of(executor, jobs, watcher=view, begun=begin)
    page = _common_page(audits, show_records)
    results = [_result(audit, page, named) for audit in audits]
    view.present(results, lambda: _present(audits, page, named))


def attack_run(
    run: "Run",
    scenario: str,
    asked: Mapping[str, Any],
    show_records: bool,
    owner: str | None,
    watcher: "Watcher | None" = None,
) -> "Audit":
    """Attack one run, keep the audit and its page beside it, and return the audit."""
    from privaudit.auditing.auditor import Auditor
    from privaudit.auditing.storage.save import save_audit
    from privaudit.recording.owner import chosen_owner, use_owner
    from privaudit.report.page import write_report

    with use_owner(None if chosen_owner() else owner):
        audit = Auditor(run).attack(scenario, watcher=watcher, **asked)
        save_audit(audit)
        page = report_page(run.path, scenario)
        write_report([audit], page, show_records=show_records)
    return audit


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
