"""A metric: a number of a run that is held to limits and compared with another run's.

Gate, ``compare``, sweeps, tables, the pytest plugin and the command line read
:data:`METRICS`. A metric of attacks measures their scores beside the truth, one of utility the
models' scores on test records; what each does with two runs stands in its own file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from privaudit.auditing.attack_result import AttackResult
from privaudit.core.errors import PluginError, shown
from privaudit.core.registry import Registry
from privaudit.statistics.comparisons import IntervalAt
from privaudit.statistics.estimate import Estimate

Side = Literal["leak", "utility"]
# A side's scores: Sequence[ClientScores], TestScores.
Measurable = TypeVar("Measurable")


@dataclass(frozen=True)
class PairedNumbers:
    """A metric of two runs, record by record.

    Attributes:
        interval_at: First less second at any confidence.
        turned: Of first and second, whether its members have the lower scores: then
            its value, and the difference, are those of the scores with the sign turned.
    """

    first: float
    second: float
    interval_at: IntervalAt
    turned: tuple[bool, bool] = (False, False)


@dataclass(frozen=True)
class Metric(Generic[Measurable]):
    """A number of an attack, or of the models' utility.

    Attributes:
        code: As settings, markers and tables name it: "auroc".
        title: Behind what it is of, in sentences: "AUROC" in "loss-threshold AUROC".
        side: "leak": of an attack, worse where it is higher. "utility": of the models on
            their clients' own classes, worse where it is lower.
        key: Its entry in audit.json, of an attack or of utility; empty if there is none.
        paired: Both runs' values and their difference; the records are the same.
        field: Of an attack result and of a sweep's cell, what stands there for it, such
            as an average over classes; empty: the number itself.
        heading: Above its column of a table; empty: it has none.
        turn: What it is for an adversary who turns the scores' sign; None: no other.
        of_scores: Whether a comparison turns either side whose members have the lower
            scores; a number of guesses is as these were made.
    """

    code: str
    title: str
    side: Side
    key: str
    interval: Callable[[Measurable, float], Estimate]
    paired: Callable[[Measurable, Measurable], PairedNumbers]
    field: str = ""
    heading: str = ""
    turn: Callable[[Estimate], Estimate] | None = None
    of_scores: bool = False

    def name(self, of: str) -> str:
        """Return what is read: of an attack, or of what utility is measured by."""
        return f"{of} {self.title}"

    def at(self, scores: Measurable) -> IntervalAt:
        """Return the estimate at any confidence."""
        return partial(self.interval, scores)

    def shown(self, result: AttackResult) -> Estimate:
        """Return what tables and sweeps show of an attack result."""
        if self.field:
            return getattr(result, self.field)
        clients: Any = result.clients  # what metrics of attacks measure
        return self.interval(clients, 0.95)

    def stored(self, entry: Mapping[str, Any], scores: Callable[[], Any]) -> float:
        """Return a run's value as its audit says it, else from its scores."""
        if self.key:
            return float(entry[self.key]["value"])
        return self.interval(scores(), 0.95).value


METRICS: Registry[Metric[Any]] = Registry(
    "metric", "privaudit.evaluation.metrics", "privaudit.metrics"
)


def metrics_of(side: Side, codes: Sequence[str] | None = None) -> list[Metric[Any]]:
    """Return the metrics of a side in the order of their codes: those asked for, or all.

    Raises:
        PluginError: Another package's metric has another code than name.
    """
    asked = METRICS.usable() if codes is None else {c: METRICS.find(c) for c in codes}
    for name, metric in asked.items():
        if metric.code != name:
            raise PluginError(
                f"The metric {shown(name)} calls itself {shown(metric.code)}. Give it "
                "one name in its package."
            )
    return [metric for _, metric in sorted(asked.items()) if metric.side == side]
