"""Results of a sweep: points, cells over seeds, domination, the price in epsilon.

A record in many runs is protected by more than one epsilon.

Source: Liu and Talwar, "Private selection from private candidates", STOC 2019; Papernot
and Steinke, "Hyperparameter tuning with Rényi differential privacy", ICLR 2022.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

import numpy as np
from jaxtyping import Float
from pydantic import ConfigDict, Field

from privaudit.auditing.audit import Audit
from privaudit.core.errors import ConfigError, MissingFileError, TranscriptError
from privaudit.core.formatting import epsilon as in_words
from privaudit.core.parameters import from_plain, to_plain
from privaudit.core.portable_bits import Provenance, counted
from privaudit.core.storage import DAMAGE, read_json
from privaudit.evaluation.metric import Metric, metrics_of
from privaudit.evaluation.tradeoff.plan import SweepPlan
from privaudit.privacy.certificate import CertifiedView, certify, guarantee_of
from privaudit.privacy.events import MechanismEvent
from privaudit.runs.run import Run
from privaudit.statistics.dominance import (
    FEWEST,
    Domination,
    Front,
    Margins,
    find_front,
)
from privaudit.statistics.estimate import Estimate, mean_with_t, paired_difference
from privaudit.statistics.roc import Groups, leaks_over_seeds, tpr_over_seeds

Key = tuple[str, float | None]  # a cell's mode and epsilon


def other_metrics() -> list[Metric[Any]]:
    """Return the metrics of attacks that have no field of their own in a sweep."""
    return [metric for metric in metrics_of("leak") if not metric.field]


@dataclass(frozen=True)
class Study:
    """What was trained on what, and attacked by whom: only one study's numbers compare.

    Attributes:
        dataset: Its name, with what tells data of one name apart, and who named them.
        model: Its name, with what tells models of one name apart, likewise.
    """

    scenario: str
    trainer: str
    dataset: str
    model: str


def study_of(audit: Audit) -> Study:
    """Return whose numbers an audit's are."""
    config = audit.run.config
    identity = config.identity

    def named(first: str, *more: str) -> str:
        found = [f"{name} {identity[name]}" for name in more if name in identity]
        return ", ".join([str(identity.get(first, getattr(config, first))), *found])

    data = [audit.run.origin, named("dataset", "data", "classes")]
    return Study(
        audit.scenario.name,
        config.trainer,
        " ".join(filter(None, data)),
        named("model", "checkpoint"),
    )


