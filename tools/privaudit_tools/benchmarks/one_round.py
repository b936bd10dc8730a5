"""One round of many clients in a process of its own, for the bench of growth.

``python -m privaudit_tools.benchmarks.one_round JSON`` prints JSON: what a round took and held.
A process of its own has a peak of memory of its own, and no type checks of the tests.
"""

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import numpy as np
import torch

from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Tensors
from privaudit.federation.rounds import Federation, run_round
from privaudit.federation.trainer import Records, Task, Trainer
from privaudit.runs.config import make_config
from privaudit.runs.population import populate
from privaudit_tools.benchmarks.measuring import timed

SHARDS = 100  # different ones; more clients than that share them


@dataclass(frozen=True)
class Asked:
    """What to measure.

    Attributes:
        trainer: Its name.
        settings: Its parameters that differ from their defaults.
        clients: How many there are.
        participants: How many take part in a round.
        records: Of each client.
        rounds: How often a round is timed.
        all_at_first: Whether all take part in the round before those, so that all have
            what only participants get.
    """

    trainer: str
    settings: dict[str, Any]
    clients: int
    participants: int
    records: int = 27
    rounds: int = 3
    all_at_first: bool = False


@dataclass(frozen=True)
class Measured:
    """What was measured.

    Attributes:
        seconds: Of each timed round, a participant.
        held: MiB of the private states and the server's.
        before: MiB of the process before its first round.
        peak: MiB of the process at its largest, after its last round.
    """

    seconds: list[float]
    held: float
    before: float
    peak: float


def measure(asked: Asked) -> Measured:
    """Run the rounds."""
    torch.set_num_threads(1)
    config = make_config(asked.trainer, asked.settings, rounds=100)
    trainer, population = config.build_trainer(), populate(config)
    shards = split(population.records, asked)
    sizes = dict.fromkeys(shards, 2 * asked.records)
    task = replace(population.task, candidates=sizes)
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    before = _resident()
    share = asked.participants / asked.clients
    if asked.all_at_first:
        run_round(_brief(trainer), task, [federation], 0)
    _round(trainer, task, federation, 1, share)  # sets up memory
    seconds = [
        timed(partial(_round, trainer, task, federation, index, share)).seconds
        for index in range(2, 2 + asked.rounds)
    ]
    held = _size([federation.server, *federation.kept.values()])
    peak = getrusage(RUSAGE_SELF).ru_maxrss / 2**10
    return Measured([s / asked.participants for s in seconds], held, before, peak)


def split(records: Records, asked: Asked) -> dict[str, Records]:
    """Draw shards of equal size, with replacement: there are few digits."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(records), size=(SHARDS, asked.records))
    shards = [records.pick(torch.from_numpy(chosen)) for chosen in drawn]
    return {f"client-{n}": shards[n % SHARDS] for n in range(asked.clients)}


def _round(
    trainer: Trainer, task: Task, federation: Federation, index: int, share: float
) -> None:
    run_round(trainer, task, [federation], index, participation=share)


def _brief(trainer: Any) -> Trainer:
    """Return a trainer that trains for one epoch: that a round was is what counts."""
    return replace(trainer, epochs=1) if hasattr(trainer, "epochs") else trainer


def _size(parts: Iterable[Tensors]) -> float:
    """Return MiB of tensors, those that share memory counted once."""
    storages = [t.untyped_storage() for part in parts for t in part.values()]
    distinct = {storage.data_ptr(): storage.nbytes() for storage in storages}
    return sum(distinct.values()) / 2**20


def _resident() -> float:
    """Return MiB of the process now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 2**10
    raise RuntimeError("/proc/self/status has no VmRSS")


if __name__ == "__main__":
    print(json.dumps(asdict(measure(Asked(**json.loads(sys.argv[1]))))))
