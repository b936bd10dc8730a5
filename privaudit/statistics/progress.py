"""Events that are reported while a command works.

Every event is a record of plain numbers, and ``to_dict`` is its line of JSON: the key
``event`` names its kind, and the other keys are its fields.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from privaudit.core.context import set_within
from privaudit.core.seeds import Randomness
from privaudit.statistics.estimate import Estimate


class _Event:
    event: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """Return the event as JSON knows it."""
        fields = {
            name: value.to_dict() if isinstance(value, Estimate) else value
            for name, value in vars(self).items()
        }
        return {"event": self.event, **fields}


@dataclass(frozen=True)
class RoundDone(_Event):
    """A round of training counts: it is on disk, and a kill loses nothing of it.

    Attributes:
        loss: The mean over clients of their last training losses.
        utility: As last measured, on clients' own classes; None if it was not yet.
            Watching measures nothing: runs do, as ``measured_rounds`` says.
        utility_round: After how many rounds that was.
        bytes_up: Sent to the server in all rounds so far.
        bytes_down: Sent by the server in all rounds so far.
        epsilon: What is certified in each view after ``epsilon_round`` rounds; None
            where nothing is proved.
        epsilon_round: After how many rounds the certificates were last asked for. That
            is after the last round, and before it as often as accounting takes at most
            1 % of the time.
        randomness: Where the noise comes from: with "seed", epsilon is what a run with
            a secret key would have.
    """

    event: ClassVar[str] = "round"

    run: str
    done: int
    total: int
    loss: float
    utility: Estimate | None
    utility_round: int | None
    bytes_up: int
    bytes_down: int
    epsilon: Mapping[str, float | None]
    delta: float
    epsilon_round: int
    randomness: Randomness = "seed"


@dataclass(frozen=True)
class Phase(_Event):
    """Something begins, or has come as far as that.

    Attributes:
        run: The run's name, or what is swept or claimed.
        phase: "encode" of pictures if it takes long, "wait" for an owner of the run
            that is perhaps gone, "reconstruct" of clients' models,
            "shadows" that are trained, "attack" whose scores are made, "cell" of a
            sweep, "claim" whose runs are trained, "check" of a selftest.
        detail: How far the present one is, in words.
    """

    event: ClassVar[str] = "phase"

    run: str
    phase: Literal[
        "encode", "wait", "reconstruct", "shadows", "attack", "cell", "claim", "check"
    ]
    what: str
    done: int
    total: int
    detail: str = ""


def cell_name(cell: str, epsilon: float | None, seed: int) -> str:
    """Return what a run of a sweep is called: no two cells share a name."""
    budget = "none" if epsilon is None else f"{epsilon:g}"
    if epsilon is not None and float(budget) != epsilon:
        budget = repr(epsilon)
    return f"{cell}, epsilon {budget}, seed {seed}"


@dataclass(frozen=True)
class CellDone(_Event):
    """One run of a sweep is trained and attacked.

    Attributes:
        cell: The cell's name, without its budget.
        total: Runs in all, as far as is known.
        utility: Of this run alone, on clients' own classes.
        seconds_left: For the runs that remain, if they take as long as these did.
    """

    event: ClassVar[str] = "cell"

    cell: str
    epsilon: float | None
    seed: int
    done: int
    total: int
    metric: str
    utility: Estimate
    auroc: Estimate
    seconds_left: float

    @property
    def name(self) -> str:
        """The cell with its budget and its seed."""
        return cell_name(self.cell, self.epsilon, self.seed)


@dataclass(frozen=True)
class Result:
    """What came of a command, or of one of its runs.

    Attributes:
        essential: For ``--quiet``: one line or more.
    """

    event: ClassVar[str] = "result"

    essential: str
    contents: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the event as JSON knows it."""
        return {"event": self.event, **self.contents}


Event = RoundDone | Phase | CellDone


@runtime_checkable
class Watcher(Protocol):
    """Any function of an event. What it raises ends the work; nothing done is lost."""

    def __call__(self, event: Event, /) -> None:
        """Take notice."""


_watching: ContextVar[tuple[str, Watcher] | None] = ContextVar("watching", default=None)


@contextmanager
def watching(run: str, watcher: Watcher | None) -> Iterator[None]:
    """Let a watcher of a run know of what is computed on its behalf meanwhile.

    Frozen models encode pictures far below what knows of a watcher, as they compute on
    a device that is chosen far above.
    """
    with set_within(_watching, None if watcher is None else (run, watcher)):
        yield


def naming(run: str, watcher: Watcher) -> Watcher:
    """Return a watcher of phases that says which run they are of."""

    def name(event: Event) -> None:
        watcher(replace(event, run=run) if isinstance(event, Phase) else event)

    return name


def tell(phase: Phase) -> None:
    """Tell whoever is :func:`watching`, in the name of the run."""
    if (watched := _watching.get()) is not None:
        run, watcher = watched
        watcher(replace(phase, run=run))
