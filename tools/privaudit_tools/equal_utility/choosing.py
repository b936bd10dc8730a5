"""What tuning seeds choose: of each row a setting, and the attack that sees most of it."""

from collections.abc import Iterable, Sequence
from statistics import fmean

import numpy as np
from pydantic import BaseModel, ConfigDict

from privaudit.core.errors import ConfigError
from privaudit_tools.equal_utility.curve import Measured, contrasts
from privaudit_tools.equal_utility.outcomes import RunRecord
from privaudit_tools.equal_utility.plan import BenchmarkPlan

CHANCE = 0.5  # an AUROC
Numbers = tuple[float, float]  # utility and leak, means over seeds


class Choice(BaseModel):
    """A setting of a row and the attack that is strongest on it, by tuning seeds.

    Attributes:
        rounds: After which utility is measured; 0 is the last.
        after: After which rounds the attack is made; 0 is the last.
        utility: Mean over tuning seeds; so is the leak. Both are chosen, and no result.
    """

    model_config = ConfigDict(frozen=True)

    row: str
    setting: str
    attack: str
    after: int = 0
    rounds: int = 0
    utility: float
    leak: float

    def of(self, runs: Iterable[RunRecord], seeds: Sequence[int]) -> list[RunRecord]:
        """Return the finished runs of its setting with some seeds."""
        return _finished(runs, self.row, self.setting, seeds)

    def measured(
        self, runs: Iterable[RunRecord], seeds: Sequence[int], utility: str
    ) -> Measured:
        """Return utility and leak by seed."""
        found = self.of(runs, seeds)
        return Measured(
            {run.seed: run.at(self.rounds).utility[utility] for run in found},
            {run.seed: _leak(run, self.after, self.attack) for run in found},
        )


class Choices(BaseModel):
    """What was chosen for the curve's knots, and for each row."""

    model_config = ConfigDict(frozen=True)

    stops: tuple[Choice, ...]
    rows: tuple[Choice, ...]


def choose(plan: BenchmarkPlan, runs: Sequence[RunRecord]) -> Choices:
    """Return what the runs on tuning seeds choose.

    Of a row the setting that is farthest below the curve, among those whose utility is
    above no training; where there is none, the most useful. Its attack is the strongest
    on that setting, so that a method is not favoured by one that misses it.

    Raises:
        ConfigError: A knot of the curve has no run, or no attack on a row found a number.
    """
    label = plan.reference.label
    stops = tuple(
        found
        for stop in plan.reference.stops
        if (found := _strongest(plan, runs, label, "", stop)) is not None
    )
    untrained = _strongest(plan, runs, plan.untrained.label, "as given", 0)
    if len(stops) < len(plan.reference.stops) or untrained is None:
        errors = [run.error for run in runs if run.error] or ["no run of it"]
        raise ConfigError(
            f"The curve cannot be drawn: {label!r} or {plan.untrained.label!r} has no "
            f"finished run on the tuning seeds ({errors[0]}). Mend that, and run again."
        )
    rows = [
        _of_row(plan, runs, method.label, untrained, stops) for method in plan.methods
    ]
    return Choices(stops=stops, rows=tuple(row for row in rows if row is not None))


def _of_row(
    plan: BenchmarkPlan,
    runs: Sequence[RunRecord],
    row: str,
    untrained: Choice,
    stops: Sequence[Choice],
) -> Choice | None:
    settings = dict.fromkeys(run.setting for run in runs if run.row == row)
    found = [_strongest(plan, runs, row, setting, 0) for setting in settings]
    there = [one for one in found if one is not None]
    useful = [one for one in there if one.utility > untrained.utility]
    if not useful:
        return max(there, key=lambda one: one.utility, default=None)
    knots = [(untrained.utility, CHANCE), *((s.utility, s.leak) for s in stops)]
    return max(useful, key=lambda one: _below(knots, (one.utility, one.leak)))


def _below(knots: Sequence[Numbers], numbers: Numbers) -> float:
    """Return how far means lie below the curve."""
    utilities, leaks = (np.array([side]) for side in zip(*knots, strict=True))
    utility, leak = (np.array([number]) for number in numbers)
    return float(contrasts(utilities, leaks, utility, leak)[0][0])


def _strongest(
    plan: BenchmarkPlan, runs: Sequence[RunRecord], row: str, setting: str, stop: int
) -> Choice | None:
    """Return the attack and the look that see most of a setting after some rounds.

    All looks up to that round count: who saw more may read less.
    """
    mine = _finished(runs, row, setting, plan.tuning_seeds)
    if not mine:
        return None
    last = stop or mine[0].looks[-1].rounds
    candidates = [
        (look.rounds if look.rounds < last or stop else 0, attack)
        for look in mine[0].looks
        if look.rounds <= last and (look.rounds in plan.looks or look.rounds == last)
        for attack in look.leaks
    ]
    if not candidates:
        raise ConfigError(
            f"No attack on {row!r} found a number on the tuning seeds. Name others in "
            "`attacks` of the plan, or leave that out for all of the scenario's."
        )
    leaks = {
        (after, attack): fmean([_leak(run, after, attack) for run in mine])
        for after, attack in candidates
    }
    utility = fmean([run.at(stop).utility[plan.utility] for run in mine])
    after, attack = max(leaks, key=lambda one: leaks[one])
    return Choice(
        row=row,
        setting=setting,
        attack=attack,
        after=after,
        rounds=stop,
        utility=utility,
        leak=leaks[after, attack],
    )


def _finished(
    runs: Iterable[RunRecord], row: str, setting: str, seeds: Sequence[int]
) -> list[RunRecord]:
    return [
        run
        for run in runs
        if (run.row, run.setting) == (row, setting)
        and run.seed in seeds
        and not run.error
    ]


def _leak(run: RunRecord, after: int, attack: str) -> float:
    """Return an attack's AUROC; by chance where it found no number in this run."""
    return run.at(after).leaks.get(attack, CHANCE)
