"""Attacking runs one after another, or elsewhere as jobs; each with its page beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privaudit.auditing.audit import Audit
    from privaudit.cli.progress import Display, Watcher
    from privaudit.execution.jobs import Executor
    from privaudit.federated.runs.runs import Run


def attack_all(
    chosen: Sequence["Run"],
    wanted: Mapping[str, Mapping[str, Any]],
    executor: "Executor",
    view: "Display",
    show_records: bool,
) -> list["Audit"]:
    """Return the audits of all runs, scenario after scenario.

    Elsewhere than here shadow models are jobs of their own, which audits then find.
    """
    from privaudit.auditing.shadow_models.jobs import shadow_jobs
    from privaudit.cli.progress import Phase
    from privaudit.execution.jobs import Job, results_of
    from privaudit.execution.local import HERE, Local
    from privaudit.recording.owner import owners_place

    owner = owners_place()
    pairs = [
        (name, ask, place, one)
        for name, ask in wanted.items()
        for place, one in enumerate(chosen, start=1)
    ]
    jobs = [
        Job(
            f"{name} {place}, {one.name}",
            attack_run,
            (one, name, ask, show_records, owner),
            one.name,
        )
        for name, ask, place, one in pairs
    ]

    def begin(job: Job["Audit"]) -> None:
        if len(jobs) > 1:
            played = job.arguments[1]
            view(Phase(job.run, "attack", played, jobs.index(job), len(jobs)))

    if executor != HERE:
        shared = [
            replace(job, name=f"{job.name} ({place})")  # runs may share a name
            for name, ask, place, one in pairs
            # Of a store, what shadow models say stays on the machine that asked them.
            if isinstance(executor, Local) or one.place == str(one.path)
            for job in shadow_jobs(one, name, ask, owner)
        ]
        results_of(executor, shared, watcher=view)
    audits = results_of(executor, jobs, watcher=view, begun=begin)
    return [recounted(audit, show_records) for audit in audits]


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
    from privaudit.federated.runs.folder.run_lock import refresh
    from privaudit.recording.owner import chosen_owner, use_owner
    from privaudit.report.page import write_report

    refresh(run.path)  # on another machine it was never read
    with use_owner(None if chosen_owner() else owner):
        audit = Auditor(run).attack(scenario, watcher=watcher, **asked)
        save_audit(audit)
        page = report_page(run.path, scenario)
        write_report([audit], page, show_records=show_records)
    return audit


def recounted(audit: "Audit", show_records: bool) -> "Audit":
    """Return an audit with those counted that came later, and so does its page.

    The page of a run in a store is written here: another machine may have made the audit.
    """
    from privaudit.auditing.repetition.correction import recount
    from privaudit.federated.runs.folder.run_lock import refresh
    from privaudit.report.page import write_report

    refresh(audit.run.path)
    latest, page = recount(audit), report_page(audit.run.path, audit.scenario.name)
    in_store = audit.run.place != str(audit.run.path)
    if in_store or latest.tried.different != audit.tried.different:
        write_report([latest], page, show_records=show_records)
    return latest


def report_page(run: Path, scenario: str) -> Path:
    """Return where the report of a run lies, or will."""
    return run / "audits" / scenario / "report.html"
