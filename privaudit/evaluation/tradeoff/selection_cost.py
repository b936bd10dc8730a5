"""Privacy cost of selection: many runs protect a record by more than one epsilon.

Source: Liu and Talwar, "Private selection from private candidates", STOC 2019;
Papernot and Steinke, "Hyperparameter tuning with Rényi differential privacy", ICLR
2022.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from privaudit.federated.runs.runs import Run
from privaudit.privacy.certificate import CertifiedView, certify
from privaudit.privacy.events import MechanismEvent

Rounds = tuple[tuple[MechanismEvent, ...], ...]


@dataclass(frozen=True)
class Spent:
    """What one run spent of its records' privacy, against one adversary.

    Attributes:
        epsilon: As proved; None if nothing is, 0 if no record has any influence.
        delta: Of the proof, in (0, 1).
        rounds: The mechanisms as applied.
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
        all_seeds: All runs together.
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
