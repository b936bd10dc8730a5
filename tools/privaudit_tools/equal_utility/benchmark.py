"""The benchmark: settings chosen on tuning seeds, judged on seeds fixed beforehand.

What is evaluated is sealed: a file beside the result holds the plan's digest with the
date of its first run, and then what the tuning seeds chose, before an evaluation seed is
trained. A benchmark that was killed goes on where it stopped, with the choices that stand.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from privaudit.auditing.scenario import find_scenario
from privaudit.core.errors import ConfigError, UnknownNameError
from privaudit.core.parameters import first_problem
from privaudit.core.storage import read_json, write_json
from privaudit.evaluation.sweep_runs import SweepRun, perform_runs
from privaudit.evaluation.tradeoff.plan import Cell
from privaudit.execution.executors import warm_processes
from privaudit.execution.jobs import Executor, use_threads
from privaudit.runs.config import RunConfig, make_config
from privaudit.runs.own_files import make_parent
from privaudit.runs.run import load_run, runs_folder
from privaudit.runs.training import usual_name
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.roc import tpr_over_seeds
from privaudit_tools.costs.forecast import Cost, forecasts, require_secure_sums, total
from privaudit_tools.equal_utility.choosing import Choices, choose
from privaudit_tools.equal_utility.judging import Judged, judge
from privaudit_tools.equal_utility.outcomes import (
    AS,
    Question,
    RunRecord,
    perform,
    scores_of,
)
from privaudit_tools.equal_utility.plan import BenchmarkPlan
from privaudit_tools.equal_utility.submissions import SubmittedCard
from privaudit_tools.tables.schedule import expanded, require_places

Say = Callable[[str], None]
Model = TypeVar("Model", bound=BaseModel)
SEAL = ".seal.json"
SERVED = "benchmark.json"  # in a folder beside runs
ADDED = ("cards", "forecast", "beyond")  # to a result, by other commands


class Seal(BaseModel):
    """What was fixed before evaluation seeds were trained.

    Attributes:
        on: When the first run began.
        digest: Of the plan, its evaluation seeds among it.
        chosen_on: When the tuning seeds' choices were written; empty before.
    """

    model_config = ConfigDict(frozen=True)

    on: str
    digest: str
    evaluation_seeds: tuple[int, ...]
    chosen_on: str = ""
    choices: Choices | None = None


class BenchmarkResult(BaseModel):
    """What a benchmark's JSON holds: from it alone its page is made.

    Attributes:
        cards: Of runs from outside, verified when they were added.
        forecast: What the plan costs at most, where --check added it.
        beyond: Rows beyond their stability limit, where
            :mod:`privaudit_tools.benchmarks.benchmark_stability` looked.
    """

    model_config = ConfigDict(frozen=True)

    plan: BenchmarkPlan
    seal: Seal
    runs: list[RunRecord]
    tpr: dict[str, Estimate]
    cards: tuple[SubmittedCard, ...] = ()
    forecast: Cost | None = None
    beyond: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _check(self) -> "BenchmarkResult":
        plan, choices = self.plan, self.seal.choices
        if self.seal.digest != plan.digest:
            raise ValueError("the plan is not the one that was sealed")
        named = (*plan.tuning_seeds, *plan.evaluation_seeds)
        if others := {run.seed for run in self.runs}.difference(named):
            raise ValueError(
                f"the plan does not name the seeds {sorted(others)} of runs"
            )
        stops = choices and tuple(choice.rounds for choice in choices.stops)
        if choices is None or stops != plan.reference.stops:
            raise ValueError("not every stop of the curve was chosen for")
        if plan.untrained.label not in {choice.row for choice in choices.rows}:
            raise ValueError(f"nothing was chosen for {plan.untrained.label!r}")
        for choice in (*choices.stops, *choices.rows):
            for run in choice.of(self.runs, named):
                looked = {look.rounds for look in run.looks}
                if not looked or not {choice.after, choice.rounds} <= {0, *looked}:
                    raise ValueError(
                        f"a run of {run.row!r}, seed {run.seed}, lacks a look"
                    )
                if plan.utility not in run.at(choice.rounds).utility:
                    raise ValueError(
                        f"a run of {run.row!r}, seed {run.seed}, lacks its utility"
                    )
        return self

    @property
    def judged(self) -> Judged:
        """Where each row stands, from its runs on evaluation seeds."""
        assert self.seal.choices is not None  # it was evaluated
        return judge(self.plan, self.seal.choices, self.runs)


@dataclass(frozen=True)
class Entry:
    """A run to make, and what it is of."""

    row: str
    setting: str
    run: SweepRun
    question: Question


def read_result(path: Path) -> BenchmarkResult:
    """Return what a benchmark's JSON holds.

    Raises:
        MissingFileError: There is none.
        ConfigError: It is not what `privaudit benchmark` writes.
    """
    return _read(BenchmarkResult, path)


def _read(kind: type[Model], path: Path) -> Model:
    try:
        return kind.model_validate(read_json(path))
    except ValidationError as error:
        place, message = first_problem(list(error.errors()))
        said = ": ".join(filter(None, [".".join(map(str, place)), message]))
        raise ConfigError(
            f"{path} is not what `privaudit benchmark` writes ({said}). Move it away, or "
            "run the plan again."
        ) from None


def entries_of(plan: BenchmarkPlan, seeds: Iterable[int]) -> list[Entry]:
    """Return every setting's run with each seed, seed by seed; all of them valid.

    Variables, ~ and ``{seed}`` in run settings are expanded, as in plans of tables.

    Raises:
        ConfigError: A run cannot be configured, or a variable is not set.
        MissingFileError: A path is not there.
        UnknownNameError: The scenario does not make an attack that the plan names.
    """
    known = find_scenario(plan.scenario, plan.shadows).attacks
    for name in plan.attacks:
        if name.partition(AS)[0] not in known:
            raise UnknownNameError("attack", name, known)
    seeds = tuple(seeds)
    tables = [plan.fields, plan.reference.fields, *(one.fields for one in plan.methods)]
    texts = [field for table in tables for field in table.items()]
    places = (
        (name, text.replace("{seed}", str(seed)))
        for seed in seeds
        for name, text in texts
        if isinstance(text, str)
    )
    require_places(places, change="{} = … in the plan")
    return [
        entry
        for seed in seeds
        for entry in (
            _entry(plan, plan.reference.label, "", _reference(plan), seed),
            *(
                _entry(plan, method.label, name, cell, seed)
                for method in plan.methods
                for name, cell in method.cells(plan.fields)
            ),
        )
    ]


def _reference(plan: BenchmarkPlan) -> Cell:
    return plan.reference.cell(plan.fields)


def _entry(plan: BenchmarkPlan, row: str, setting: str, cell: Cell, seed: int) -> Entry:
    cell = replace(cell, fields=expanded(cell.fields, seed))
    config = cell.config(seed)
    run = SweepRun(
        f"{cell.label}, seed {seed}",
        cell.trainer,
        cell.settings,
        {**cell.fields, "seed": seed},
        config.short_hash,
        usual_name(config),
    )
    is_curve = row == plan.reference.label
    stops = (*plan.looks, *(plan.reference.stops if is_curve else ()))
    _require_measured(config, plan.reference.stops if is_curve else (), cell.label)
    question = Question(plan.scenario, plan.shadows, stops, attacks=plan.attacks)
    return Entry(row, setting, run, question)


def _require_measured(config: RunConfig, stops: Sequence[int], label: str) -> None:
    """Refuse a run that does not say what it is worth, or leaks, where it is stopped."""
    unmeasured = [n for n in (*stops, config.rounds) if not config.measures(n - 1)]
    if unmeasured:
        raise ConfigError(
            f"{label}: utility is needed after round {unmeasured[0]}, and is measured "
            f"after the last {config.measured_rounds} alone. Set measured_rounds = "
            "'none' in the plan's fields."
        )
    if config.is_masked and len(stops) > 1:
        raise ConfigError(
            f"{label}: the curve has the stops {list(stops)}, and masked sums are one view "
            "after the last round. Leave secure_aggregation out of the reference."
        )


def cost_of(plan: BenchmarkPlan, progress: Say) -> Cost:
    """Return what a plan costs at most: tuning of all settings, then one of each row.

    Which setting is chosen is not known, and counts as the row's costliest.
    ``progress`` is called with a line after each kind of run that is timed.
    """
    tuning = entries_of(plan, plan.tuning_seeds)
    runs = [entry.run for entry in tuning]
    configs = (make_config(run.trainer, run.settings, **run.fields) for run in runs)
    looks = [
        len(entry.question.rounds(config))
        for entry, config in zip(tuning, configs, strict=True)
    ]
    costs = forecasts(runs, plan.shadows, looks=looks, progress=progress)
    dearest: dict[str, Cost] = {}
    for entry, cost in zip(tuning, costs, strict=True):
        most = dearest.get(entry.row, cost)
        training = max(most.training, cost.training)
        dearest[entry.row] = Cost(1, training, max(most.attacks, cost.attacks))
    return total([*costs, *[*dearest.values()] * len(plan.evaluation_seeds)])


@warm_processes()
def run_benchmark(
    plan: BenchmarkPlan,
    stored: Path,
    *,
    folder: Path | None,
    executor: Executor,
    progress: Say,
) -> BenchmarkResult:
    """Tune, seal, evaluate, and write down what came of it.

    What was added to an earlier result of the plan stays: cards, forecast, limits.

    Args:
        plan: The task, its curve and its methods.
        stored: The JSON to write; the seal lies beside it.
        folder: Where runs are kept.
        executor: Where they are trained, each on one thread.
        progress: Called with a line after each run.

    Raises:
        ConfigError: Another plan was sealed there, a run cannot be configured, a protocol
            is not installed, or a run failed that the curve needs.
    """
    tuning = entries_of(plan, plan.tuning_seeds)
    evaluated = entries_of(plan, plan.evaluation_seeds)
    require_secure_sums([entry.run for entry in (*tuning, *evaluated)])
    earlier = read_result(stored) if stored.exists() else None  # or refuse it
    seal = _sealed(stored, plan)
    work = _Work(plan, runs_folder(folder), executor, progress)
    runs = work.perform(tuning)
    if seal.choices is None:
        seal = _with_choices(stored, seal, choose(plan, runs))
    chosen = _chosen(seal)
    runs += work.perform(
        [
            replace(e, question=replace(e.question, chosen=chosen[e.row, e.setting]))
            for e in evaluated
            if (e.row, e.setting) in chosen
        ]
    )
    rates = _tpr(plan, seal, runs, work.folder)
    result = BenchmarkResult.model_validate(
        {
            "plan": plan,
            "seal": seal,
            "runs": runs,
            "tpr": {row: rate.to_dict() for row, rate in rates.items()},
        }
    )
    if earlier and earlier.seal.digest == plan.digest:
        added = {name: getattr(earlier, name) for name in ADDED}
        result = result.model_copy(update=added)
    write_json(stored, result.model_dump(mode="json"))
    return result


def _chosen(seal: Seal) -> Mapping[tuple[str, str], tuple[tuple[int, str], ...]]:
    """Return the attacks that were chosen, and after how many rounds, by setting."""
    assert seal.choices is not None
    found: dict[tuple[str, str], tuple[tuple[int, str], ...]] = {}
    for one in (*seal.choices.stops, *seal.choices.rows):
        setting = one.row, one.setting
        found[setting] = (*found.get(setting, ()), (one.after, one.attack))
    return found


def seal_path(stored: Path) -> Path:
    """Return where a result's seal lies."""
    return stored.with_name(stored.stem + SEAL)


