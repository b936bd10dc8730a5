"""Trade-off of leakage against utility, over trainers, settings and seeds.

Every cell is a combination of trainer, privacy budget, mode and varied settings; it is
trained and attacked with each seed. Finished runs are kept, so a sweep goes on where it
stopped. Of federations that others trained nothing is trained.
"""

import itertools
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from privaudit.auditing.auditor import Auditor
from privaudit.auditing.scenario import Scenario, find_scenario
from privaudit.auditing.stored_audit import save_audit
from privaudit.core.errors import (
    ConfigError,
    IncompatibleRunsError,
    UnknownNameError,
)
from privaudit.evaluation.sweep_runs import SweepRun, perform_runs, readable_attacks
from privaudit.evaluation.tradeoff.plan import Cell, SweepPlan, cells_of, make_plan
from privaudit.evaluation.tradeoff.result import (
    Spent,
    SweepPoint,
    Tradeoff,
    aggregate,
    judge_sweep,
    search_cost,
)
from privaudit.execution.executors import HERE, warm_processes
from privaudit.execution.jobs import Executor, Job, finish_all
from privaudit.runs.run import Run, runs_folder
from privaudit.runs.training import usual_name
from privaudit.statistics.progress import CellDone, Phase, Watcher, cell_name

__all__ = ["Tradeoff", "run_sweep", "sweep"]


def sweep(
    trainers: Sequence[str],
    epsilons: Sequence[float | None] | None = None,
    modes: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    *,
    vary: Mapping[str, Sequence[Any]] | None = None,
    report_seeds: Sequence[int] = (),
    scenario: str = "prompt-release",
    attack: str | None = None,
    clients: int | Literal["all"] = "all",
    shadows: int = 16,
    settings: Mapping[str, Any] | None = None,
    fields: Mapping[str, Any] | None = None,
    margin: float = 0.05,
    utility_margin: float = 0.05,
    alpha: float = 0.05,
    against_first: bool = False,
    stop_after: int | None = None,
    until_decided: bool = False,
    folder: Path | None = None,
    watcher: Watcher | None = None,
    executor: Executor = HERE,
) -> Tradeoff:
    """Sweep trainers, privacy budgets and settings: leakage (AUROC) against utility.

    Every combination is trained and attacked with every seed; a test over seeds says
    which combinations are dominated (Student's t on paired differences, with Holm).

    Args:
        trainers: Names; those without an epsilon have no budgets and no modes.
        epsilons: Privacy budgets; None: no noise, in every mode, as modes differ
            without it too. By default None, 8, 4, 1, 0.4, 0.1.
        modes: Modes of DP trainers; by default "published-paper" and "sound".
        seeds: Replicates, each of which moves partition, coin, start, batches and
            noise; by default 10 to 14. Fewer than three decide nothing.
        vary: Values by name, of trainer parameters or run settings; all combinations.
        report_seeds: Other seeds, best 5 or more, to report the cells that are not
            dominated.
        scenario: Name of the scenario; each audit is saved with its run.
        attack: Attack to compare by, chosen beforehand; by default the headline.
        clients: Number of clients attacked with shadow models.
        shadows: Shadow models per client, the same for all cells; 0 leaves shadow
            attacks out.
        settings: Trainer parameters, for those trainers that have them.
        fields: Fields of :class:`privaudit.runs.config.RunConfig`, for all runs.
        margin: Margin of AUROC, in (0, 1): a smaller difference does not matter.
        utility_margin: Margin of utility, in (0, 1).
        alpha: Family-wise error rate of the dominance tests, in (0, 1).
        against_first: Whether the table compares every row with its first.
        stop_after: Rounds after which the first row is stopped, for a row of its own.
        until_decided: Whether half of the seeds are enough where nothing is undecided.
        folder: Folder of all runs; by default ``./runs``.
        watcher: Called with a :class:`privaudit.cli.progress.Phase` before each run, a
            :class:`privaudit.cli.progress.CellDone` after it, and the run's own events
            where it is trained in this process.
        executor: Where runs are trained, see :func:`privaudit.execution.executors.find_executor`;
            by default in this process.

    Raises:
        ConfigError: Nothing to sweep, a duplicate, or an invalid value; nothing has run.
        LostWorkerError: A process was killed; the other runs are trained.

    Example:
        >>> small = {"clients": 2, "test_share": 0.45}
        >>> found = sweep(
        ...     ["zero-shot"], seeds=[1, 2], vary={"rounds": [1]}, shadows=0,
        ...     fields=small,
        ... )
        >>> [cell.name for cell in found.not_dominated]
        ['zero-shot, rounds 1, no ε']
        >>> found.cells[0].auroc.n  # seeds
        (2,)
    """
    entries = {n: v for n, v in locals().items() if n in SweepPlan.model_fields}
    plan = make_plan({n: v for n, v in entries.items() if v is not None})
    return run_sweep(plan, folder=folder, watcher=watcher, executor=executor)


