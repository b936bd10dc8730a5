"""Commands ``attack`` and ``scores``: audits of runs, or of scores made elsewhere.

Runs are attacked one after another, or elsewhere as jobs; each has its page beside it.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privaudit.cli import options
from privaudit.core.errors import ConfigError, PrivauditError

if TYPE_CHECKING:
    from privaudit.auditing.audit import Audit
    from privaudit.cli.progress import Display, Result, Watcher
    from privaudit.execution.jobs import Executor
    from privaudit.runs.run import Run
    from privaudit.statistics.evidence import Limits


def attack_all(
    chosen: Sequence["Run"],
    wanted: Mapping[str, Mapping[str, Any]],
    executor: "Executor",
    view: "Display",
    show_records: bool,
    limits: "Limits",
) -> list["Audit"]:
    """Return the audits of all runs, scenario after scenario.

    Elsewhere than here shadow models are jobs of their own, which audits then find.
    """
    from privaudit.auditing.auditor import shadow_jobs
    from privaudit.cli.progress import Phase
    from privaudit.execution.executors import HERE, Local, warm_processes
    from privaudit.execution.jobs import Job, results_of

    pairs = [
        (name, ask, number, one)
        for name, ask in wanted.items()
        for number, one in enumerate(chosen, start=1)
    ]
    jobs = [
        Job(
            f"{name} {number}, {one.name}",
            attack_run,
            (one, name, ask, show_records, limits),
            one.name,
        )
        for name, ask, number, one in pairs
    ]

    def begin(job: Job["Audit"]) -> None:
        if len(jobs) > 1:
            played = job.arguments[1]
            view(Phase(job.run, "attack", played, jobs.index(job), len(jobs)))

    with warm_processes():
        if executor != HERE:
            shared = [
                replace(job, name=f"{job.name} ({number})")  # runs may share a name
                for name, ask, number, one in pairs
                # Of a store, what shadow models say stays where they were asked.
                if isinstance(executor, Local) or one.place == str(one.path)
                for job in shadow_jobs(one, name, ask, keep=len(chosen) == 1)
            ]
            results_of(executor, shared, watcher=view)
        audits = results_of(executor, jobs, watcher=view, begun=begin)
    return [recounted(audit, show_records) for audit in audits]


def attack_run(
    run: "Run",
    scenario: str,
    asked: Mapping[str, Any],
    show_records: bool,
    limits: "Limits",
    watcher: "Watcher | None" = None,
) -> "Audit":
    """Attack one run, keep the audit and its page beside it, and return the audit."""
    from privaudit.auditing.auditor import Auditor
    from privaudit.auditing.stored_audit import save_audit
    from privaudit.report.page import write_report
    from privaudit.runs.run_folder import refresh

    refresh(run.path)  # on another machine it was never read
    audit = Auditor(run).attack(scenario, limits=limits, watcher=watcher, **asked)
    save_audit(audit)
    page = report_page(run.path, scenario)
    write_report([audit], page, show_records=show_records)
    return audit


def pool_all(
    chosen: Sequence["Run"],
    wanted: Mapping[str, Mapping[str, Any]],
    executor: "Executor",
    view: "Display",
    at_most: float | None,
) -> list["Audit"]:
    """Return one audit of all trainings of each trainer and settings, by scenario."""
    from privaudit.execution.jobs import Job, results_of
    from privaudit.runs.run import mark_latest

    kinds: dict[str, list[Run]] = {}
    for run in chosen:
        kinds.setdefault(f"{run.config.trainer} {run.config.settings}", []).append(run)
    jobs = [
        Job(
            f"{name}, pool {number}, {runs[0].name}",
            pool_trainings,
            (runs, name, ask, at_most),
            runs[0].name,
        )
        for name, ask in wanted.items()
        for number, runs in enumerate(kinds.values(), start=1)
    ]
    audits = results_of(executor, jobs, watcher=view)
    mark_latest(chosen)  # and not what was trained last
    return audits


def pool_trainings(
    runs: Sequence["Run"],
    scenario: str,
    asked: Mapping[str, Any],
    at_most: float | None,
    watcher: "Watcher | None" = None,
) -> "Audit":
    """Return one audit of trainings of a method, kept with its page beside them.

    With a time further ones are trained until it decides; none is begun that would end
    later.
    """
    from privaudit.auditing.auditor import Auditor
    from privaudit.auditing.parts.pool import POOL
    from privaudit.auditing.stored_audit import save_audit
    from privaudit.report.page import write_report
    from privaudit.runs.run import load_run
    from privaudit.runs.run_folder import refresh

    began = time.monotonic()
    for run in runs:
        refresh(run.path)  # as in attack_run
    auditor = Auditor(list(runs))
    if at_most is None:
        audit = auditor.pool(scenario, watcher=watcher, **asked)
    else:
        for audit in auditor.looks(scenario, watcher=watcher, **asked):
            part = audit.part(POOL)
            if part and time.monotonic() - began + part.seconds > at_most:
                break
    folder = _pool_folder(runs, scenario, is_sequential=at_most is not None)
    save_audit(audit, folder)
    audit = replace(audit, run=load_run(folder.resolve()))
    write_report([audit], report_page(audit.run.path, audit.scenario.name))
    return audit


def _pool_folder(runs: Sequence["Run"], scenario: str, *, is_sequential: bool) -> Path:
    """Return where a pool is kept: it is named by its runs, so that it replaces no other."""
    from privaudit.auditing.pooled_audit import pool_name

    first, *others = [run.name for run in runs]
    what = "until-decided" if is_sequential else "pool"
    more = [name.removeprefix(f"{first}-") for name in others]
    if sum(map(len, more)) > _LONGEST:
        more = pool_name(runs).split()[-1:]
    return runs[0].path.parent / "-".join([first, what, *more, scenario])


def recounted(audit: "Audit", show_records: bool) -> "Audit":
    """Return an audit with those counted that came later, and so does its page.

    The page of a run in a store is written here: another machine may have made the audit.
    """
    from privaudit.auditing.audit import recount
    from privaudit.report.page import write_report
    from privaudit.runs.run_folder import refresh

    refresh(audit.run.path)
    latest, page = recount(audit), report_page(audit.run.path, audit.scenario.name)
    in_store = audit.run.place != str(audit.run.path)
    if in_store or latest.tally.different != audit.tally.different:
        write_report([latest], page, show_records=show_records)
    return latest


def report_page(run: Path, scenario: str) -> Path:
    """Return where the report of a run lies, or will."""
    return run / "audits" / scenario / "report.html"


Scenarios = Annotated[
    list[str] | None,
    typer.Option(
        "--scenario",
        help="What the adversary sees and does; repeatable: each scenario is made on "
        "each run. `privaudit list scenarios` names them. By default: "
        "server-reconstruct.",
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        help="What shadow models may take, as 90s, 2m or 1h of one core of a reference "
        "machine: operations are counted, so that every machine trains as many. By "
        "default: 2m, and none for generative models."
    ),
]
Pool = Annotated[
    bool,
    typer.Option(
        "--pool",
        help="Make one audit of the trainings of each trainer with its settings (`train "
        "--trainings`): its verdict is on all of them.",
    ),
]
UntilDecided = Annotated[
    bool,
    typer.Option(
        "--until-decided",
        help="Train and attack further ones like the runs until the verdict on them "
        "together decides: looks at up to six, which count as one.",
    ),
]
_AT_MOST = "10m"
_LONGEST = 80  # letters of the names of a pool's other runs; of more a hash
AtMost = Annotated[
    str,
    typer.Option(
        help="With --until-decided: begin no training of a trainer that would end later, as "
        "90s, 10m or 1h."
    ),
]
Planned = Annotated[
    bool,
    typer.Option(
        "--planned", help="Make the audits that were planned (`train --plan`)."
    ),
]
ScoreFile = Annotated[
    Path,
    typer.Argument(
        help="A .csv, .tsv, .jsonl or .npz with the columns score (higher: more likely "
        "a member) and member (1 or 0), and if you like client, class, record, group, "
        "baseline and feature_NAME (numbers known without the trained model, which "
        "privaudit-labs sets beside the scores)."
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
    scenario: Scenarios = None,
    attacks: options.NamedAttacks = None,
    clients: options.Attacked = "all",
    shadows: options.Shadows = None,
    budget: Budget = None,
    seed: options.AuditSeed = 0,
    planned: Planned = False,
    pool: Pool = False,
    until_decided: UntilDecided = False,
    at_most: AtMost = _AT_MOST,
    margin: options.Margin = 0.05,
    tail_margin: options.TailMargin = 0.05,
    fpr: options.Fpr = 0.01,
    show_records: options.ShowRecords = False,
    runs: options.RunsFolder = None,
    on: options.On = "local",
    quiet: options.Quiet = False,
) -> None:
    """Run the attacks of scenarios on runs, and report what leaks."""
    from privaudit.auditing.named_attacks import check_arguments, named_attacks
    from privaudit.auditing.shadow_budget import parse_budget
    from privaudit.cli.progress import choose_view
    from privaudit.execution.executors import find_executor
    from privaudit.runs.run import chosen_runs
    from privaudit.statistics.evidence import LIMITS, Limits

    view, executor = choose_view(quiet), find_executor(on)
    limits = Limits(margin, tail_margin, fpr)
    named = attacks or []
    named_attacks(named, shadows or 0)  # before anything is loaded
    asked: dict[str, Any] = {
        "clients": options.attacked(clients),
        "shadows": shadows,
        "budget": budget,
        "seed": seed,
        "attacks": named,
    }
    if show_records and (pool or until_decided):
        raise ConfigError(
            "--show-records was given, and a pool's page shows none, as a record is in "
            "several trainings. Leave it out, or attack the trainings one by one."
        )
    if at_most != _AT_MOST and not until_decided:
        raise ConfigError(
            f"--at-most {at_most} was given without --until-decided, which alone trains "
            "further. Add that, or leave it out."
        )
    chosen = chosen_runs(run, runs)
    wanted = dict.fromkeys(scenario or ["server-reconstruct"], asked)
    if planned:
        others = (
            scenario, named, clients != "all", shadows is not None, budget, seed,
            limits != LIMITS,
        )  # fmt: skip
        if any(others):
            raise ConfigError(
                "--planned was given, and options of an audit: the plan says what they "
                "are. Leave them out, or leave out --planned."
            )
        wanted = _as_planned(chosen)
    for name, ask in wanted.items():
        check_arguments(name, **ask)
    with view:
        if pool or until_decided:
            lasts = parse_budget(at_most) if until_decided else None
            wanted = {name: {**ask, "limits": limits} for name, ask in wanted.items()}
            audits = pool_all(chosen, wanted, executor, view, lasts)
        else:
            audits = attack_all(chosen, wanted, executor, view, show_records, limits)
    count = len(audits) // len(wanted)
    parts = [audits[n : n + count] for n in range(0, len(audits), count)]
    _present_all(view, parts, show_records, named)


def _as_planned(chosen: Sequence["Run"]) -> dict[str, dict[str, Any]]:
    """Return what runs' common plan asks, by scenario."""
    from privaudit.auditing.audit_log import plan_of

    plans = [plan_of(run) for run in chosen]
    first = plans[0]
    for run, plan in zip(chosen, plans, strict=True):
        if first is None or plan is None or plan.hash != first.hash:
            what = "no plan" if plan is None else f"another plan than {chosen[0].name}"
            raise ConfigError(
                f"--planned was given, and {run.name} was trained with {what}. Name runs "
                "of one plan (`train --plan`), or leave out --planned."
            )
    assert first is not None  # chosen runs are never none
    return {one.scenario: dict(one.asked) for one in first.audits}


