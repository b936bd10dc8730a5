"""Trial of another package's trainer: does it do what its mechanisms say?

A mechanism that is declared bounds how well anybody tells two neighbouring data sets
apart: of effective noise multiplier z by 2 Phi(1 / 2z) - 1, the distance in total
variation, whatever the records are. So one round is played hundreds of times with a
record and without it, under keys of their own, and whoever sees a view guesses which it
was. A better guess than the mechanism allows refutes it, be it for too little noise, a
clip that does not hold, or a tensor that was left out.

The direction in which to look is known: the same key with and without the record has
the same noise, which drops out of the difference. Federations side by side draw from
one key under names of their own, so that hundreds of them cost little more than one.

Source: Nasr et al., "Adversary instantiation: lower bounds for differentially private
machine learning", IEEE S&P 2021; Dong, Roth and Su, "Gaussian differential privacy", J.
R. Stat. Soc. B 2022, for the bounds.
"""

import math
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import beta, kstest, norm
from torch import Tensor

from privaudit.core.errors import TooFewRecordsError
from privaudit.core.seeds import KEY, Seeds
from privaudit.core.tensors import Tensors
from privaudit.federation.rounds import Federation, give_away, run_round
from privaudit.federation.trainer import Events, Records, Task, Trainer
from privaudit.privacy.certificate import CertifiedView, effective_noise, is_seen
from privaudit.privacy.events import MechanismEvent

PILOT = 32  # runs that tell the direction
AT_ONCE = 128  # federations side by side
ALIKE, LEAST_COMPARED, KEYS = 0.9, 40, 32
"""Correlation of so many independent normal values is so large in 1e-13 of all cases."""
RECORDS = 6  # of each of two clients
LOUD = 50.0  # times a real picture's features: of a record that any clip binds
TARGET, BYSTANDER = "client-0", "client-1"
Rows = Float[Tensor, "_ _"]  # a run and a number
Side = Literal["with", "without"]
SIDES: tuple[Side, Side] = ("with", "without")


@dataclass(frozen=True)
class Pair:
    """Two data sets of the target that are neighbours, or are twice.

    Attributes:
        name: What tells them apart, in words.
        shards: The target's records on either side.
        twice: Whether a neighbour of a neighbour stands on the other side.
    """

    name: str
    shards: Mapping[Side, Records]
    twice: bool = False