@warm_processes()
def run_sweep(
    plan: SweepPlan,
    *,
    folder: Path | None = None,
    watcher: Watcher | None = None,
    executor: Executor = HERE,
) -> Tradeoff:
    """Return what a plan finds, as :func:`sweep` does."""
    scenario, cells = _checked_scenario(plan), cells_of(plan)
    _check_attacked(plan, scenario, cells)
    work = _Work(plan, runs_folder(folder), watcher, executor)
    points: list[SweepPoint] = []
    for begin, end in itertools.pairwise((0, *plan.looks)):
        seeds = plan.seeds[begin:end]
        points += work.run([(cell, seed) for cell in cells for seed in seeds])
        tradeoff = judge_sweep(points, plan)
        if not any(tradeoff.front.undecided):
            break
    fresh = work.report(cells, tradeoff)
    return replace(
        tradeoff,
        cost=search_cost(len(cells), work.spent),
        report_points=tuple(fresh),
        reported=tuple(aggregate(fresh)) if fresh else (),
    )


def _checked_scenario(plan: SweepPlan) -> Scenario:
    scenario = find_scenario(plan.scenario, plan.shadows)
    if plan.attack is not None and plan.attack not in scenario.attacks:
        what = f"attack of {scenario.name} with {plan.shadows} shadow models"
        raise UnknownNameError(what, plan.attack, scenario.attacks)
    return scenario


def _check_attacked(plan: SweepPlan, scenario: Scenario, cells: Sequence[Cell]) -> None:
    """Refuse what finished runs could not be asked, or not be compared by."""
    tasks: set[str] = set()
    for cell in cells:
        config = cell.config(plan.seeds[0])
        tasks.add(config.task)
        readable = readable_attacks(config, scenario)
        if plan.attack is not None and plan.attack not in readable:
            what = f"attack that reads what {config.trainer} gives of {config.model}"
            raise UnknownNameError(what, plan.attack, readable)
    if len(tasks) > 1:
        raise IncompatibleRunsError(
            "Some cells classify and some write, and their utilities cannot be "
            "compared. Sweep them one kind at a time."
        )


def planned_run(cell: Cell, seed: int) -> SweepRun:
    """Return a cell's run with a seed."""
    config = cell.config(seed)
    return SweepRun(
        cell_name(cell.label, cell.epsilon, seed),
        cell.trainer,
        cell.settings,
        {**cell.fields, "seed": seed},
        config.short_hash,
        usual_name(config),
    )


@dataclass(frozen=True)
class SweptRun:
    """What is kept of a run that is trained and attacked: a point, and what it spent."""

    point: SweepPoint
    spent: Spent


def perform_cell(
    planned: SweepRun,
    cell: Cell,
    plan: SweepPlan,
    folder: str | Path,
    watcher: Watcher | None = None,
) -> SweptRun:
    """Train and attack one cell with one seed; a finished run is not made again."""
    run = planned.train(folder, watcher)
    audit = Auditor(run).attack(
        plan.scenario, clients=plan.clients, shadows=plan.shadows, watcher=watcher
    )
    save_audit(audit)
    point = SweepPoint.of(audit, cell.label, cell.epsilon, plan.attack)
    threat = find_scenario(plan.scenario, plan.shadows).threat
    return SweptRun(point, Spent.of(run, threat))


@dataclass
class _Work:
    """The runs of a sweep, and what they spent."""

    plan: SweepPlan
    folder: Path
    watcher: Watcher | None
    executor: Executor
    spent: list[Spent] = field(default_factory=list)
    done: int = 0
    total: int = 0
    began: float = field(default_factory=time.perf_counter)

    def run(self, wanted: Sequence[tuple[Cell, int]]) -> list[SweepPoint]:
        """Return a point for each cell and seed, in that order."""
        runs = [(planned_run(cell, seed), (cell, self.plan)) for cell, seed in wanted]
        self.total += len(runs)
        swept: dict[str, SweptRun] = {}
        finished = perform_runs(
            perform_cell,
            runs,
            self.folder,
            self.executor,
            "tradeoff",
            self.plan.model_dump(mode="json"),
            watcher=self.watcher,
            begun=self._tell_begin,
        )
        with closing(finished):
            for one in finish_all(finished):
                swept[one.job.name] = one.value
                self._tell_done(one.value.point)
        self.spent += [swept[run.label].spent for run, _ in runs]
        return [swept[run.label].point for run, _ in runs]

    def _tell_begin(self, job: Job[SweptRun]) -> None:
        if self.watcher is not None:
            self.watcher(Phase("tradeoff", "cell", job.name, self.done, self.total))

    def _tell_done(self, point: SweepPoint) -> None:
        self.done += 1
        if self.watcher is None:
            return
        each = (time.perf_counter() - self.began) / self.done
        self.watcher(
            CellDone(
                cell=point.mode,
                epsilon=point.epsilon,
                seed=point.seed,
                done=self.done,
                total=self.total,
                metric=point.metric,
                utility=point.local,
                auroc=point.auroc,
                seconds_left=each * (self.total - self.done),
            )
        )

    def report(self, cells: Sequence[Cell], found: Tradeoff) -> list[SweepPoint]:
        """Train the cells that nothing dominates anew, on seeds of their own."""
        stay = {(cell.mode, cell.epsilon) for cell in found.not_dominated}
        chosen = [cell for cell in cells if (cell.label, cell.epsilon) in stay]
        return self.run([(c, seed) for c in chosen for seed in self.plan.report_seeds])


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
    untossed = [run.name for run in runs if run.sampling == "unknown"]
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