@dataclass(frozen=True)
class SweepPoint:
    """One run of a sweep.

    Attributes:
        mode: How noise is added, such as "published-paper" or "sound"; what a mode does
            besides, it does without noise too.
        epsilon: As claimed or asked for; None without noise.
        seed: Of the run: the replicate.
        local: Accuracy on a client's own classes.
        neighbour: On other clients' classes; None if every client owns all.
        gain: Accuracy on own classes beyond the zero-shot model's; None without one.
        certified: Epsilon that is proved for the adversary; None if nothing is.
        guarantee: Of which unit, adjacency and delta that is, in words.
        attack: Whose AUROC and success rate they are.
        scores: The attack's, of members and of non-members; None if not kept.
        others: What metrics of attacks besides AUROC and success rate say, by code.
        study: Of what; None of a sweep that an earlier version wrote.
        computed: With what the run was trained; nothing of such a sweep.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(arbitrary_types_allowed=True)

    mode: str
    epsilon: float | None
    seed: int
    success: Estimate
    auroc: Estimate
    local: Estimate
    neighbour: Estimate | None
    gain: Estimate | None
    certified: float | None
    guarantee: str
    attack: str
    metric: str
    scores: Annotated[Groups | None, Field(exclude=True)] = field(
        default=None, repr=False, compare=False
    )
    study: Study | None = None
    computed: Provenance = field(default_factory=Provenance)
    others: Mapping[str, Estimate] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        audit: Audit,
        mode: str,
        epsilon: float | None,
        attack: str | None = None,
        replicate: int | None = None,
    ) -> "SweepPoint":
        """Return what a sweep keeps of an audit.

        The attack that carries the numbers is the headline by default, and a replicate
        may stand in place of the run's seed.
        """
        result = audit.results[attack] if attack else audit.headline
        utility = audit.measured_utility
        groups = [client.groups for client in result.clients]
        seed = audit.run.config.seed if replicate is None else replicate
        assert seed is not None  # a sweep names its seeds
        members, others = (np.concatenate(side) for side in zip(*groups, strict=True))
        return cls(
            mode=mode,
            epsilon=epsilon,
            seed=seed,
            success=result.success,
            auroc=result.auroc,
            local=utility.local,
            neighbour=utility.neighbour,
            gain=utility.gain,
            certified=audit.certified_epsilon,
            guarantee=guarantee_of(audit.certificate),
            attack=result.attack,
            metric=utility.metric,
            study=study_of(audit),
            computed=Provenance.of(audit.run.header),
            scores=(members, others),
            others={m.code: m.shown(result) for m in other_metrics()},
        )


@dataclass(frozen=True)
class SweepCell:
    """One mode and epsilon: means over seeds, with Student's intervals.

    Attributes:
        neighbour: None if it is missing in a run; likewise ``gain``.
        reference: The cell that ``change`` is to: that without noise of the same mode
            where there is one, else the first; None for such a cell itself.
        change: AUROC less the reference's, paired by seed; None where there is none, or
            where fewer than two seeds are shared.
        certified: The largest over the seeds; None if it is missing in one.
        tpr: True-positive rate at a false-positive rate of 1 %, of all seeds' records
            at one threshold; None where no scores were kept.
        others: Means of other metrics of attacks by code, of those in all its runs.
        turned: Whether members have the lower scores: AUROC and change are those of the
            scores with the sign turned.
    """

    mode: str
    epsilon: float | None
    seeds: tuple[int, ...]
    success: Estimate
    auroc: Estimate
    local: Estimate
    neighbour: Estimate | None
    gain: Estimate | None
    reference: Key | None
    change: Estimate | None
    certified: float | None
    tpr: Estimate | None
    others: Mapping[str, Estimate] = field(default_factory=dict)
    turned: bool = False

    @property
    def name(self) -> str:
        """Mode and epsilon in words."""
        budget = "no ε" if self.epsilon is None else f"ε {in_words(self.epsilon)}"
        return f"{self.mode}, {budget}"


def aggregate(
    points: Sequence[SweepPoint], *, against_first: bool = False
) -> list[SweepCell]:
    """Return the cells, by mode in order of appearance, the least noise first.

    Differences are to the cell without noise of the same mode where there is one, else,
    or if that is asked, to the first cell.

    Raises:
        ConfigError: There is no point, or a seed occurs twice in a cell.
    """
    if not points:
        raise ConfigError("A sweep needs points, and there are none. Add runs.")
    groups: dict[Key, list[SweepPoint]] = {}
    for point in points:
        groups.setdefault((point.mode, point.epsilon), []).append(point)
    modes = list(dict.fromkeys(point.mode for point in points))
    keys = sorted(groups, key=lambda key: (modes.index(key[0]), _noise(key[1])))
    quiet = {mode for mode, budget in groups if budget is None and not against_first}
    references = {k: (k[0], None) if k[0] in quiet else keys[0] for k in keys}
    differences = sum(key != reference for key, reference in references.items())
    return [_cell(groups, key, references[key], differences) for key in keys]


def _noise(epsilon: float | None) -> float:
    """Order epsilons by noise, none first."""
    return math.inf if epsilon == 0 else 1 / (epsilon or math.inf)


def _cell(
    groups: Mapping[Key, Sequence[SweepPoint]],
    key: Key,
    reference: Key,
    differences: int,
) -> SweepCell:
    points = groups[key]
    proved = [p.certified for p in points if p.certified is not None]
    scores = [p.scores for p in points if p.scores is not None]
    compared, (leaks, turned) = reference != key, _leaks(points)
    return SweepCell(
        mode=key[0],
        epsilon=key[1],
        seeds=_seeds(points),
        success=mean_with_t([p.success.value for p in points]),
        auroc=mean_with_t([*leaks.values()]),
        local=mean_with_t([p.local.value for p in points]),
        neighbour=_mean([p.neighbour for p in points]),
        gain=_mean([p.gain for p in points]),
        reference=reference if compared else None,
        change=_change(leaks, groups[reference], differences) if compared else None,
        certified=max(proved) if len(proved) == len(points) else None,
        tpr=tpr_over_seeds(scores) if len(scores) == len(points) else None,
        others={
            m.code: mean_with_t([p.others[m.code].value for p in points])
            for m in other_metrics()
            if all(m.code in p.others for p in points)
        },
        turned=turned,
    )


def _mean(values: Sequence[Estimate | None]) -> Estimate | None:
    """Return the mean over seeds; None where one lacks it."""
    found = [one.value for one in values if one is not None]
    return mean_with_t(found) if len(found) == len(values) else None


def _seeds(points: Sequence[SweepPoint]) -> tuple[int, ...]:
    seeds = tuple(point.seed for point in points)
    if len(set(seeds)) < len(seeds):
        raise ConfigError(
            f"The cell {points[0].mode!r} at epsilon {in_words(points[0].epsilon)} "
            f"holds seeds {sorted(seeds)}: one occurs twice, and a copy is no "
            "replicate. Leave it out."
        )
    return seeds


def _change(
    leaks: Mapping[int, float], reference: Sequence[SweepPoint], differences: int
) -> Estimate | None:
    """Return the paired difference; all of a table's hold together (Bonferroni)."""
    there, _ = _leaks(reference)
    shared = [seed for seed in leaks if seed in there]
    if len(shared) < 2:
        return None
    first, second = ([side[seed] for seed in shared] for side in (leaks, there))
    return paired_difference(first, second, confidence=1 - 0.05 / differences)


