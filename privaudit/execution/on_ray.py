"""Jobs on Ray: on a cluster, or on all of this machine.

Ray schedules, retries what lost its node, and shares out cores and GPUs. A job that is
begun again goes on after the last round that counts, where the folder of runs is one
that all nodes see. What pictures are encoded to lies in each node's own cache
(PRIVAUDIT_CACHE), and not in Ray's object store: a node encodes a data set once in all,
however many jobs and sweeps, and no driver has to hold it.
"""

import contextlib
import json
import os
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from privaudit.core.devices import chosen_device
from privaudit.core.errors import ConfigError, LostWorkerError, PrivauditError
from privaudit.core.formatting import install_line
from privaudit.execution.computing import computing_here
from privaudit.execution.jobs import Begun, Finished, Job, Result, perform_there
from privaudit.statistics.progress import Watcher

RETRIES = 3  # of a job that lost its node
SHARE = 0.25  # of a GPU


@dataclass(frozen=True)
class OnRay:
    """Runs jobs as tasks of Ray.

    Attributes:
        address: Of a cluster, as ray://HOST:10001; None is the cluster that this
            process or RAY_ADDRESS is connected to, or else this machine.
        gpus: Share of a GPU for each job, above 0, where the device is CUDA.
    """

    address: str | None = None
    gpus: float = SHARE

    def run(
        self,
        jobs: Sequence[Job[Result]],
        *,
        watcher: Watcher | None = None,
        begun: Begun | None = None,
    ) -> Generator[Finished[Result]]:
        """Yield each job as it finishes, as :class:`Executor` says.

        Raises:
            ConfigError: Ray is not installed, there is no such cluster, or no node of
                it has as many cores as this process has threads.
        """
        ray = _ray()
        with _connected(ray, self.address):
            computing, options = self._computing(), self._options()
            _check_nodes(ray, options)
            task = ray.remote(_perform_on_node)
            here = str(Path.cwd())
            waiting = {
                task.options(name=job.name, **options).remote(computing, here, job): job
                for job in jobs
            }
            try:
                while waiting:
                    (done,), _ = ray.wait(list(waiting), num_returns=1)
                    yield _task_finished(ray, waiting.pop(done), done)
            finally:
                for left in waiting:
                    ray.cancel(left, force=True)

    def _computing(self) -> str:
        """Return how to compute: the share of a GPU is the only one that a job sees."""
        if chosen_device().type != "cuda":
            return computing_here()
        _, *rest = json.loads(computing_here(max(1, round(1 / self.gpus))))
        return json.dumps(["cuda:0", *rest])

    def _options(self) -> dict[str, Any]:
        """Return what a task asks for: as many cores as it computes with."""
        threads = torch.get_num_threads()
        return {
            "num_cpus": threads,
            "num_gpus": self.gpus if chosen_device().type == "cuda" else 0,
            "max_retries": RETRIES,
            "retry_exceptions": False,
            "runtime_env": {"env_vars": {"OMP_NUM_THREADS": str(threads)}},
        }


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent home
    try:
        import ray
    except ModuleNotFoundError:
        raise ConfigError(
            "--on ray needs Ray, which is not installed. Install it with "
            f"`{install_line('ray')}`, or use --on local."
        ) from None
    return ray


@contextlib.contextmanager
def _connected(ray: Any, address: str | None) -> Iterator[None]:
    """Connect to a cluster, and leave it again; one that is connected to is kept."""
    if ray.is_initialized():
        yield
        return
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"Ray at {address or 'this machine'} was requested, and there is no "
            f"connection: {error}. Start it with `ray start`, or use --on local."
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def _check_nodes(ray: Any, options: dict[str, Any]) -> None:
    """Refuse what no node could run: Ray would wait for such a node forever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for resource, wanted in (
        ("CPU", options["num_cpus"]),
        ("GPU", options["num_gpus"]),
    ):
        most = max((node.get(resource, 0) for node in nodes), default=0)
        if most < wanted:
            raise ConfigError(
                f"Each job takes {wanted:g} {resource} on Ray, as this process has "
                f"threads and a device, and no node has more than {most:g}. Set "
                "OMP_NUM_THREADS to the cores of a node, or --device cpu."
            )


def _perform_on_node(computing: str, folder: str, job: Job[Result]) -> Result:
    """Do a job on a node, in the driver's folder where the node has it."""
    where = contextlib.chdir(folder) if Path(folder).is_dir() else None
    with where or contextlib.nullcontext():
        return perform_there(computing, job)


def _task_finished(ray: Any, job: Job[Result], done: Any) -> Finished[Result]:
    try:
        return Finished(job, ray.get(done))
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, PrivauditError):
            return Finished(job, error=error.cause)
        raise
    except ray.exceptions.RayError as error:
        return Finished(
            job,
            error=LostWorkerError(
                f"Ray lost {job.name} {RETRIES + 1} times ({type(error).__name__}), "
                "perhaps for want of memory. Finished rounds are kept: run the same "
                "command again."
            ),
        )
