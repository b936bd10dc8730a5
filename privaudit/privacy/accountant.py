"""Epsilon of composed Gaussian mechanisms, by opacus, dp-accounting and closed form.

Everywhere: noise multiplier = standard deviation over sensitivity. Sampled steps are
Poisson's under add-or-remove-one adjacency, or, of a fixed number without replacement,
under replace-one adjacency. opacus, dp-accounting and scipy.optimize, which takes a tenth
of a command's start, are imported when first asked for: opacus takes seconds.
"""

import json
import logging
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from threading import Lock
from types import ModuleType
from typing import Any, Literal

from scipy.special import erfcx, log_ndtr, ndtr

from privaudit.core.errors import ConfigError
from privaudit.core.parameters import above_zero, at_least_one, fraction, probability
from privaudit.core.portable_bits import bits_here
from privaudit.core.storage import kept

_LARGE = 500.0


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return the smallest delta of a Gaussian mechanism of sensitivity / std ``mu``.

    Source: Balle and Wang, "Improving the Gaussian mechanism for differential privacy",
    ICML 2018, theorem 5.
    """
    gap, reach = mu / 2 - epsilon / mu, mu / 2 + epsilon / mu
    if epsilon > _LARGE:  # the sum below would be a difference of large numbers
        lost = math.exp(-(gap**2) / 2) * float(erfcx(reach / math.sqrt(2))) / 2
    else:
        lost = math.exp(epsilon + float(log_ndtr(-reach)))
    return float(ndtr(gap)) - lost


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the exact epsilon of a Gaussian mechanism of sensitivity / std ``mu``.

    Gaussian mechanisms compose to one whose squared ``mu`` is the sum of theirs.

    Example:
        >>> round(gaussian_epsilon(1.0, 1e-5), 4)
        4.3772
    """
    from scipy.optimize import brentq

    above_zero("mu", mu)
    probability("delta", delta)
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    # Concentrated differential privacy gives a bound, and so an end of the bracket.
    high = mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1
    return float(brentq(lambda e: gaussian_delta(mu, e) - delta, 0, high, xtol=1e-12))


def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """Return the least noise multiplier with which one step costs ``epsilon``."""
    from scipy.optimize import brentq

    above_zero("epsilon", epsilon)
    probability("delta", delta)
    high = 1.0
    while gaussian_delta(high, epsilon) < delta:
        high *= 2

    def excess(mu: float) -> float:
        return gaussian_delta(mu, epsilon) - delta

    return 1 / float(brentq(excess, 1e-9, high, xtol=1e-15, rtol=1e-14))


Accountant = Literal["opacus-rdp", "opacus-prv", "dpa-rdp", "dpa-pld", "gaussian-exact"]
Sampling = Literal["poisson", "without-replacement"]

COARSE_EPSILON = 50.0
"""From here on, losses are composed on a grid as coarse as epsilon allows."""

AGREEMENT = 0.02
"""Share of epsilon, or below 1 the epsilon, by which two tight accountants may differ."""

HUGE_EPSILON = 1e5  # promises nothing, and would overflow


@dataclass(frozen=True)
class SamplingPhase:
    """Equal steps of one sampled Gaussian mechanism.

    Attributes:
        noise_multiplier: Above 0.
        sampling_rate: In (0, 1].
        steps: At least 1.
        sampling: "poisson", or "without-replacement" of a fixed number: "dpa-rdp" alone
            knows that.
    """

    noise_multiplier: float
    sampling_rate: float
    steps: int
    sampling: Sampling = "poisson"

    def __post_init__(self) -> None:
        above_zero("noise multiplier", self.noise_multiplier)
        fraction("sampling rate", self.sampling_rate)
        at_least_one("number of steps", self.steps)


def epsilon_of(
    phases: Sequence[SamplingPhase],
    delta: float,
    accountant: Accountant = "opacus-prv",
    resolution: float = 0.01,
) -> float:
    """Return an upper bound on the epsilon of all phases, composed.

    Args:
        phases: At least one.
        delta: In (0, 1).
        accountant: "rdp" is Rényi's (fast, a tenth too high, more at large epsilons),
            "prv" and "pld" compose privacy losses numerically (tight), "gaussian-exact"
            is exact and knows a sampling rate of 1 only.
        resolution: The bound of "opacus-prv" lies about that far above the truth, that
            of "dpa-pld" nearer, mostly: its losses are multiples of a hundredth of it.

    Raises:
        ConfigError: A value is outside its range, or the accountant does not apply.
    """
    probability("delta", delta)
    if not phases:
        raise ConfigError("There is nothing to account for. Pass at least one phase.")
    return _cached_epsilon(tuple(phases), delta, accountant, resolution)