def _sealed(stored: Path, plan: BenchmarkPlan) -> Seal:
    """Return the seal that is there, or a new one, which is written."""
    path = seal_path(stored)
    make_parent(path)
    if path.exists():
        seal = _read(Seal, path)
        if seal.digest != plan.digest:
            raise ConfigError(
                f"{path} was sealed on {seal.on} for another plan, with the evaluation "
                f"seeds {list(seal.evaluation_seeds)}. Restore that plan, or name another "
                "--out and seeds that nobody has looked at."
            )
        return seal
    seal = Seal(on=_now(), digest=plan.digest, evaluation_seeds=plan.evaluation_seeds)
    write_json(path, seal.model_dump(mode="json"))
    return seal


def _with_choices(stored: Path, seal: Seal, choices: Choices) -> Seal:
    seal = seal.model_copy(update={"chosen_on": _now(), "choices": choices})
    write_json(seal_path(stored), seal.model_dump(mode="json"))
    return seal


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class _Work:
    """How a benchmark's runs are made."""

    plan: BenchmarkPlan
    folder: Path
    executor: Executor
    progress: Say

    def perform(self, entries: Sequence[Entry]) -> list[RunRecord]:
        """Return each entry's record, in their order."""
        by_label = {entry.run.label: entry for entry in entries}
        found: dict[str, RunRecord] = {}
        finished = perform_runs(
            perform,
            [(e.run, (e.row, e.setting, e.question)) for e in entries],
            self.folder,
            self.executor,
            "benchmark",
            self.plan.model_dump(mode="json"),
            failure=lambda record: record.error,
        )
        with use_threads(1), closing(finished):
            for one in finished:
                entry = by_label[one.job.name]
                found[one.job.name] = (
                    one.value if one.error is None else _failed(entry, one.error)
                )
                self._tell(len(found), len(entries), found[one.job.name])
        return [found[entry.run.label] for entry in entries]

    def _tell(self, done: int, total: int, record: RunRecord) -> None:
        where = ", ".join(filter(None, [record.row, record.setting]))
        self.progress(f"{done}/{total} {where}, seed {record.seed}: {_said(record)}")