def _leaks(points: Sequence[SweepPoint]) -> tuple[dict[int, float], bool]:
    """Return AUROCs of a cell by seed, and whether all are turned."""
    leaks, turned = leaks_over_seeds([point.auroc.value for point in points])
    return dict(zip((point.seed for point in points), leaks, strict=True)), turned


Rounds = tuple[tuple[MechanismEvent, ...], ...]


@dataclass(frozen=True)
class Spent:
    """What one run spent of its records' privacy, against one adversary.

    Attributes:
        epsilon: As proved; None if nothing is, 0 if no record has any influence.
        delta: Of the proof, in (0, 1).
    """

    seed: int
    view: CertifiedView
    epsilon: float | None
    delta: float
    rounds: Rounds

    @classmethod
    def of(cls, run: Run, threat: str) -> "Spent":
        """Return what a run spent in a threat model's view."""
        view = cast(CertifiedView, threat.partition(":")[0])
        proved = run.privacy["certified"][view]
        rounds = tuple(
            tuple(MechanismEvent.from_json(event) for event in line["mechanisms"])
            for line in run.metrics
        )
        seed = run.config.seed
        assert seed is not None  # a sweep names its seeds
        return cls(seed, view, proved["epsilon"], proved["delta"], rounds)


@dataclass(frozen=True)
class Composed:
    """The privacy loss of a record that is in several runs.

    Attributes:
        runs: How many have a proof, and spend anything.
        largest: Of a single one's epsilons.
        summed: Of them all: basic composition, which always holds, at the sum of the
            deltas.
        epsilon: What the accountant proves for all of them together, at ``delta``.
        delta: The largest of the runs'.
    """

    runs: int
    largest: float
    summed: float
    epsilon: float
    delta: float


@dataclass(frozen=True)
class SearchCost:
    """What a sweep spent.

    Attributes:
        runs: How many were trained, seeds and all.
        unprotected: How many runs carry no proof.
        one_seed: All cells of one seed together; None if no run is private.
        all_seeds: What all runs prove together, likewise.
    """

    cells: int
    runs: int
    unprotected: int
    one_seed: Composed | None
    all_seeds: Composed | None


