"""Two runs, or two settings over several seeds: does one leak more, is it more use?

Of two runs each record is compared with itself, so they must share data set, split and
membership coin, as runs of one seed do. What they say holds for these two models. A
claim about a *trainer* needs seeds as replicates: several runs of each setting are
paired by seed, and a record is then no replicate.

The question is settled before any score is seen: the AUROC of the attack that was named
first, and utility. The other attacks are looked at too, corrected among themselves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from privaudit.auditing.stored_audit import read_audit, shared_attacks
from privaudit.core.errors import IncompatibleRunsError
from privaudit.evaluation.compare.measured import (
    Measured,
    check_made_alike,
    check_pairable,
    measure_pair,
    measure_seeds,
    refuse_mixture,
)
from privaudit.evaluation.metric import Side
from privaudit.evaluation.metrics.auroc import AUROC
from privaudit.evaluation.metrics.tpr import TPR
from privaudit.evaluation.metrics.utility import UTILITY
from privaudit.runs.run import Run, load_run
from privaudit.statistics.comparisons import Change, Difference, judge_changes
from privaudit.statistics.verdict import Sampling

Runs = Run | str | Path | Sequence[Run | str | Path]


@dataclass(frozen=True)
class MetricChange:
    """One metric, and what may be said about its change.

    Attributes:
        name: Such as "loss-threshold AUROC".
        about: A leak is worse where it is higher, a use where it is lower.
        first: The first run's value, or the mean over seeds.
        change: First less second, and the verdict.
        is_primary: Whether it was named beforehand, and so decides.
        turned: Whether members have the lower scores in the first, and in the second:
            then the numbers are those with the sign turned.
    """

    name: str
    about: Side
    first: float
    second: float
    change: Change
    is_primary: bool = True
    turned: tuple[bool, bool] = (False, False)

    @property
    def sentence(self) -> str:
        """What may be said of the change."""
        sides = zip(("the first", "the second"), self.turned, strict=True)
        which = " and ".join(side for side, turned in sides if turned)
        if not which:
            return self.change.sentence
        return (
            f"{self.change.sentence} Members have the lower scores in {which}: that is "
            "the number with the sign turned."
        )

    @property
    def regressed(self) -> bool:
        """Whether the first is worse, beyond the margin and after Holm."""
        return self.change.kind == ("increase" if self.about == "leak" else "decrease")

    @property
    def passes(self) -> bool:
        """Whether it is ruled out that the first is worse beyond the margin."""
        if self.about == "leak":
            return self.change.excludes_increase
        return self.change.excludes_decrease

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON knows them."""
        return {
            "name": self.name,
            "about": self.about,
            "first": self.first,
            "second": self.second,
            **self.change.to_dict(),
            "sentence": self.sentence,
            "primary": self.is_primary,
            "regressed": self.regressed,
            "passes": self.passes,
        }


