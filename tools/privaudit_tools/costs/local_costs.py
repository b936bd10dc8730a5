"""What one round takes of one client: operations, memory, numbers learned.

Run as a program, it prints them for a run, and computes as its options say: the memory
is then that of a process that did nothing else.
"""

import json
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from privaudit.core.errors import ConfigError
from privaudit.core.operations import count_operations
from privaudit.core.tensors import Stacked
from privaudit.execution.jobs import computing_as
from privaudit.federation.rounds import Federation, run_round
from privaudit.runs.run import Run, load_run
from privaudit.tuning.optimiser import Optimiser

KILOBYTES = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss


@dataclass(frozen=True)
class LocalCosts:
    """What one client's round takes.

    Attributes:
        client: The one with the most records.
        records: That it trains on.
        flops: Floating-point operations of matrix products, convolutions and
            attention, forwards and backwards; others are not counted, nor an LSTM's.
        peak_bytes: Most resident memory while a process trains the client for one
            round, with libraries, model and the encoded records.
        idle_bytes: Resident memory before it trains.
        learned: Numbers that the run's first round trains: of what is sent, and of what
            is kept. pFedMoAP's gate has no experts yet, and is not among them.
    """

    client: str
    records: int
    flops: int
    peak_bytes: int
    idle_bytes: int
    learned: int


def measure_round(run: Run) -> LocalCosts:
    """Train one client alone for the run's first round, and count.

    Args:
        run: Its configuration counts, and its ledger.
    """
    population, trainer, seeds = run.population, run.trainer, run.config.seeds
    members = {
        client: run.ledger.members_of(number)
        for number, client in enumerate(population.task.clients)
    }
    client = max(members, key=lambda name: len(members[name]))
    shard = population.pick(members[client])
    federation = Federation.begin(trainer, population.task, {client: shard}, seeds)
    learned: dict[str, int] = {}
    step = Optimiser.step

    def counted(
        self: Optimiser, parameters: Stacked, gradients: Stacked, *rest: Any
    ) -> Any:
        learned.update({name: parameters[name].numel() for name in gradients})
        return step(self, parameters, gradients, *rest)

    idle = _forget_peak()
    with patch.object(Optimiser, "step", counted):
        flops = count_operations(
            lambda: run_round(trainer, population.task, [federation], 0)
        )
    return LocalCosts(
        client=client,
        records=len(shard),
        flops=flops,
        peak_bytes=_peak(),
        idle_bytes=idle,
        learned=sum(learned.values()),
    )


def _forget_peak() -> int:
    """Let the peak begin anew, where the system can, and return what it is now."""
    with suppress(OSError):  # the peak is then that of loading too: never too low
        Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    """Return the most memory that was resident since the peak last began."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        try:
            import resource  # which Windows has not
        except ModuleNotFoundError:
            raise ConfigError(
                "The memory of a round was to be measured, and this system does not say "
                "what a process took. Measure costs on Linux or macOS."
            ) from None
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KILOBYTES
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(kilobytes) * 1024


if __name__ == "__main__":
    path = Path(sys.argv[1])
    with computing_as(sys.argv[2]):
        print(json.dumps(vars(measure_round(load_run(path.name, folder=path.parent)))))
