"""What a sweep will cost, before it runs: rounds x clients x a timed step."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from privaudit.core.formatting import write_time
from privaudit.evaluation.sweep_runs import SweepRun
from privaudit.execution.jobs import use_threads
from privaudit.federation.trainer import remembers_steps, start_client
from privaudit.runs.config import make_config
from privaudit.runs.run import Run
from privaudit.runs.training import train

_TIMED = 2  # rounds, of which the later is timed: the first encodes and compiles


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
        return (
            f"{self.runs} runs, at most {both} on one core "
            f"({write_time(self.training)} of training)"
        )


def forecast(runs: Sequence[SweepRun], shadows: int, looks: int = 1) -> Cost:
    """Return what runs will cost, from one timed round of each setting of a seed.

    What is finished already counts as if it were not.

    Args:
        runs: Of a sweep.
        shadows: Models for each client of a run; those of clients without a state
            replay one round, and others all.
        looks: How often a run is attacked.

    Raises:
        PrivauditError: A run cannot be trained.
    """
    timed: dict[str, tuple[float, bool]] = {}
    training = attacks = 0.0
    with tempfile.TemporaryDirectory() as folder, use_threads(1):
        for run in runs:
            key = _key(run)
            if key not in timed:
                timed[key] = _timed(run, folder)
            seconds, replayed = timed[key]
            rounds = make_config(run.trainer, run.settings, **run.fields).rounds
            training += rounds * seconds
            attacks += looks * shadows * (rounds if replayed else 1) * seconds
    return Cost(len(runs), training, attacks)


def _key(run: SweepRun) -> str:
    """Return what a round's time depends on: all but seed and number of rounds."""
    left_out = ("seed", "rounds")
    fields = {name: v for name, v in run.fields.items() if name not in left_out}
    return repr((run.trainer, sorted(run.settings.items()), sorted(fields.items())))


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
