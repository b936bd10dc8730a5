"""Does another package's trainer do what its mechanisms say? One round, many times.

A mechanism that is declared bounds how well anybody tells two neighbouring data sets
apart: of effective noise multiplier z by 2 Phi(1 / 2z) - 1, the distance in total
variation, whatever the records are. So one round is played hundreds of times with a record
and without it, under keys of their own, and whoever sees a view guesses which it was. A
better guess than the mechanism allows refutes it, be it for too little noise, a clip that
does not hold, or a tensor that was left out.

The direction in which to look is known: the same key with and without the record has the
same noise, which drops out of the difference.

Source: Nasr et al., "Adversary instantiation: lower bounds for differentially private
machine learning", IEEE S&P 2021; Dong, Roth and Su, "Gaussian differential privacy",
J. R. Stat. Soc. B 2022, for the bounds.
"""

import math
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from jaxtyping import Float

from privaudit.checks.plugin_bench import PILOT, SIDES, Rows, TrialBench
from privaudit.core.seeds import Seeds
from privaudit.core.streams import KEY
from privaudit.federated.trainer import Events, Task, Trainer
from privaudit.privacy.certificate import CertifiedView, effective_noise
from privaudit.privacy.events import MechanismEvent

LEVEL = 1e-6
"""Chance that a trainer that does as it says is refuted, in all of a trial."""
MOST, FEWEST = 1000, 100  # runs with the record, and as many without
SECONDS = 30.0
SLOW = (
    1 / 36
)  # of a trial's time, for one round by itself: side by side they are quicker


@dataclass(frozen=True)
class Trial:
    """What a trial found.

    Attributes:
        faults: The first that was found, in a sentence; none where the trainer may do
            as it says.
        runs: With the record, and as many without.
        views: Whose guesses were counted.
        too_slow: Whether a single round took so long that no trial was made.
    """

    faults: Sequence[str]
    runs: int
    views: Sequence[CertifiedView]
    seconds: float
    too_slow: bool = False

    def __str__(self) -> str:
        """Say what was found, in a sentence."""
        if self.faults:
            return self.faults[0]
        if self.too_slow:
            return (
                f"One round of two clients takes {self.seconds:.1f} s, too long to play "
                "hundreds: the mechanisms were not tried out. Give the trial more time."
            )
        if not self.runs:
            return (
                "No mechanism with noise counts in any view: nothing can be tried out."
            )
        return (
            f"{self.runs} rounds with a record and {self.runs} without it show no more "
            f"than the mechanisms allow, to {', '.join(self.views)} ({self.seconds:.0f} "
            "s). That proves nothing: epsilon stays declared."
        )


def try_mechanisms(
    trainer: Trainer,
    task: Task,
    *,
    seconds: float = SECONDS,
    most: int = MOST,
    keys: Seeds | None = None,
) -> Trial:
    """Play one round many times, and hold what is seen against what is declared.

    Args:
        trainer: The trainer of another package.
        task: Its public records stand in for clients' records.
        seconds: What it may take, about: fewer runs find less.
        most: Runs with a record, and as many without; at least FEWEST are made.
        keys: Keys of all runs; by default the system draws them, and nobody knows what
            a trial will ask.

    Raises:
        TooFewRecordsError: There are not enough public records.
    """
    began = time.monotonic()
    bench = TrialBench(trainer, task, keys or Seeds.of_key(secrets.token_bytes(KEY)))
    events, once = bench.events(), time.monotonic() - began
    if once > SLOW * seconds:
        return Trial((), 0, (), once, too_slow=True)
    noised = [event for event in events if event.noise_multiplier > 0]
    if not noised:
        return Trial((), 0, (), time.monotonic() - began)
    views = [view for view in get_args(CertifiedView) if _allowed(events, view) < 1]
    questions = (bench.impure(), bench.without_key(views), bench.repeated(views))
    fault = next((said for found in questions for said in found), "")
    if fault or not views:
        faults = (fault,) if fault else ()
        return Trial(faults, 0, views, time.monotonic() - began)
    return _guessed(bench, events, views, began, (seconds, most))


def _guessed(
    bench: TrialBench,
    events: Events,
    views: Sequence[CertifiedView],
    began: float,
    limits: tuple[float, int],
) -> Trial:
    """Let every view guess, of every pair of neighbours, until a guess is too good."""
    seconds, runs = limits
    pairs = bench.pairs(events)
    level = LEVEL / (2 * len(views) * len(pairs))  # two questions each
    for left, pair in zip(range(len(pairs), 0, -1), pairs, strict=True):
        started = time.monotonic()
        pilot = [bench.play(pair.shards[side], range(PILOT)) for side in SIDES]
        each = (time.monotonic() - started) / PILOT
        rest = (seconds - (time.monotonic() - began)) / left
        runs = int(min(runs, max(FEWEST, rest / max(each, 1e-9))))
        judged = range(PILOT, PILOT + runs)
        seen = [bench.play(pair.shards[side], judged) for side in SIDES]
        for view in views:
            allowed = _allowed(events, view, pair.twice)
            first, other = ([found[view] for found in part] for part in (pilot, seen))
            if not first[0].shape[1]:
                continue
            told = _told_apart(first, other, level)
            if told.least > allowed or told.least_apart > _distance(allowed):
                said = _sentence(view, pair.name, told, allowed, runs)
                return Trial((said,), runs, views, time.monotonic() - began)
    return Trial((), runs, views, time.monotonic() - began)


