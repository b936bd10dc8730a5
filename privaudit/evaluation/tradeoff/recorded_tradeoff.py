"""The trade-off of federations that others trained: nothing is trained for it."""

from collections.abc import Sequence

from privaudit.auditing.auditor import Auditor
from privaudit.auditing.storage.save import save_audit
from privaudit.core.errors import ConfigError
from privaudit.evaluation.tradeoff.cells import SweepPoint
from privaudit.evaluation.tradeoff.plan import SweepPlan
from privaudit.evaluation.tradeoff.result import Tradeoff, judge_sweep
from privaudit.federated.runs.runs import Run
from privaudit.statistics.progress import Watcher


def weigh_runs(
    runs: Sequence[Run], plan: SweepPlan, *, watcher: Watcher | None = None
) -> Tradeoff:
    """Attack recorded federations, and weigh leakage against utility.

    Each method at each claimed epsilon is a cell; its name is in the owner's words. Runs
    that were split by one ledger are one replicate: give each cell the same ledgers.

    Of the plan, nothing of training counts.

    Raises:
        ConfigError: A run was trained here, has no utility, declares no coin that
            chose its members, or stands there twice.
    """
    trained = [run.name for run in runs if not run.origin]
    if trained:
        raise ConfigError(
            f"{trained[0]} was trained here, and a trade-off of recorded federations was "
            "requested. Sweep trainers with --trainers, or compare such runs."
        )
    untossed = [run.name for run in runs if run.sampling != "coin"]
    if untossed:
        raise ConfigError(
            f"A trade-off was requested, and {untossed[0]} declares no coin that chose "
            "its members: what tells them from others may be no leakage. Weigh "
            "federations whose ledgers were tossed (`privaudit split`)."
        )
    ledgers = list(dict.fromkeys(run.header["ledger_hash"] for run in runs))
    points = []
    for run in runs:
        shadows = plan.shadows if run.trains_shadows else 0
        audit = Auditor(run).attack(
            plan.scenario, clients=plan.clients, shadows=shadows, watcher=watcher
        )
        save_audit(audit)
        replicate = ledgers.index(run.header["ledger_hash"])
        cell = run.config.trainer, audit.claimed_epsilon
        points.append(SweepPoint.of(audit, *cell, plan.attack, replicate))
    return judge_sweep(points, plan)