def tightest_epsilon(
    phases: Sequence[SamplingPhase], delta: float, *, without_opacus: bool = False
) -> tuple[float, Accountant]:
    """Return the lowest epsilon that is quickly proved, and the accountant that did.

    Exact without sampling. Otherwise opacus' PRV accountant, at a resolution of 1 % of
    epsilon, or above an epsilon of 50 dp-accounting's PLD accountant, whose time and
    memory do not grow with epsilon if the resolution does; or dp-accounting's Rényi
    accountant where samples are drawn without replacement. Never more than
    Rényi's bound, and than without sampling, which only helps.

    ``without_opacus`` has dp-accounting in its place, a second opinion that lies within
    :data:`AGREEMENT`.
    """
    rdp: Accountant = "dpa-rdp" if without_opacus else "opacus-rdp"
    if all(phase.sampling_rate == 1 for phase in phases):
        return epsilon_of(phases, delta, "gaussian-exact"), "gaussian-exact"
    unsampled = gaussian_epsilon(_mu(phases), delta)
    if _without_replacement(phases):
        drawn = epsilon_of(phases, delta, "dpa-rdp")
        if drawn < unsampled:
            return drawn, "dpa-rdp"
        return unsampled, "gaussian-exact"
    if unsampled > COARSE_EPSILON:
        rough = epsilon_of(phases, delta, rdp)
        proofs: list[tuple[float, Accountant]]
        proofs = [(unsampled, "gaussian-exact"), (rough, rdp)]
        if min(rough, unsampled) > HUGE_EPSILON:
            return min(proofs)
        if min(rough, unsampled) > COARSE_EPSILON:
            # Rounding up each step's loss adds up to about the root of their number.
            steps = sum(phase.steps for phase in phases)
            resolution = 0.2 * min(rough, unsampled) / math.sqrt(steps)
            composed = epsilon_of(phases, delta, "dpa-pld", resolution)
            return min([*proofs, (composed, "dpa-pld")])
    if without_opacus:  # what it rounds grows with the steps
        resolution = min(0.01, 0.2 / math.sqrt(sum(phase.steps for phase in phases)))
        composed = epsilon_of(phases, delta, "dpa-pld", resolution)
        by: Accountant = "dpa-pld" if composed < unsampled else "gaussian-exact"
        return min(composed, unsampled), by
    tight = epsilon_of(phases, delta, "opacus-prv")
    if tight < 1:
        resolution = max(0.01 * (tight - 0.0095), 5e-5)
        tight = epsilon_of(phases, delta, "opacus-prv", resolution)
    if unsampled <= tight:
        return unsampled, "gaussian-exact"
    return tight, "opacus-prv"


@lru_cache(maxsize=4096)
def noise_multiplier_for(
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    accountant: Accountant | Literal["tightest"] = "tightest",
) -> float:
    """Return the noise multiplier that makes ``steps`` steps cost ``epsilon``.

    The accountant's epsilon at the result lies 0.1 to 1 % below the one asked for, or
    as near below it as the accountant has one; never above it. The thousandth is left
    for noise on a grid (:mod:`privaudit.privacy.grid_accounting`). It is kept in the
    cache folder: a search takes seconds, and whoever replays a run asks again. No
    certificate takes it: that has the noise as it was added.

    Ranges are those of :class:`SamplingPhase` and :func:`epsilon_of`; "tightest" is
    :func:`tightest_epsilon`, which certificates use.

    Raises:
        ConfigError: A value is outside its range, or this accountant proves no epsilon
            that low.

    Example:
        >>> round(noise_multiplier_for(1.0, 1e-5, 1.0, 100), 1)
        37.5
    """
    above_zero("epsilon", epsilon)
    probability("delta", delta)

    def cost(noise_multiplier: float) -> float:
        phases = [SamplingPhase(noise_multiplier, sampling_rate, steps)]
        if accountant == "tightest":
            return tightest_epsilon(phases, delta)[0]
        return epsilon_of(phases, delta, accountant)

    def search() -> float:
        guess = _first_guess(epsilon, delta, sampling_rate, steps)
        return _search(cost, epsilon, guess)

    if sampling_rate == 1:
        return search()
    asked = [epsilon, delta, sampling_rate, steps, accountant, bits_here()]
    of = [*asked, *map(version, ("opacus", "dp-accounting", "numpy", "scipy"))]
    return float(kept("noise", json.dumps(asked), of, search))