def scores(
    file: ScoreFile,
    sampling: options.HowSampled = "unknown",
    attack: AttackName = "scores",
    model: ModelName = "",
    dataset: DataName = "",
    margin: options.Margin = 0.05,
    tail_margin: options.TailMargin = 0.05,
    fpr: options.Fpr = 0.01,
    name: FolderName = None,
    runs: options.RunsFolder = None,
    quiet: options.Quiet = False,
) -> None:
    """Audit scores that were computed elsewhere, by any attack on any model.

    The folder that it writes is taken by report, gate, compare and export.
    """
    from privaudit.auditing.score_table import read_scores
    from privaudit.auditing.scored_audit import Declared, audit_scores
    from privaudit.auditing.stored_audit import save_audit
    from privaudit.cli.progress import choose_view
    from privaudit.report.page import write_report
    from privaudit.runs.names import check_name
    from privaudit.runs.run import load_run, mark_latest, runs_folder
    from privaudit.statistics.evidence import Limits

    options.check_kept(runs)
    view = choose_view(quiet)
    limits = Limits(margin, tail_margin, fpr)
    declared = Declared(attack, sampling, model=model, dataset=dataset, limits=limits)
    with view:
        audit = audit_scores(read_scores(file), declared)
        folder = runs_folder(runs) / check_name(name or file.stem)
        replaced = _verdict_of_scores(folder)
        save_audit(audit, folder)
        audit = replace(audit, run=load_run(folder.resolve()))
        page = report_page(audit.run.path, audit.scenario.name)
        write_report([audit], page)
        mark_latest([audit.run])
    view.present([_result(audit, page, [])], lambda: _present([audit], page, []))
    if replaced and replaced != audit.verdict.sentence:
        typer.echo(
            f"It replaces an audit of other scores in {_from_here(folder)}, which no log "
            f"counts: {replaced} Choose one attack before you see any result, or another "
            "--name.",
            err=True,
        )


