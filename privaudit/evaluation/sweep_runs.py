"""Runs of a sweep: settings with seeds, trained here or on Ray, and measured.

``tradeoff``, the papers' tables in ``tools/`` and whoever else sweeps share this. A run is made
once: the folder of runs has it, so that a sweep that was stopped goes on where it stopped,
and sweep.json says how far it is.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from privaudit.auditing.attack import Attack
from privaudit.auditing.named_attacks import refuse_all_members
from privaudit.auditing.scenario import Scenario
from privaudit.execution.jobs import Begun, Executor, Finished, Job
from privaudit.execution.sweeps import SweepFile, run_jobs
from privaudit.runs.config import RunConfig
from privaudit.runs.run import Run, shared_place
from privaudit.runs.training import train
from privaudit.statistics.progress import Watcher

Result = TypeVar("Result")


@dataclass(frozen=True)
class SweepRun:
    """A setting with a seed, before it is trained.

    Attributes:
        label: In errors and progress; no two runs of a sweep share one.
        fields: Of the configuration, the seed among them.
    """

    label: str
    trainer: str
    settings: Mapping[str, Any]
    fields: Mapping[str, Any]
    short_hash: str
    run: str

    def train(self, folder: str | Path | None, watcher: Watcher | None = None) -> Run:
        """Train the run, go on with it, or take it as it is."""
        return train(
            self.trainer,
            folder=folder,
            resume=True,
            settings=self.settings,
            watcher=watcher,
            **self.fields,
        )


def perform_runs(
    perform: Callable[..., Result],
    runs: Sequence[tuple[SweepRun, tuple[Any, ...]]],
    folder: Path,
    executor: Executor,
    kind: str,
    plan: Mapping[str, Any],
    *,
    watcher: Watcher | None = None,
    begun: Begun | None = None,
    failure: Callable[[Result], str] | None = None,
) -> Generator[Finished[Result]]:
    """Yield what comes of each run as it finishes, and write down how far all are.

    Args:
        perform: A function of a module, which trains a run and measures it. Takes the
            run, what stands beside it, the folder of runs, and ``watcher``.
        runs: Each with what else ``perform`` takes.
        folder: Where runs are kept.
        executor: Where they are trained.
        kind: "tradeoff" or "table".
        plan: As JSON knows it; its digest names the sweep.
        watcher: Of what runs tell that are trained in this process.
        begun: Called with a job as it begins, where that is known.
        failure: Says why a result is a failure; empty where it is none.
    """
    shared = shared_place(folder)
    jobs = [
        Job(run.label, perform, (run, *more, shared), run.run) for run, more in runs
    ]
    file = SweepFile.begin(folder, kind, plan, jobs)
    return run_jobs(executor, jobs, file, watcher=watcher, begun=begun, failure=failure)


def readable_attacks(config: RunConfig, scenario: Scenario) -> Mapping[str, Attack]:
    """Return the attacks that can be made on a run, before it is trained.

    Raises:
        ConfigError: All its candidates are members, so there is nothing to attack.
    """
    refuse_all_members(config)
    apt = scenario.for_task(config.task).that_apply(config.build_trainer(), None)
    return apt.attacks