def _first_guess(
    epsilon: float, delta: float, sampling_rate: float, steps: int
) -> float:
    """Return what the central limit of many sampled steps would need: no bound.

    Source: Bu et al., "Deep learning with Gaussian differential privacy", Harvard Data
    Science Review 2 (2020), corollary 5.4, solved for the noise.
    """
    fraction("sampling rate", sampling_rate)
    at_least_one("number of steps", steps)
    mu = 1 / gaussian_multiplier(epsilon, delta)
    return 1 / math.sqrt(math.log1p((mu / sampling_rate) ** 2 / steps))


def _search(cost: Callable[[float], float], epsilon: float, guess: float) -> float:
    """Return a point where a falling ``cost`` is 0.1 to 1 % below ``epsilon``.

    Where the cost jumps over that 1 % (from one accountant to another, say), the point
    just behind the jump: farther below, and never above.
    """
    target = 0.995 * epsilon
    point, low, high = guess, None, None
    most = 0.999 * epsilon
    while not 0.99 * epsilon <= (spent := cost(point)) <= most:
        if spent > most:
            if low and point > 1.5 * low[0] and spent > 0.98 * low[1]:
                raise ConfigError(
                    f"An epsilon of {epsilon:g} was requested, but this accountant proves "
                    f"none below {spent:.3g}. Ask for more, or use another accountant."
                )
            low = (point, spent)
        else:
            high = (point, spent)
        if low and high:
            if high[0] <= 1.001 * low[0]:
                return high[0]
            point = _between(*low, *high, target)
        else:
            point *= min(max(spent / target, 0.5), 2.0)
    return point


def _between(
    low: float, low_cost: float, high: float, high_cost: float, target: float
) -> float:
    """Interpolate log-log: epsilon falls about as a power of the multiplier."""
    rise = math.log(low_cost) - math.log(max(high_cost, 1e-9))
    share = (math.log(low_cost) - math.log(target)) / rise
    share = min(max(share, 0.1), 0.9)  # keeps both ends moving
    return low * (high / low) ** share


@lru_cache(maxsize=4096)
def _cached_epsilon(
    phases: tuple[SamplingPhase, ...],
    delta: float,
    accountant: Accountant,
    resolution: float,
) -> float:
    if accountant != "dpa-rdp" and _without_replacement(phases):
        raise ConfigError(
            f'The accountant "{accountant}" was given samples without '
            'replacement, and only "dpa-rdp" supports those. Use it.'
        )
    with _known_warnings_silenced():
        if accountant == "gaussian-exact":
            return _gaussian_exact(phases, delta)
        library = _opacus if accountant.startswith("opacus") else _dp_accounting
        return library(phases, delta, accountant, resolution)


def _gaussian_exact(phases: Sequence[SamplingPhase], delta: float) -> float:
    for phase in phases:
        if phase.sampling_rate < 1:
            raise ConfigError(
                'The accountant "gaussian-exact" was given a sampling rate of '
                f'{phase.sampling_rate:g}, and supports 1 only. Use "opacus-prv".'
            )
    return gaussian_epsilon(_mu(phases), delta)


def _opacus(
    phases: Sequence[SamplingPhase], delta: float, name: Accountant, resolution: float
) -> float:
    tight = name == "opacus-prv"
    accountant = _opacus_accountants()[tight]()
    accountant.history = [
        (p.noise_multiplier, p.sampling_rate, p.steps) for p in phases
    ]
    options = {"eps_error": resolution} if tight else {}
    return float(accountant.get_epsilon(delta, **options))


_IMPORTING = Lock()  # no other thread may meet what stands in