@dataclass(frozen=True)
class TrialBench:
    """Two clients with a few public records, and a round of theirs under many keys."""

    trainer: Trainer
    task: Task
    keys: Seeds
    first: dict[str, Events] = field(default_factory=dict)

    @property
    def shards(self) -> tuple[Records, Records, Records]:
        """The target's, the bystander's, and those that are left."""
        rows = torch.arange(len(self.task.public))
        parts = rows.tensor_split((RECORDS, 2 * RECORDS))
        if len(rows) < 2 * RECORDS + 2:
            raise TooFewRecordsError(
                f"A trial of a trainer's mechanisms takes {2 * RECORDS + 2} public "
                f"records, and there are {len(rows)}. Give more, by --public-share."
            )
        one, other, rest = (self.task.public.pick(part) for part in parts)
        return one, other, rest

    def events(self) -> Events:
        """Return the mechanisms of a round."""
        if "events" not in self.first:
            target, *_ = self.shards
            self.play(target, range(1))
        return self.first["events"]

    def play(
        self, target: Records, some: range, *, index: int = 0, keys: Seeds | None = None
    ) -> dict[CertifiedView, Rows]:
        """Play a round from the start in federations side by side; return all views.

        Clients of federations side by side draw from one key under names of their own.
        """
        parts = [
            self._play(target, some[first : first + AT_ONCE], index, keys or self.keys)
            for first in range(0, len(some), AT_ONCE)
        ]
        return {view: torch.cat([part[view] for part in parts]) for view in parts[0]}

    def _play(
        self, target: Records, some: range, index: int, keys: Seeds
    ) -> dict[CertifiedView, Rows]:
        _, bystander, _ = self.shards
        sizes = {TARGET: 2 * RECORDS, BYSTANDER: 2 * RECORDS}
        rounds = max(self.task.rounds, index + 1)  # noise may be set by their number
        task = replace(self.task, candidates=sizes, rounds=rounds)
        shards = {TARGET: target, BYSTANDER: bystander}
        begin = partial(Federation.begin, self.trainer, task, shards, Seeds(0))
        federations = [begin(f"run-{run}", keys.child("trial", run)) for run in some]
        records = run_round(self.trainer, task, federations, index)
        self.first.setdefault("events", records[0].events)
        views: dict[CertifiedView, list[Tensor]] = {
            v: [] for v in get_args(CertifiedView)
        }
        for federation, record in zip(federations, records, strict=True):
            sent = {m.sender: m.tensors for m in record.messages if m.is_update}
            views["server"].append(_row(sent.get(TARGET, {})))
            views["server-aggregate"].append(_sum_of(list(sent.values())))
            models, messages = give_away(self.trainer, task, federation, index + 1)
            down = [m for m in messages if m.receiver == BYSTANDER]
            views["peer"].append(_row(down[0].tensors if down else {}))
            views["released"].append(_row(models[TARGET]))
        return {view: torch.stack(rows) for view, rows in views.items()}

    def impure(self) -> Iterator[str]:
        """Say whether the same key gives something else: then noise is not its own."""
        target, *_ = self.shards
        found = []
        for seed in (1, 2):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                state = np.random.get_state()  # noqa: NPY002 # what a trainer may draw from
                np.random.seed(seed)  # noqa: NPY002
                found.append(self.play(target, range(2)))
                np.random.set_state(state)  # noqa: NPY002
        if any(
            not torch.allclose(found[0][v], found[1][v], atol=1e-6) for v in found[0]
        ):
            yield (
                "One round under one key gives different results: something is drawn "
                "from a generator that all of a process share, and not from "
                "Round.secret, so that nothing says what the noise is."
            )

    def without_key(self, views: Sequence[CertifiedView]) -> Iterator[str]:
        """Say where another key changes nothing in a view that noise is to hide."""
        target, *_ = self.shards
        one, other = (
            self.play(target, range(2), keys=self.keys.child("another key", n))
            for n in range(2)
        )
        for view in views:
            if one[view].numel() and torch.allclose(one[view], other[view], atol=1e-9):
                yield (
                    f"What the view {view} holds is the same under every secret key: "
                    "there is no noise in it, or it follows from the public seed."
                )
                return

    def repeated(self, views: Sequence[CertifiedView]) -> Iterator[str]:
        """Say where the noise of two rounds, or of two clients, is the same."""
        target, *_ = self.shards
        one, other = (self.play(target, range(PILOT), index=n) for n in range(2))
        for view in views:
            alike = _alike(one[view], other[view])
            if abs(alike) > ALIKE:
                yield (
                    f"The noise of two rounds correlates at {alike:.2f} in the view "
                    f"{view}: whoever sees both subtracts it."
                )
        if "server" in views:
            alike = _alike(*self._uploads_of_two(target))
            if abs(alike) > ALIKE:
                yield (
                    f"The noise of two clients correlates at {alike:.2f}: whoever sees "
                    "both uploads subtracts it. Draw it under the client's name."
                )

    def _uploads_of_two(self, target: Records) -> tuple[Rows, Rows]:
        """Return both clients' uploads under keys of their own: one run each."""
        keys = [self.keys.child("key of two", n) for n in range(KEYS)]
        seen = [self.play(target, range(1), keys=key) for key in keys]
        first = torch.cat([views["server"] for views in seen])
        total = torch.cat([views["server-aggregate"] for views in seen])
        return first, total - first if total.shape == first.shape else torch.zeros(0)

    def pairs(self, events: Events) -> list[Pair]:
        """Return neighbours: with the record that shows most, of each kind there is."""
        target, _, rest = self.shards
        event = next(e for e in events if e.noise_multiplier > 0)
        replaced = event.adjacency == "replace-one"
        found = []
        for name, one, other in self._records(rest):
            if event.unit == "client":
                whole = torch.zeros(len(target), dtype=torch.long)
                sides: dict[Side, Records] = {
                    "with": one.pick(whole),
                    "without": other.pick(whole),
                }
                found.append(Pair(f"{name} alone", sides, twice=not replaced))
            else:
                base = Records.joined([target, other]) if replaced else target
                joined = Records.joined([target, one])
                found.append(Pair(name, {"with": joined, "without": base}))
        is_alone = event.unit == "record" and not replaced
        if is_alone and self.task.kind == "classification":
            # A batch's mean that is clipped, in place of each record, turns round.
            beside = Records.joined([target, other])
            louder = Records.joined([beside, replace(one, features=2 * one.features)])
            name = "a record that outweighs its opposite"
            found.append(Pair(name, {"with": louder, "without": beside}))
        return found

    def _records(self, rest: Records) -> Iterator[tuple[str, Records, Records]]:
        """Yield a record by its name, and one that is unlike it."""
        first = rest.pick(torch.tensor([0]))
        others = (rest.labels != first.labels).nonzero().flatten()
        unlike = rest.pick(others[:1] if len(others) else torch.tensor([-1]))
        yield "a record", first, unlike
        if self.task.kind == "classification":
            loud = replace(first, features=LOUD * first.features)
            opposed = replace(first, features=-LOUD * first.features)
            yield "a record that any clip binds", loud, opposed