def _failed(entry: Entry, error: BaseException) -> RunRecord:
    said = f"{type(error).__name__}: {error}"
    seed = entry.run.fields["seed"]
    return RunRecord(row=entry.row, setting=entry.setting, seed=seed, error=said)


def _said(record: RunRecord) -> str:
    if record.error:
        return f"failed: {record.error}"
    last = record.at(0)
    attack = max(last.leaks, key=lambda name: last.leaks[name], default="no attack")
    leak = f", {attack} {last.leaks[attack]:.3f}" if last.leaks else ""
    numbers = ", ".join(f"{n} {value:.3f}" for n, value in last.utility.items())
    return f"{numbers}{leak} ({record.seconds:.0f} s)"


def _tpr(
    plan: BenchmarkPlan, seal: Seal, runs: Sequence[RunRecord], folder: Path
) -> Mapping[str, Estimate]:
    """Return each row's true-positive rate at 1 %, of all evaluation seeds together."""
    assert seal.choices is not None
    found, chosen = {}, _chosen(seal)
    for choice in seal.choices.rows:
        question = Question(
            plan.scenario,
            plan.shadows,
            plan.looks,
            chosen[choice.row, choice.setting],
        )
        pairs = [
            (np.array(scores[0]), np.array(scores[1]))
            for one in choice.of(runs, plan.evaluation_seeds)
            if (
                scores := scores_of(
                    load_run(folder / one.run), question, choice.after, choice.attack
                )
            )
        ]
        if pairs:
            found[choice.row] = tpr_over_seeds(pairs)
    return found