@cache
def _opacus_accountants() -> tuple[Any, Any]:
    """Return opacus' Rényi and PRV accountants, by themselves unless it is imported.

    Its roots and optimizers, which take a second to import and no epsilon asks for, are
    stood in for meanwhile, and who imports opacus later has it whole. A step's loss at an
    order, which most of the time goes into, is kept: it is the same after every round.
    """
    names = ("opacus", "opacus.accountants", "opacus.optimizers")
    with _IMPORTING, suppress(ImportError):  # of another version
        found = None if "opacus" in sys.modules else find_spec("opacus")
        if found and found.submodule_search_locations:
            return _alone(names, [*found.submodule_search_locations])
    from opacus.accountants import PRVAccountant, RDPAccountant

    return RDPAccountant, PRVAccountant


def _alone(names: Sequence[str], folders: list[str]) -> tuple[Any, Any]:
    stand_ins = {name: ModuleType(name) for name in names}
    stand_ins[names[0]].__path__ = folders
    stand_ins[names[1]].__path__ = [f"{folder}/accountants" for folder in folders]
    vars(stand_ins[names[2]])["DPOptimizer"] = object  # in a signature
    sys.modules |= stand_ins
    try:
        of_renyi, of_losses = (import_module(f"{names[1]}.{n}") for n in ("rdp", "prv"))
        orders = vars(import_module(f"{names[1]}.analysis.rdp"))
        if loss := orders.get("_compute_log_a"):
            orders["_compute_log_a"] = lru_cache(maxsize=1 << 16)(loss)
        return of_renyi.RDPAccountant, of_losses.PRVAccountant
    finally:
        for name in [n for n in sys.modules if n.partition(".")[0] == "opacus"]:
            del sys.modules[name]


def _dp_accounting(
    phases: Sequence[SamplingPhase], delta: float, name: Accountant, resolution: float
) -> float:
    """Return Rényi's bound, or that of composed losses.

    Source: for a fixed number drawn from all, one of them replaced: Wang, Balle and
    Kasiviswanathan, "Subsampled Rényi differential privacy and analytical moments
    accountant", AISTATS 2019, theorem 27.
    """
    from dp_accounting import NeighboringRelation

    accountant: Any
    drawn = _without_replacement(phases)
    if name == "dpa-pld":
        from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

        accountant = PLDAccountant(value_discretization_interval=resolution / 100)
    else:
        from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant

        relation = NeighboringRelation.ADD_OR_REMOVE_ONE
        if drawn:
            relation = NeighboringRelation.REPLACE_ONE
        accountant = RdpAccountant(neighboring_relation=relation)
    for phase in phases:
        accountant.compose(_event(phase, drawn), phase.steps)
    return float(accountant.get_epsilon(delta))


def _event(phase: SamplingPhase, without_replacement: bool) -> Any:
    import dp_accounting as events

    event = events.GaussianDpEvent(phase.noise_multiplier)
    if without_replacement:
        drawn, of = phase.sampling_rate.as_integer_ratio()
        return events.SampledWithoutReplacementDpEvent(of, drawn, event)
    if phase.sampling_rate < 1:
        return events.PoissonSampledDpEvent(phase.sampling_rate, event)
    return event


def _without_replacement(phases: Sequence[SamplingPhase]) -> bool:
    """Say whether any phase is sampled so; all of them must be then, or unsampled."""
    drawn = {phase.sampling for phase in phases if phase.sampling_rate < 1}
    if len(drawn) > 1:
        raise ConfigError(
            "Poisson samples and samples without replacement were to be composed, and "
            "the two hold for unlike adjacencies. Account for each by itself."
        )
    return "without-replacement" in drawn


def _mu(phases: Sequence[SamplingPhase]) -> float:
    return math.sqrt(sum(phase.steps / phase.noise_multiplier**2 for phase in phases))


@contextmanager
def _known_warnings_silenced() -> Iterator[None]:
    """Silence what the two libraries say of orders that don't change the bound."""
    log = logging.getLogger("absl")
    log.addFilter(_is_unknown)
    try:
        with warnings.catch_warnings():
            for known in ("Optimal order is the", "divide by zero", "overflow encount"):
                warnings.filterwarnings("ignore", message=known)
            yield
    finally:
        log.removeFilter(_is_unknown)


def _is_unknown(record: logging.LogRecord) -> bool:
    return "_compute_log_a" not in str(record.msg)
