"""Executors of jobs: this process, several of this machine, or Ray, by a name (``--on``).

Ray, on a cluster or on all of this machine, schedules, retries what lost its node, and
shares out cores and GPUs. A job that is begun again goes on after the last round that
counts, where the folder of runs is one that all nodes see. What pictures are encoded to
lies in each node's own cache (PRIVAUDIT_CACHE), and not in Ray's object store: a node
encodes a data set once in all, however many jobs and sweeps, and no driver has to hold it.
"""

import gc
import json
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import chdir, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from privaudit.core.devices import chosen_device
from privaudit.core.errors import (
    ConfigError,
    LostWorkerError,
    PrivauditError,
    shown,
    without_exits,
)
from privaudit.core.formatting import install_line
from privaudit.core.lazy_torch import torch, when_imported
from privaudit.core.parameters import at_least_one
from privaudit.core.portable_bits import bits_here, portable_environment
from privaudit.execution.jobs import (
    Begun,
    Executor,
    Finished,
    Job,
    Result,
    computing_here,
    perform_there,
)
from privaudit.statistics.progress import Watcher

_PEAK_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes, as getrusage(2) says


def processes_that_fit() -> int | None:
    """Return how many processes as large as this one the memory holds, this one beside.

    None where the system does not say: Windows.
    """
    try:
        import resource  # which Windows has not
    except ModuleNotFoundError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _PEAK_UNIT
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(min([physical, *memory_limits()]) // peak) - 1


def memory_limits(
    groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> Iterator[int]:
    """Yield the limits of containers and batch systems on this process, in bytes.

    Source: Linux, "Control Group v2", memory.max; "Memory Resource Controller" (v1),
    memory.limit_in_bytes.

    Args:
        groups: The groups that this process is in; a limit above one counts, too.
        root: Where the groups are mounted; a container sees its own there.
    """
    with suppress(OSError):
        for line in groups.read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                yield from _up_from(root, group, "memory.max")
            elif "memory" in controllers.split(","):
                yield from _up_from(root / "memory", group, "memory.limit_in_bytes")


def _up_from(root: Path, group: str, name: str) -> Iterator[int]:
    inner = Path(group.strip("/"))
    for folder in (inner, *inner.parents):
        with suppress(OSError, ValueError):  # none there, or "max"
            yield int((root / folder / name).read_text())


WORTH = 8.0
"""Seconds that processes must save: each takes four or five to import what it needs."""


@dataclass(frozen=True)
class Local:
    """Runs jobs in processes of this machine.

    Attributes:
        processes: How many at a time, from 1 on; with 1 jobs run in this process. With
            None the first runs here, and the rest in as many as fit, if that saves time.

    Raises:
        ConfigError: There are fewer than 1.
    """

    processes: int | None = 1

    def __post_init__(self) -> None:
        if self.processes is not None:
            at_least_one("number of processes", self.processes)

    def run(
        self,
        jobs: Sequence[Job[Result]],
        *,
        watcher: Watcher | None = None,
        begun: Begun | None = None,
    ) -> Generator[Finished[Result]]:
        """Yield each job as it finishes, as :class:`Executor` says."""
        waiting, seconds = deque(jobs), 0.0
        while waiting and (count := self._count(len(waiting), seconds)) == 1:
            job, started = waiting.popleft(), time.monotonic()
            if begun:
                begun(job)
            yield _perform_here(job, watcher)
            seconds = time.monotonic() - started
        if waiting:
            yield from _in_processes(waiting, count, begun)

    def _count(self, left: int, seconds: float) -> int:
        """Return how many processes take what is left, of so many seconds each."""
        if self.processes is not None:
            return min(self.processes, left)
        count, pool = min(left, _that_fit()), _WARM.get()
        is_warm = pool is not None and len(pool.idle) >= count
        return count if is_warm or seconds * left * (1 - 1 / count) > WORTH else 1


HERE = Local()
"""In this process, one job after the other."""


def _that_fit() -> int:
    """Return how many processes this machine has cores and memory for.

    Each takes as many threads as this one, and perhaps as much memory as this one did.
    Nobody knows how much of a GPU's memory a job takes, so there it is one; and so it is
    where the system does not say how much memory there is.
    """
    if chosen_device().type != "cpu":
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    cores = cores or os.cpu_count() or 1
    return max(1, min(cores // torch.get_num_threads(), processes_that_fit() or 1))


def _perform_here(job: Job[Result], watcher: Watcher | None) -> Finished[Result]:
    try:
        with without_exits():
            return Finished(job, job.perform(*job.arguments, watcher=watcher))
    except PrivauditError as error:
        return Finished(job, error=error)


def _in_processes(
    waiting: deque[Job[Result]], count: int, begun: Begun | None
) -> Generator[Finished[Result]]:
    """Yield each job as it finishes in one of several processes."""
    computing = computing_here(count)
    running: dict[Future[Result], tuple[Job[Result], ProcessPoolExecutor]] = {}
    with _processes() as pool:
        idle = [pool.start() for _ in range(count)]
        while waiting or running:
            while waiting and idle:
                job, process = waiting.popleft(), idle.pop()
                if begun:
                    begun(job)
                try:
                    future = process.submit(perform_there, computing, job)
                except (BrokenProcessPool, EOFError):  # it, or who forks, was killed
                    process = pool.start()
                    future = process.submit(perform_there, computing, job)
                running[future] = job, process
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job, process = running.pop(future)
                finished = _process_finished(job, future)
                is_lost = isinstance(finished.error, LostWorkerError)
                idle.append(pool.start() if is_lost else process)
                yield finished
        pool.idle.extend(idle)


def _process_finished(job: Job[Result], future: "Future[Result]") -> Finished[Result]:
    try:
        return Finished(job, future.result())
    except BrokenProcessPool:
        lost = LostWorkerError(
            f"The process of {job.name} was killed, perhaps for want of memory, or "
            "other people's code ended it. Finished rounds are kept: run the same "
            "command again, with fewer processes (--on local:1)."
        )
        return Finished(job, error=lost)
    except PrivauditError as error:
        return Finished(job, error=error)


class _Pool:
    """Processes that are started one by one, when they are first needed.

    Each is a pool of its own, so that one that is killed takes no other's job with it. A
    run that is cut off loses the round it is in, no more.
    """

    def __init__(self) -> None:
        self.before = set(multiprocessing.active_children())
        self.started = list[ProcessPoolExecutor]()
        self.idle = list[ProcessPoolExecutor]()

    def start(self) -> ProcessPoolExecutor:
        """Return a process without a job."""
        if self.idle:
            return self.idle.pop()
        context = multiprocessing.get_context(_METHOD.get())
        process = ProcessPoolExecutor(1, context, initializer=_prepare_worker)
        self.started.append(process)
        return process

    def end(self, *, at_once: bool = False) -> None:
        """End all processes, or let them end their jobs first."""
        for worker in multiprocessing.active_children() if at_once else ():
            if worker not in self.before:
                worker.terminate()
        for process in self.started:
            process.shutdown(cancel_futures=True)
        self.started, self.idle = [], []


_WARM: ContextVar[_Pool | None] = ContextVar("warm", default=None)
_METHOD: ContextVar[str] = ContextVar("how workers start", default="spawn")


def fork_workers(modules: Sequence[str]) -> None:
    """Let workers be forked from a server, which begins to import modules at once.

    A fork of a process whose threads have computed may wait for them forever: the server
    only imports. Workers are spawned where nothing is won, on one core or with torch
    imported here; and on other systems than Linux, whose libraries may not stand a fork.
    """
    if sys.platform == "linux" and "torch" not in sys.modules and os.cpu_count() != 1:
        multiprocessing.get_context("forkserver").set_forkserver_preload([*modules])
        taken = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server inherits it
        forkserver.ensure_running()
        signal.signal(signal.SIGINT, taken)
        _METHOD.set("forkserver")


@contextmanager
def warm_processes() -> Iterator[None]:
    """Let all jobs within have the same processes, which start once."""
    pool = _Pool()
    before = _WARM.set(pool)
    try:
        yield
    finally:
        _WARM.reset(before)
        pool.end()


@contextmanager
def _processes() -> Iterator[_Pool]:
    """Let processes be started; whatever ends the work, Ctrl-C too, ends them."""
    pool = _WARM.get() or _Pool()
    try:
        yield pool
    except BaseException:
        pool.end(at_once=True)
        raise
    if _WARM.get() is not pool:
        pool.end()


def _prepare_worker() -> None:
    """Let Ctrl-C end a worker at once and in silence: who handed out says what to do.

    A driver that is killed cannot end its workers, so they end when it has.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    when_imported(gc.freeze)  # as in the driver: torch is searched for garbage no more
    threading.Thread(target=_end_with_driver, daemon=True).start()


def _end_with_driver() -> None:
    driver = multiprocessing.parent_process()
    if driver is not None:
        driver.join()
        os._exit(1)


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
        handed_on = {"OMP_NUM_THREADS": str(threads)}
        if bits_here() == "portable":
            handed_on = portable_environment(handed_on)
        return {
            "num_cpus": threads,
            "num_gpus": self.gpus if chosen_device().type == "cuda" else 0,
            "max_retries": RETRIES,
            "retry_exceptions": False,
            "runtime_env": {"env_vars": handed_on},
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


@contextmanager
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
    for resource in ("CPU", "GPU"):
        wanted = options[f"num_{resource.lower()}s"]
        most = max((node.get(resource, 0) for node in nodes), default=0)
        if most < wanted:
            raise ConfigError(
                f"Each job takes {wanted:g} {resource} on Ray, as this process has "
                f"threads and a device, and no node has more than {most:g}. Set "
                "OMP_NUM_THREADS to the cores of a node, or --device cpu."
            )


def _perform_on_node(computing: str, folder: str, job: Job[Result]) -> Result:
    """Do a job on a node, in the driver's folder where the node has it."""
    with chdir(folder) if Path(folder).is_dir() else nullcontext():
        return perform_there(computing, job)


def _task_finished(ray: Any, job: Job[Result], done: Any) -> Finished[Result]:
    try:
        return Finished(job, ray.get(done))
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, PrivauditError):
            return Finished(job, error=error.cause)
        raise
    except ray.exceptions.RayError as error:
        lost = LostWorkerError(
            f"Ray lost {job.name} {RETRIES + 1} times ({type(error).__name__}), "
            "perhaps for want of memory. Finished rounds are kept: run the same "
            "command again."
        )
        return Finished(job, error=lost)


PLACES = "local, local:N, ray or ray://HOST:10001; behind ray perhaps ,gpus=0.5"
_NAMED = re.compile(
    r"local(?::(?P<processes>[1-9][0-9]{0,3}))?"
    r"|(?P<ray>ray(?:://[\w.\-\[\]:]+)?)"
    r"(?:,gpus=(?P<gpus>0?\.[0-9]{1,4}|1(?:\.0{1,4})?))?"
)


def find_executor(name: str = "local") -> Executor:
    """Return who runs jobs where a name says.

    Args:
        name: "local": in as many processes of this machine as pay off; "local:4": in
            four; "ray": on the cluster that RAY_ADDRESS names, or all of this machine;
            "ray://HOST:10001": on that cluster; "ray,gpus=0.5": two jobs to a GPU.

    Example:
        >>> find_executor("local:2")
        Local(processes=2)
    """
    found = _NAMED.fullmatch(name)
    gpus = float(found["gpus"] or SHARE) if found else 0.0
    if found is None or not gpus:
        raise ConfigError(
            f"--on {shown(name)} names no place to run jobs. Use {PLACES}."
        )
    if found["ray"]:
        return OnRay(found["ray"] if "//" in found["ray"] else None, gpus)
    return Local(int(found["processes"]) if found["processes"] else None)