@dataclass(frozen=True)
class RunComparison:
    """What two runs, or two settings, differ in.

    Attributes:
        first: Names of the runs that are judged.
        against: Names of those they are judged against, in the same order.
    """

    first: tuple[str, ...]
    against: tuple[str, ...]
    scenario: str
    paired_by: Literal["record", "seed"]
    changes: tuple[MetricChange, ...]

    @property
    def primary(self) -> tuple[MetricChange, ...]:
        """The metrics that were named beforehand."""
        return tuple(change for change in self.changes if change.is_primary)

    @property
    def secondary(self) -> tuple[MetricChange, ...]:
        """All others; what they show calls for a comparison of its own."""
        return tuple(change for change in self.changes if not change.is_primary)

    @property
    def regressed(self) -> bool:
        """Whether any primary metric got worse."""
        return any(change.regressed for change in self.primary)

    @property
    def passes(self) -> bool:
        """Whether it is ruled out for all primary metrics that they got worse."""
        return all(change.passes for change in self.primary)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON knows them."""
        return {
            "first": list(self.first),
            "against": list(self.against),
            "scenario": self.scenario,
            "paired_by": self.paired_by,
            "regressed": self.regressed,
            "passes": self.passes,
            "secondary_regressed": any(change.regressed for change in self.secondary),
            "changes": [change.to_dict() for change in self.changes],
        }


def compare(
    first: Runs,
    against: Runs,
    *,
    scenario: str = "server-reconstruct",
    attacks: Sequence[str] | None = None,
    margin: float = 0.05,
    utility_margin: float = 0.05,
    alpha: float = 0.05,
    utility: bool = True,
    folder: str | Path | None = None,
) -> RunComparison:
    """Compare two audited runs: the paired difference of each metric, first minus other.

    Metrics are those of :data:`privaudit.evaluation.metric.METRICS`: the AUROC of each
    attack (DeLong, "Comparing the areas under two or more correlated ROC curves",
    Biometrics 1988; within clients, averaged by pairs), the share of correct guesses,
    and utility on the clients' own classes. An attack with shadow models for some
    clients is compared on the clients that both audits attacked.

    Args:
        first: A run or its name; or several of one setting, with different seeds.
        against: A run with the same data set, split and membership; or as many, with
            the same seeds: then seeds are the replicates, with Student's t.
        scenario: Name of the scenario; both runs need an audit of it.
        attacks: Names of attacks, all primary but for the TPR. By default the AUROC of the headline
            attack and utility are primary, and all other shared metrics secondary.
            Holm's correction counts every metric of its kind, so name few.
        margin: Equivalence margin of AUROC and success rate, in (0, 1).
        utility_margin: Equivalence margin of utility, in (0, 1).
        alpha: Family-wise error rate, in (0, 1), of the primary metrics, and likewise
            of the secondary ones.
        utility: Whether to query the models again for their utility, if any run has
            one.
        folder: Folder of all runs; by default ``./runs``.

    Raises:
        MissingFileError: A run, or its audit, is missing.
        UnknownNameError: The audits have no such attack.
        ConfigError: The runs cannot be paired; the message says by what they differ.
        TranscriptError: An audit is damaged, or of an earlier run.
    """
    first_runs, other_runs = _load(first, folder), _load(against, folder)
    utility &= any(run.has_utility for run in (*first_runs, *other_runs))
    pairs = _by_seed(first_runs, other_runs)
    audits = [(read_audit(a, scenario), read_audit(b, scenario)) for a, b in pairs]
    names = attacks or shared_attacks([audit for pair in audits for audit in pair])
    for pair in audits:
        check_made_alike(*pair, names)
    if len(pairs) == 1:
        check_pairable(*pairs[0])
        measured = measure_pair(*audits[0], names, utility)
    else:
        measured = measure_seeds(audits, names, utility)
    margins: dict[Side, float] = {"leak": margin, "utility": utility_margin}
    settled = _settled(measured, attacks or ())
    rest = [metric for metric in measured if metric not in settled]
    by_chance = all(run.sampling != "unknown" for run in (*first_runs, *other_runs))
    sampling: Sampling = "coin" if by_chance else "unknown"
    return RunComparison(
        first=tuple(a.name for a, _ in pairs),
        against=tuple(b.name for _, b in pairs),
        scenario=scenario,
        paired_by="record" if len(pairs) == 1 else "seed",
        changes=(
            *_judge(settled, margins, alpha, sampling, is_primary=True),
            *_judge(rest, margins, alpha, sampling, is_primary=False),
        ),
    )


def _settled(measured: Sequence[Measured], named: Sequence[str]) -> list[Measured]:
    """Return what was named before any score was seen: one AUROC, and utility."""
    if named:  # the tail's rate is not paired: it would hardly ever rule a change out
        return [m for m in measured if m.metric is not TPR]
    auroc = next(m for m in measured if m.metric is AUROC)
    return [auroc, *(m for m in measured if m.metric is UTILITY)]


def _judge(
    measured: Sequence[Measured],
    margins: Mapping[Side, float],
    alpha: float,
    sampling: Sampling,
    *,
    is_primary: bool,
) -> list[MetricChange]:
    """Return what may be said, corrected for the number of these metrics."""
    samplings: dict[Side, Sampling] = {"leak": sampling, "utility": "coin"}
    differences = [
        Difference(m.name, m.numbers.interval_at, margins[m.about], samplings[m.about])
        for m in measured
    ]
    return [
        MetricChange(
            m.name,
            m.about,
            m.numbers.first,
            m.numbers.second,
            change,
            is_primary,
            m.numbers.turned,
        )
        for m, change in zip(measured, judge_changes(differences, alpha), strict=True)
    ]


def _load(runs: Runs, folder: str | Path | None) -> list[Run]:
    sources = [runs] if isinstance(runs, Run | str | Path) else list(runs)
    loaded = [r if isinstance(r, Run) else load_run(r, folder=folder) for r in sources]
    return [run.require_complete() for run in loaded]


def _by_seed(ours: Sequence[Run], theirs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Return the runs in pairs; several are paired by their seeds."""
    if len(ours) == len(theirs) == 1:
        return [(ours[0], theirs[0])]
    seeds = [[run.config.seed for run in runs] for runs in (ours, theirs)]
    same = set(seeds[0]) == set(seeds[1]) and len(seeds[0]) == len(seeds[1])
    if not same or len(set(seeds[0])) < len(seeds[0]) or None in seeds[0]:
        raise IncompatibleRunsError(
            f"Several runs are paired by seed, and there are the seeds {seeds[0]} and "
            f"{seeds[1]}. Give each setting once for each seed, trained with --seed."
        )
    for runs in (ours, theirs):
        refuse_mixture(runs)
    there = {run.config.seed: run for run in theirs}
    return [(run, there[run.config.seed]) for run in ours]
