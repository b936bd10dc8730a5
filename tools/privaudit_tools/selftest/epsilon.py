"""Are lower bounds on epsilon below the truth, and do they show something?"""

import numpy as np

from privaudit.statistics.epsilon.bound import EpsilonMethod
from privaudit.statistics.estimate import Estimate, proportion
from privaudit_tools.selftest import calibration
from privaudit_tools.selftest.calibration import (
    GaussianCanaries,
    RandomisedResponse,
    Silence,
    SimulatedMechanism,
)
from privaudit_tools.selftest.check import CONFIDENCE, Measure, SelftestCheck

_GROUP = "epsilon bounds at 95 %"
_AUDITS, _FEW, _MANY = 500, 200, 1000
_GAUSSIAN = GaussianCanaries(4.0)
SHOWN = {
    "SplitThreshold": 0.5,
    "MultiSplit": 0.5,
    "FixedGrid": 0.7,
    "GaussianFit": 2.2,
    "OneRunGuesses": 1.1,
    "FDPOneRun": 1.15,
    "GaussianOneRun": 1.8,
    "GaussianScores": 2.9,
}
"""What most audits of 1,000 show where epsilon is 4: a little less than the median.

Those that begin with "Gaussian" are of the labs, and checked where these are installed.
"""


def _beyond_truth(
    bound: EpsilonMethod, mechanism: SimulatedMechanism, n: int
) -> Measure:
    def measure(rng: np.random.Generator) -> Estimate:
        coverage = calibration.coverage(bound, mechanism, n, _AUDITS, rng)
        return proportion(round(coverage.value * _AUDITS), _AUDITS, CONFIDENCE)

    return measure


def _shows(bound: EpsilonMethod, least: float) -> Measure:
    def measure(rng: np.random.Generator) -> Estimate:
        values = calibration.simulated(bound, _GAUSSIAN, _MANY, _AUDITS, rng)
        return proportion(int((values >= least).sum()), _AUDITS, CONFIDENCE)

    return measure


def _about(name: str) -> list[SelftestCheck]:
    few, many = (calibration.standard_bounds(n)[name] for n in (_FEW, _MANY))
    alpha, coins = round(few.significance, 6), RandomisedResponse(1.0)
    measures = [
        ("false without a leak, n = 200", _beyond_truth(few, Silence(), _FEW)),
        ("false at epsilon 4, Gaussian", _beyond_truth(many, _GAUSSIAN, _MANY)),
    ]
    if many.can_refute:  # the others assume a Gaussian
        answers = _beyond_truth(many, coins, _MANY)
        measures.append(("false at epsilon 1, coins", answers))
    checks = [
        SelftestCheck(_GROUP, f"{name}: {what}", 0.0, alpha, m) for what, m in measures
    ]
    shown = SHOWN[name]
    what = f"{name}: at least {shown:g} of 4, n = 1000"
    return [*checks, SelftestCheck(_GROUP, what, 0.5, 1.0, _shows(many, shown))]


CHECKS = tuple(
    check
    for name in calibration.standard_bounds(_FEW)
    if name in SHOWN  # another package's are its own to check
    for check in _about(name)
)