def _verdict_of_scores(folder: Path) -> str:
    """Return what an audit of scores said that is about to be replaced, if any."""
    from privaudit.auditing.stored_audit import read_audit, restore_audit
    from privaudit.runs.run import load_run

    try:
        return restore_audit(read_audit(load_run(folder), "scores")).verdict.sentence
    except PrivauditError:
        return ""  # none is there, or it cannot be read: saving says so


def _present_all(
    view: "Display",
    parts: Sequence[Sequence["Audit"]],
    show_records: bool,
    named: Sequence[str],
) -> None:
    """Write the page of each scenario, and present its audits."""
    pages = [_common_page(audits, show_records) for audits in parts]
    found, is_named = list(zip(parts, pages, strict=True)), len(parts) > 1

    def in_full() -> None:
        for audits, page in found:
            _present(audits, page, named, is_named=is_named)

    results = [
        _result(audit, page, named, is_named=is_named)
        for audits, page in found
        for audit in audits
    ]
    view.present(results, in_full)


def _common_page(audits: Sequence["Audit"], show_records: bool) -> Path:
    """Return the report on all runs, made if there are several."""
    from privaudit.report.page import write_report

    first, scenario = audits[0].run.path, audits[0].scenario.name
    if len(audits) == 1:
        return report_page(first, scenario)
    page = first.parent / f"report-{scenario}.html"
    write_report(audits, page, show_records=show_records)
    return page