def search_cost(cells: int, spent: Sequence[Spent]) -> SearchCost:
    """Return what runs spent together.

    All are given away, or looked at, so they compose: picking one of them afterwards by
    what was given away costs nothing more, and nothing less. What has no proof is
    counted, not added up: with it nothing is proved for the whole.
    """
    first = spent[0].seed
    return SearchCost(
        cells=cells,
        runs=len(spent),
        unprotected=sum(one.epsilon is None for one in spent),
        one_seed=compose([one for one in spent if one.seed == first]),
        all_seeds=compose(spent),
    )


def compose(spent: Sequence[Spent]) -> Composed | None:
    """Return the loss of a record that is in all runs; None if none is private.

    The accountant takes all rounds of all runs for one long run. Runs on other seeds
    split and toss anew, so a record need not be in all of them: then it is a bound.
    """
    private = [one for one in spent if one.epsilon]
    if not private:
        return None
    epsilons = [one.epsilon for one in private if one.epsilon]
    delta = max(one.delta for one in private)
    rounds = [events for one in private for events in one.rounds]
    proved = certify(rounds, private[0].view, delta).epsilon
    summed = sum(epsilons)
    return Composed(
        runs=len(private),
        largest=max(epsilons),
        summed=summed,
        epsilon=summed if proved is None else proved,
        delta=delta,
    )


def describe(cost: SearchCost) -> list[str]:
    """Say what the search cost, in sentences."""
    one, every = cost.one_seed, cost.all_seeds
    if one is None or every is None:
        return []
    said = [
        f"The search has a price in ε: {one.runs} of the {cost.cells} cells have a "
        f"proved ε, up to {one.largest:.3g}. For a record that is in one run of each, "
        f"ε = {one.epsilon:.3g} is proved in all (δ = {one.delta:g}; the plain sum is "
        f"{one.summed:.3g}), and for one that is in all {every.runs} such runs of all "
        f"seeds {every.epsilon:.3g}: not the ε of the cell that is picked.",
        "That covers giving all the models away, and choosing among them by records "
        "that nobody trained on. AUROC and success rate read who was a member: no ε "
        "covers a choice by them, nor their publication. Choosing privately takes a "
        "random number of runs (up to 3ε: Liu and Talwar 2019; less by Rényi's "
        "accounting: Papernot and Steinke 2022); this sweep does not do that.",
    ]
    if cost.unprotected:
        said.append(
            f"{cost.unprotected} of the {cost.runs} runs carry no proof for this "
            "adversary: if their models are given away too, nothing is proved for the "
            "whole."
        )
    return said


ENOUGH = 5  # seeds to report on


@dataclass(frozen=True)
class CellChange:
    """By how much a cell's AUROC and utility differ from the first one's.

    All of a sweep's intervals hold together (Bonferroni), at a look's part of the error;
    ``moved`` has each shared seed.
    """

    cell: SweepCell
    leak: Estimate
    utility: Estimate
    moved: Float[np.ndarray, "seeds 2"]


