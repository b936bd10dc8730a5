"""What a check is: a figure with an interval, and where the truth must lie."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Shaped

from privaudit.core.seeds import Seeds
from privaudit.execution.executors import HERE
from privaudit.execution.jobs import Executor, Job, results_of
from privaudit.statistics.estimate import Estimate, proportion
from privaudit.statistics.progress import Watcher

CONFIDENCE = 0.999  # about 50 checks: so few sound ones fail that a failure means much

Measure = Callable[[np.random.Generator], Estimate]
Trial = Callable[[np.random.Generator], bool]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class SelftestCheck:
    """Something that a sound installation does.

    Attributes:
        group: What part of the package is checked.
        name: What is checked, in words; no two checks share it.
        low: The true figure is at least this.
        high: And at most this.
        measure: Returns the figure, at a confidence of :data:`CONFIDENCE`.
    """

    group: str
    name: str
    low: float
    high: float
    measure: Measure

    def __reduce__(self) -> tuple[Any, ...]:
        """Let another process take it from its own catalogue, by name."""
        return _of_catalogue, (self.name,)

    @property
    def expected(self) -> str:
        """The range in words."""
        if self.low == self.high:
            return f"{self.low:.3g}"
        if self.low <= 0:
            return f"at most {self.high:.3g}"
        if self.high >= 1:
            return f"at least {self.low:.3g}"
        return f"{self.low:.3g} to {self.high:.3g}"


def _of_catalogue(name: str) -> SelftestCheck:
    from privaudit_tools.selftest.catalogue import CHECKS

    return next(check for check in CHECKS if check.name == name)


@dataclass(frozen=True)
class SelftestOutcome:
    """What came of a check.

    Attributes:
        observed: The rate or width that simulations showed.
        seconds: How long it took.
    """

    check: SelftestCheck
    observed: Estimate
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether the interval reaches into the range."""
        seen = self.observed
        if seen.unresolved:
            return False
        return seen.low <= self.check.high and self.check.low <= seen.high

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON knows them."""
        return {
            "group": self.check.group,
            "name": self.check.name,
            "expected": [self.check.low, self.check.high],
            "observed": self.observed.to_dict(),
            "passed": self.passed,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True)
class PrintedCheck:
    """A check as :meth:`SelftestOutcome.to_dict` gives it."""

    group: str
    name: str
    expected: tuple[float, float]
    observed: Estimate
    passed: bool
    seconds: float


def run_checks(
    checks: Sequence[SelftestCheck],
    seed: int = 0,
    progress: Progress | None = None,
    executor: Executor = HERE,
) -> list[SelftestOutcome]:
    """Make every check, each with randomness of its own.

    A sound installation fails a check at the edge of its range in at most 1 of 1,000
    seeds; most truths lie well inside.

    Args:
        checks: Any; those of the catalogue, where another process makes them.
        seed: Of all draws; a check's do not depend on which others are made.
        progress: Called with the name of the next check.
        executor: Where they are made; by default in this process.
    """
    jobs = [Job(check.name, perform_check, (check, seed)) for check in checks]

    def begin(job: Job[SelftestOutcome]) -> None:
        if progress is not None:
            progress(job.name)

    return results_of(executor, jobs, begun=begin)


def perform_check(
    check: SelftestCheck, seed: int, watcher: Watcher | None = None
) -> SelftestOutcome:
    """Make a check."""
    stream = Seeds(seed).child("selftest").stream(check.name)
    start = time.monotonic()
    observed = check.measure(stream.numpy())
    return SelftestOutcome(check, observed, time.monotonic() - start)


def share_of(trial: Trial, trials: int) -> Measure:
    """Return a measure: the share of so many trials in which something happens."""

    def measure(rng: np.random.Generator) -> Estimate:
        happened = sum(bool(trial(rng)) for _ in range(trials))
        return proportion(happened, trials, CONFIDENCE)

    return measure


def by_coin(
    scores: Shaped[np.ndarray, " candidates"], rng: np.random.Generator
) -> tuple[
    Bool[np.ndarray, " candidates"],
    Shaped[np.ndarray, " members"],
    Shaped[np.ndarray, " others"],
]:
    """Toss a membership coin for each score: the truth, and both classes' scores."""
    truth = rng.random(len(scores)) < 0.5
    truth[:2] = True, False  # both occur, whatever the coins
    return truth, scores[truth], scores[~truth]