def _alike(one: Rows, other: Rows) -> float:
    """Return how rows of the same runs correlate, less what all runs share."""
    if one.shape != other.shape or one.numel() < LEAST_COMPARED:
        return 0.0
    rows = [found - found.mean(dim=0) for found in (one, other)]
    rows = [row / row.norm(dim=0).clamp(min=1e-300) for row in rows]
    lengths = float(rows[0].norm() * rows[1].norm())
    return float((rows[0] * rows[1]).sum()) / lengths if lengths else 0.0


def _row(tensors: Tensors) -> Tensor:
    parts = [t.double().flatten() for _, t in sorted(tensors.items())]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def _sum_of(uploads: Sequence[Tensors]) -> Tensor:
    """Return the sum of uploads, as a row."""
    rows = [_row(upload) for upload in uploads]
    same = len({len(row) for row in rows}) == 1
    return torch.stack(rows).sum(dim=0) if same else torch.zeros(0).double()


LEVEL = 1e-6
"""Chance that a trainer that does as it says is refuted, in all of a trial."""
MOST, FEWEST = 1000, 100  # runs with the record, and as many without
SECONDS = 30.0
# Of a trial's time, for one round by itself: side by side they are quicker.
SLOW = 1 / 36


@dataclass(frozen=True)
class Trial:
    """What a trial found.

    Attributes:
        faults: The first that was found, in a sentence; none where the trainer may do
            as it says.
        runs: With the record, and as many without.
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
    low = beta.ppf(level / 2, inside, runs - inside + 1) if inside else 0.0
    high = beta.isf(level / 2, outside + 1, runs - outside) if outside < runs else 1.0
    return float(low - high)


def _is_normal(scores: Float[np.ndarray, " runs"]) -> bool:
    scale = scores.std(ddof=1)
    return scale > 0 and bool(
        kstest((scores - scores.mean()) / scale, "norm").pvalue > 0.01
    )


def _allowed(
    events: Sequence[MechanismEvent], view: CertifiedView, twice: bool = False
) -> float:
    """Return how well any two neighbours may be told apart in a view; 1: wholly."""
    seen = [event for event in events if is_seen(event, view)]
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
    return 2 * float(norm.ppf((1 + min(variation, 1 - 1e-15)) / 2))


def _sentence(view: str, name: str, told: _Told, allowed: float, runs: int) -> str:
    return (
        f"In the view {view}, {runs} rounds with and {runs} without {name} are told apart "
        f"in {100 * (1 + told.share) / 2:.1f} % of all cases, {told.apart:.3g} "
        f"standard deviations from each other; what is declared allows "
        f"{100 * (1 + allowed) / 2:.1f} %, or {_distance(allowed):.3g} (level {LEVEL:g}). "
        "The noise is too small, not on everything, or the clip does not hold."
    )