@dataclass(frozen=True)
class Tradeoff:
    """A finished sweep.

    Attributes:
        points: Of all runs with which cells are chosen.
        cells: Means over seeds, with Student's intervals.
        front: Which cells are dominated; positions are those of ``cells``.
        cost: What the search spent; None where that is not known.
        report_points: Of the runs on other seeds; empty without report seeds.
        reported: The cells that nothing dominates, on those other seeds.
    """

    points: tuple[SweepPoint, ...]
    cells: tuple[SweepCell, ...]
    front: Front
    cost: SearchCost | None = None
    report_points: tuple[SweepPoint, ...] = ()
    reported: tuple[SweepCell, ...] = ()

    @property
    def not_dominated(self) -> tuple[SweepCell, ...]:
        """The cells that no other dominates, by test: at least one."""
        return tuple(self.cells[n] for n in self.front.not_dominated)

    def standing(self, position: int) -> str:
        """Say where the cell at a position in ``cells`` stands."""
        dominations = self.front.dominating(position)
        if dominations:
            return f"dominated by {self.cells[dominations[0].better].name}"
        level = f"not dominated by any, at level {100 * self.front.alpha:g} %"
        undecided = self.front.undecided[position]
        if not undecided:
            return level
        more = self.front.further[position]
        seeds = f": about {more} more seeds decide, if it is as it looks" * bool(more)
        return f"{level}; undecided against {undecided}{seeds}"

    def changes(self) -> list["CellChange"]:
        """Return how other cells differ from the first, of those that share three seeds."""
        first, found = replicates_of(self.cells[0], self.points), []
        each = 1 - self.front.alpha / (2 * max(len(self.cells) - 1, 1))
        for cell in self.cells[1:]:
            own = replicates_of(cell, self.points)
            shared = [np.subtract(own[s], first[s]) for s in own if s in first]
            if len(shared) >= FEWEST:
                moved = np.array(shared)
                leak, utility = (mean_with_t(one, each) for one in moved.T)
                found.append(CellChange(cell, leak, utility, moved))
        return found

    @property
    def bargain(self) -> str:
        """Say what to take for most privacy where little utility may be lost."""
        first, most = self.cells[0], self.front.margins.utility
        found, metric = self.changes(), self.points[0].metric
        good = [c for c in found if c.utility.low > -most and c.leak.high < 0]
        if not found:
            return ""
        if not good:
            return (
                f"No setting is shown to leak less than {first.name} and to lose at most "
                f"{most:g} of {metric}."
            )
        best = min(good, key=lambda change: change.leak.value)
        fall = best.leak
        return (
            f"To lose at most {most:g} of {metric} beside {first.name}, take "
            f"{best.cell.name}: AUROC falls by {-fall.value:.3f} [{-fall.high:.3f}, "
            f"{-fall.low:.3f}], {metric} changes by {best.utility} seeds "
            f"({100 * (1 - self.front.alpha):g} %, for all {len(found)} settings together)."
        )

    def remarks(self) -> list[str]:
        """Say how cells were compared, and what the search cost."""
        count, front = len(self.cells), self.front
        cells = (*self.cells, *self.reported)
        lower = "; ".join(dict.fromkeys(cell.name for cell in cells if cell.turned))
        said = [
            self.bargain,
            f"Members have the lower scores in {lower}: AUROCs are those of the scores "
            "with the sign turned." * bool(lower),
            "A cell is dominated if another leaks less, or is more use, by more than "
            f"the margin (AUROC {front.margins.leak:g}, utility {front.margins.utility:g}) "
            "and is not worse by more than the margin in the other: paired by seed, "
            "Student's t, Holm over all "
            f"{front.tests} pairs and ways, so that any cell is wrongly called "
            f"dominated in at most {100 * front.alpha:g} % of sweeps. Not dominated is "
            "no proof of being best: undecided counts the cells that might yet be "
            "better.",
            *(self._sentence(n) for n in range(count)),
        ]
        if count > 1:
            said.append(self._on_choosing())
        runs = [*self.points, *self.report_points]
        said.append(f"Computed in {counted(point.computed for point in runs)}.")
        return [*(one for one in said if one), *self._on_cost()]

    def _on_cost(self) -> list[str]:
        if self.cost is None or all(cell.epsilon is None for cell in self.cells):
            return []
        if self.cost.one_seed is None:
            return [
                "No run has a proved ε for this adversary, so there is none for the "
                "search either."
            ]
        return describe(self.cost)

    def _sentence(self, position: int) -> str:
        dominations = self.front.dominating(position)
        if not dominations:
            return ""
        best = dominations[0]
        return (
            f"{self.cells[position].name} is dominated by {self.cells[best.better].name} "
            f"(p = {best.p_value:.2g} after Holm): its leak is greater by {best.leak}, "
            f"its use less by {best.utility}."
        )

    def _on_choosing(self) -> str:
        seeds, count = _named(self.points), len(self.cells)
        if not self.reported:
            return (
                f"All {count} cells were looked at on seeds {seeds}. To pick one of "
                f"{count} by what it leaks there is selection: its numbers are the "
                f"best of {count}, and too good on average. Report it on other seeds "
                "(--report-seeds)."
            )
        fresh = len({point.seed for point in self.report_points})
        few = (
            "" if fresh >= ENOUGH else f" That is fewer than {ENOUGH} seeds: add more."
        )
        return (
            f"Chosen on seeds {seeds} among {count} cells, reported on seeds "
            f"{_named(self.report_points)}, which had no part in the choice: quote "
            f"these.{few}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the scores, as JSON knows it."""
        return {
            "cells": [
                to_plain(SweepCell, cell)
                | {
                    "dominated": position not in self.front.not_dominated,
                    "undecided": self.front.undecided[position],
                    "standing": self.standing(position),
                }
                for position, cell in enumerate(self.cells)
            ],
            "dominations": to_plain(tuple[Domination, ...], self.front.dominations),
            "margins": vars(self.front.margins),
            "alpha": self.front.alpha,
            "reported": to_plain(tuple[SweepCell, ...], self.reported),
            "cost": self.cost and asdict(self.cost),
            "points": to_plain(tuple[SweepPoint, ...], self.points),
            "report_points": to_plain(tuple[SweepPoint, ...], self.report_points),
        }


def judge_sweep(
    points: Sequence[SweepPoint],
    plan: SweepPlan | None = None,
) -> Tradeoff:
    """Return what runs say together, by the margins and the alpha of a plan."""
    plan = plan or SweepPlan()
    cells = aggregate(points, against_first=plan.against_first)
    margins = Margins(plan.margin, plan.utility_margin)
    front = find_front(
        [replicates_of(cell, points) for cell in cells],
        margins,
        plan.alpha / len(plan.looks),
    )
    return Tradeoff(tuple(points), tuple(cells), front)


def replicates_of(
    cell: SweepCell, points: Sequence[SweepPoint]
) -> dict[int, tuple[float, float]]:
    """Return AUROC, turned if the cell's is, and utility of a cell's runs by seed."""
    own = [p for p in points if (p.mode, p.epsilon) == (cell.mode, cell.epsilon)]
    leaks, _ = _leaks(own)
    return {point.seed: (leaks[point.seed], point.local.value) for point in own}


def _named(points: Sequence[SweepPoint]) -> str:
    return ", ".join(str(seed) for seed in dict.fromkeys(p.seed for p in points))


SWEEP = "sweep.json"


def read_sweep(folder: Path) -> Tradeoff:
    """Return what :func:`privaudit.report.sweep.write_sweep` wrote, without scores.

    Raises:
        MissingFileError: There is no sweep.json.
        TranscriptError: It is damaged, or of another version.
    """
    said = read_json(folder / SWEEP)
    try:
        return _sweep(said)
    except (*DAMAGE, ConfigError, MissingFileError) as error:
        raise TranscriptError(
            f"{folder / SWEEP} does not hold a sweep ({error!r}): it was altered, or "
            "written by another version. Write it again with the same `privaudit "
            "tradeoff`: finished runs are kept."
        ) from None


def _sweep(said: Mapping[str, Any]) -> Tradeoff:
    points = from_plain(tuple[SweepPoint, ...], said["points"])
    cells = from_plain(tuple[SweepCell, ...], said["cells"])
    if not points or not cells:
        raise ValueError(f"{len(points)} points and {len(cells)} cells")
    replicates = [replicates_of(cell, points) for cell in cells]
    for cell, runs in zip(cells, replicates, strict=True):
        if set(runs) != set(cell.seeds):
            raise ValueError(f"{cell.name} has the seeds {cell.seeds}, its runs {runs}")
    margins, alpha = Margins(**said["margins"]), float(said["alpha"])
    return Tradeoff(
        points,
        cells,
        find_front(replicates, margins, alpha),
        from_plain(SearchCost | None, said["cost"]),
        from_plain(tuple[SweepPoint, ...], said["report_points"]),
        from_plain(tuple[SweepCell, ...], said["reported"]),
    )
