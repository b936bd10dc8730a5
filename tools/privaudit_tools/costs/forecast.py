"""What a sweep will cost, before it runs: rounds x clients x a timed step."""

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from privaudit.core.formatting import write_time
from privaudit.evaluation.sweep_runs import SweepRun
from privaudit.execution.jobs import use_threads
from privaudit.federation.masked_sum import SECURE_SUMS
from privaudit.federation.trainer import remembers_steps, start_client
from privaudit.runs.config import make_config
from privaudit.runs.run import Run
from privaudit.runs.training import train

_TIMED = 2  # rounds, of which the later is timed: the first encodes and compiles
# Not of a round's time: how many there are, and numbers that a round multiplies by.
# Whether there is one counts: a noiseless round may clip no record apart.
_FREE = {"seed", "rounds", "epsilon", "delta", "clip_norm", "mu", "momentum"}


@dataclass(frozen=True)
class Cost:
    """Seconds of one core or device, counted as at most.

    Attributes:
        training: Rounds times clients times a client's timed round.
        attacks: The same of shadow models, as if none were stacked.
    """

    runs: int
    training: float
    attacks: float

    @property
    def seconds(self) -> float:
        """Of training and attacks together."""
        return self.training + self.attacks

    def __str__(self) -> str:
        both = write_time(self.seconds)
        return f"at most {both} on one core, {write_time(self.training)} to train"


def forecast(
    runs: Sequence[SweepRun],
    shadows: int = 0,
    attacked: int | Literal["all"] = "all",
    progress: Callable[[str], None] = lambda line: None,
) -> Cost:
    """Return what runs will cost together, each attacked once: see :func:`forecasts`."""
    return total(forecasts(runs, shadows, attacked, progress=progress))


def total(costs: Sequence[Cost]) -> Cost:
    """Return the sum of costs."""
    training, attacks = (
        [one.training for one in costs],
        [one.attacks for one in costs],
    )
    runs = sum(one.runs for one in costs)
    return Cost(runs, math.fsum(training), math.fsum(attacks))


def forecasts(
    runs: Sequence[SweepRun],
    shadows: int = 0,
    attacked: int | Literal["all"] = "all",
    looks: Sequence[int] = (),
    progress: Callable[[str], None] = lambda line: None,
) -> list[Cost]:
    """Return what each run will cost, from one timed round of each kind of them.

    Runs that are finished already count as if they were not.

    Args:
        runs: All that a sweep trains, the finished ones too.
        shadows: Models for each attacked client; those of clients without a state
            replay one round, and others all.
        attacked: How many of a run's clients get shadow models.
        looks: How often each run is attacked; once by default.
        progress: Called with a line after each kind.

    Raises:
        PrivauditError: A run cannot be trained.
    """
    require_secure_sums(runs)
    kinds: dict[str, SweepRun] = {}
    for run in runs:
        kinds.setdefault(_key(run), run)
    timed: dict[str, tuple[float, bool]] = {}
    with tempfile.TemporaryDirectory() as folder, use_threads(1):
        for number, (key, run) in enumerate(kinds.items(), 1):
            timed[key] = _timed(run, folder)
            round_ = write_time(timed[key][0])
            progress(f"{number}/{len(kinds)} timed: {run.label}, {round_} a round")
    costs = []
    for run, times in zip(runs, looks or [1] * len(runs), strict=True):
        seconds, replayed = timed[_key(run)]
        config = make_config(run.trainer, run.settings, **run.fields)
        clients = config.clients if attacked == "all" else attacked
        share = min(clients / config.clients, 1.0)
        replays = times * shadows * share * (config.rounds if replayed else 1)
        costs.append(Cost(1, config.rounds * seconds, replays * seconds))
    return costs


def require_secure_sums(runs: Sequence[SweepRun]) -> None:
    """Refuse runs, before any is trained, of which one's protocol is not installed.

    Raises:
        UnknownNameError: It is not; the text says where it stands.
    """
    for run in runs:
        config = make_config(run.trainer, run.settings, **run.fields)
        if config.is_masked:
            SECURE_SUMS.find(config.secure_aggregation)


def _key(run: SweepRun) -> str:
    """Return what a round's time depends on: of a free number, whether it is None."""
    config = make_config(run.trainer, run.settings, **run.fields)
    named = {**config.settings, **run.fields}
    kept = {n: v is None if _is_free(n) else v for n, v in named.items()}
    return repr((run.trainer, sorted(kept.items())))


def _is_free(name: str) -> bool:
    return name in _FREE or name.startswith("learning_rate")


def _timed(run: SweepRun, folder: str) -> tuple[float, bool]:
    """Return a round's seconds for all clients, and whether shadows replay them all."""
    fields = {**run.fields, "rounds": _TIMED}
    done = train(
        run.trainer, folder=folder, settings=run.settings, resume=True, **fields
    )
    seconds = float(done.metrics[-1].get("seconds", 0.0))
    return seconds, _keeps_state(done)


def _keeps_state(run: Run) -> bool:
    task, seeds = run.population.task, run.config.seeds
    if remembers_steps(run.trainer):
        return True
    return bool(start_client(run.trainer, task, task.clients[0], seeds))