def _present(
    audits: Sequence["Audit"],
    page: Path,
    named: Sequence[str],
    *,
    is_named: bool = False,
) -> None:
    """Print the audits' table, attacks that were asked for by name, and the report's path.

    The scenario, which all audits share, is named if it ``is_named``.
    """
    from rich.console import Console

    from privaudit.report.tables.table import print_table

    console = Console()
    if is_named:
        console.print(f"Scenario: {audits[0].scenario.name}", highlight=False)
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


def _result(
    audit: "Audit", page: Path, named: Sequence[str], *, is_named: bool = False
) -> "Result":
    """Return the numbers of an audit; audit.json holds the others.

    Their line names the scenario as well if it ``is_named``.
    """
    from privaudit.cli.progress import Result
    from privaudit.report.attack_strength import strength_of
    from privaudit.report.wording import timed_verdict, unpaid

    headline, folder = audit.headline, audit.run.path / "audits" / audit.scenario.name
    contents = {
        "run": audit.run.name,
        "path": str(folder),
        "report": str(page),
        "scenario": audit.scenario.name,
        "attack": headline.attack,
        "settings": headline.settings,
        "budget": audit.budget and vars(audit.budget),
        "verdict": headline.verdict.kind,
        "sentence": timed_verdict(audit),
        "parts": list(headline.verdict.parts),
        "tail_bound": headline.verdict.tail_bound,
        "trainings": headline.verdict.trainings,
        "strength": strength_of(audit).sentence,
        "auroc": headline.auroc.to_dict(),
        "tpr_at_fpr": {
            f"{fpr:g}": tpr.to_dict() for fpr, tpr in headline.tpr_at_fpr.items()
        },
        "success": headline.success.to_dict(),
        "utility": audit.utility and audit.utility.local.to_dict(),
        "metric": audit.utility and audit.utility.metric,
        "certified": audit.certificate,
        "assurance": audit.assurance.kind,
        "unproved": audit.assurance.sentence,
        "others": {
            name: result.auroc.to_dict()
            for name, result in audit.results.items()
            if result is not headline
        },
    }
    of = f"{audit.run.name}, {audit.scenario.name}" if is_named else audit.run.name
    summary = f"{of}: {timed_verdict(audit)} {audit.assurance.sentence}"
    lines = [summary.rstrip(), *unpaid(audit), *_requested(audit, named)]
    return Result("\n".join(lines), contents)


def _from_here(page: Path) -> Path:
    """Return a path as short as it can be typed in this folder."""
    here = Path.cwd()
    return page.relative_to(here) if page.is_relative_to(here) else page
