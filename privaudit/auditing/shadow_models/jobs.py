"""Shadow models of many clients as jobs: some clients each, kept beside the run.

What shadow models of a client say depends on no other client where they are replayed on
what that client received. So clients can be shared out: each job keeps its clients'
answers where the attack that follows finds them, and the attack's numbers are those of
one process. Shadows of one client are not cut: they train stacked, and a stack of
another size may round otherwise.
"""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from privaudit.auditing.auditor import Auditor
from privaudit.auditing.repetition.audit_log import check_log
from privaudit.execution.jobs import Job
from privaudit.federated.runs.folder.run_lock import refresh
from privaudit.federated.runs.folder.run_names import load_run
from privaudit.federated.runs.runs import Run
from privaudit.federated.trainer import ClientId
from privaudit.recording.owner import chosen_owner, use_owner
from privaudit.statistics.progress import Watcher

CLIENTS = 8  # of a job at most, and of a run that needs none
LEAST_JOBS = 5  # of a run: the first may run alone, and two processes share the others
MOST_JOBS = 1000  # of a run: with more clients, jobs have more of them


def shadow_jobs(
    run: Run, scenario: str, asked: Mapping[str, Any], owner: str | None = None
) -> list[Job[None]]:
    """Return jobs that train the shadow models of an attack; none where nothing is won.

    That is where one job would do, or where whole federations are trained, in which all
    targets are together. Where the run was trained elsewhere, ``owner`` says where its
    owner is from.
    """
    most = run.config.clients if asked["clients"] == "all" else asked["clients"]
    if most <= CLIENTS or asked["shadows"] == 0:
        return []
    check_log(run)  # before anything is trained
    clients, shadows = _clients(load_run(run.path), scenario, asked, owner)
    asked = {**asked, "shadows": shadows, "budget": None}
    size = max(1, min(CLIENTS, ceil(len(clients) / LEAST_JOBS)))
    size = max(size, ceil(len(clients) / MOST_JOBS))
    parts = [clients[n : n + size] for n in range(0, len(clients), size)]
    if len(parts) < 2:
        return []
    return [
        Job(
            f"shadow models {number} of {len(parts)}, {scenario}, {run.name}",
            train_shadows,
            (run, scenario, asked, part, owner),
            run.name,
        )
        for number, part in enumerate(parts, start=1)
    ]


def _clients(
    run: Run, scenario: str, asked: Mapping[str, Any], owner: str | None
) -> tuple[list[ClientId], int]:
    """Return whom shadow models can be trained for apart from each other, and how many."""
    with use_owner(None if chosen_owner() else owner):
        plan, adversary, targets, paid = Auditor(run).resolve(scenario, **asked)
        if not any(attack.trains_shadows for attack in plan.attacks.values()):
            return [], 0
    shadows = paid.shadows if paid else asked["shadows"] or 0
    names = [target.client for target in targets]
    is_apart = bool(adversary.view.messages) and adversary.store is not None
    for target in targets:
        is_apart &= adversary.view.sees_updates_of(target.client)
        is_apart &= not target.reconstructed.suspects
    if not is_apart:
        return [], shadows
    return (names if asked["clients"] == "all" else names[: asked["clients"]]), shadows


def train_shadows(
    run: Run,
    scenario: str,
    asked: Mapping[str, Any],
    clients: Sequence[ClientId],
    owner: str | None,
    watcher: Watcher | None = None,
) -> None:
    """Train some clients' shadow models, and keep what they say beside the run."""
    refresh(run.path)  # on another machine it was never read
    with use_owner(None if chosen_owner() else owner):
        auditor = Auditor(run)
        plan = auditor.plan(scenario, asked["attacks"], asked["shadows"])
        adversary, targets = auditor.prepare(
            plan, seed=asked["seed"], watcher=watcher, only=clients
        )
        for attack in plan.attacks.values():
            if attack.trains_shadows:
                attack(adversary, targets)