@dataclass(frozen=True)
class _Told:
    """How well runs with and without a record are told apart.

    Attributes:
        share: Right guesses of both kinds, less 1: at most the total variation.
        least: What is left of it when chance is taken off.
        apart: Distance of the two means in standard deviations.
        least_apart: Likewise; 0 where the scores are not normal.
    """

    share: float
    least: float
    apart: float
    least_apart: float


def _told_apart(pilot: Sequence[Rows], seen: Sequence[Rows], level: float) -> _Told:
    """Look along the direction that the pilot's runs tell; judge by the others.

    Each holds rows with and without the record, of one key in one place; the two have
    different keys. The level is the chance that what is left when chance is taken off
    is too much.
    """
    from scipy.stats import norm

    moved, spread = (pilot[0] - pilot[1]).mean(dim=0), pilot[1].var(dim=0)
    along = moved / (spread + (float(spread.max()) * 1e-12 or 1.0))
    along = along / along.norm().clamp(min=1e-300)
    threshold = float((torch.cat(list(pilot)) @ along).mean())
    inside, outside = ((rows @ along).numpy() for rows in seen)
    right = [int((inside > threshold).sum()), int((outside > threshold).sum())]
    share = (right[0] - right[1]) / len(inside)
    least = _least(right[0], right[1], len(inside), level)
    spread_of = math.sqrt((inside.var(ddof=1) + outside.var(ddof=1)) / 2)
    differences = inside - outside  # of one key: noise drops out where it may
    if spread_of <= 1e-9 * abs(differences.mean()):
        return _Told(share, least, math.inf if share > 0 else 0.0, 0.0)
    apart = float(differences.mean()) / spread_of
    error = float(differences.std(ddof=1)) / spread_of / math.sqrt(len(inside))
    error += apart / math.sqrt(2 * len(inside))  # of the deviation: keys are shared
    is_normal = all(_is_normal(side) for side in (inside, outside))
    least_apart = (apart - float(norm.isf(level)) * error) * is_normal
    return _Told(share, least, apart, least_apart)


def _least(inside: int, outside: int, runs: int, level: float) -> float:
    """Return a lower bound on the difference of two rates (Clopper-Pearson, halved)."""
    from scipy.stats import beta

    low = beta.ppf(level / 2, inside, runs - inside + 1) if inside else 0.0
    high = beta.isf(level / 2, outside + 1, runs - outside) if outside < runs else 1.0
    return float(low - high)


def _is_normal(scores: Float[np.ndarray, " runs"]) -> bool:
    from scipy.stats import kstest

    scale = scores.std(ddof=1)
    return scale > 0 and bool(
        kstest((scores - scores.mean()) / scale, "norm").pvalue > 0.01
    )


def _allowed(
    events: Sequence[MechanismEvent], view: CertifiedView, twice: bool = False
) -> float:
    """Return how well any two neighbours may be told apart in a view; 1: wholly."""
    seen = [
        e for e in events if view == "released" or e.release != "local" or e.per_record
    ]
    noises = [effective_noise(event, view) for event in seen]
    if not seen or not all(noises):
        return 1.0
    apart = math.sqrt(sum(e.steps / z**2 for e, z in zip(seen, noises, strict=True)))
    whole = _variation((1 + twice) * apart)
    if len({(e.sampling_rate, e.steps) for e in seen}) > 1 or twice:
        return whole
    if seen[0].sampling != "poisson":
        return whole
    once = _variation(math.sqrt(sum(z**-2 for z in noises)))
    return min(whole, seen[0].steps * seen[0].sampling_rate * once)


def _variation(apart: float) -> float:
    """Return the total variation of two normal laws so many deviations apart."""
    return math.erf(apart / (2 * math.sqrt(2)))


def _distance(variation: float) -> float:
    """Return how far apart normal laws of a total variation are."""
    from scipy.stats import norm

    return 2 * float(norm.ppf((1 + min(variation, 1 - 1e-15)) / 2))


def _sentence(view: str, name: str, told: _Told, allowed: float, runs: int) -> str:
    return (
        f"In the view {view}, {runs} rounds with and {runs} without {name} are told apart "
        f"in {100 * (1 + told.share) / 2:.1f} % of all cases, {told.apart:.3g} "
        f"standard deviations from each other; what is declared allows "
        f"{100 * (1 + allowed) / 2:.1f} %, or {_distance(allowed):.3g} (level {LEVEL:g}). "
        "The noise is too small, not on everything, or the clip does not hold."
    )
