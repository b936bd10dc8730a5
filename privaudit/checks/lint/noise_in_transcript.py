"""Does a recording hold the noise that it declares?

What a client sends is its training and noise, and nobody can part the two. But whatever
the training was, noise that is independent of it makes a message no shorter than the
noise by itself is (chi-square), the difference of two messages no shorter than that of
two noises, and leaves few numbers unmoved. The server's noise is there itself: the next
broadcast less the mean of uploads. It is new in each round, normal, larger than the
steps of the numbers it lies on, and follows from no seed that somebody would try.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, pairwise

import numpy as np
import torch
from torch import Tensor

from privaudit.checks.lint.evidence import Evidence
from privaudit.checks.lint.finding import Found, rule
from privaudit.checks.lint.guessable_seeds import FIRST, find_seed
from privaudit.checks.lint.recorded_uploads import (
    COMPARED,
    Numbers,
    ServersNoise,
    Upload,
    recorded_uploads,
    servers_noise,
    weights_of,
)
from privaudit.privacy.events import MechanismEvent

LEVEL = 1e-6
"""Chance that one of the questions below calls noise as declared anything else."""
NEAR = 1e-3  # standard deviations that count as unmoved
FEWEST = 8  # numbers whose shape says something


@dataclass(frozen=True)
class NoisedUpload:
    """An upload that is said to hold noise.

    Attributes:
        std: Of the noise on each number, as declared.
    """

    upload: Upload
    std: float
    event: MechanismEvent

    @property
    def where(self) -> str:
        """Round and client, in words."""
        return f"round {self.upload.index}, {self.upload.sender}"

    @property
    def moves(self) -> Mapping[str, Numbers]:
        """By tensor."""
        return self.upload.moves

    @property
    def in_own_units(self) -> bool:
        """Whether noise of steps is declared, whose learning rate nothing here knows."""
        return self.event.unit == "record" and self.event.steps > 1


@rule
def noise_in_transcript(evidence: Evidence) -> Found:
    """Do a recording's messages hold the noise that it declares, new each time?"""
    held, noises = list(_held(evidence)), servers_noise(evidence)
    lost = [*islice(_lost(noises), 1)]
    yield from _too_short(held)
    for sentence in (
        *islice(_too_alike(held), 1),
        *islice(_unmoved(held), 1),
        *islice(_unevenly_added(evidence), 1),
        *lost,
        *_reused(noises),
        *islice(_guessed(held, noises), 1),
        *islice(() if lost else _misshapen(noises), 1),
    ):
        yield "error", sentence


def _held(evidence: Evidence) -> Iterator[NoisedUpload]:
    for upload in recorded_uploads(evidence):
        events = [evidence.event_of(upload.index, r) for r in ("upload", "global")]
        for event in filter(None, events):
            if event.noise_at not in ("client", "distributed"):
                continue
            parts = event.parties if event.noise_at == "distributed" else 1
            share = math.sqrt(upload.voices / parts)
            std = event.noise_multiplier * event.clip_norm * share
            if std > 0 and upload.moves:
                yield NoisedUpload(upload, std, event)


def _lower_tail(square: float, values: int) -> float:
    from scipy.stats import chi2

    return float(chi2.cdf(square, values))


def _too_short(held: Sequence[NoisedUpload]) -> Found:
    """Say where an upload, or one tensor of it, is shorter than its noise can be."""
    found = [
        (_lower_tail(square / one.std**2, values), one, name, square, values)
        for one in held
        for name, square, values in _squares(one.moves)
    ]
    short = [entry for entry in found if entry[0] * len(found) < LEVEL]
    if not short:
        return
    _, one, name, square, values = min(short, key=lambda entry: entry[0])
    size = math.sqrt(square / values) / one.std
    text = (
        f"{len({entry[1].where for entry in short})} of {len(held)} uploads are too "
        f"small to hold the noise that is declared: {name} of {one.where} has "
        f"{size:.3g} times its standard deviation, training included (n = {values}, "
        f"chi-square, level {LEVEL:g} over all)."
    )
    if one.in_own_units:
        text += (
            " Either it is not there, or the clip norm is not in units of what is sent, "
            "so that nothing can be said of it."
        )
    yield ("warning" if one.in_own_units else "error"), text


def _squares(moves: Mapping[str, Numbers]) -> Iterator[tuple[str, float, int]]:
    if len(moves) > 1:
        whole = [(move.square, move.values) for move in moves.values()]
        yield "all", math.fsum(s for s, _ in whole), sum(n for _, n in whole)
    for name, move in moves.items():
        yield name, move.square, move.values


def _too_alike(held: Sequence[NoisedUpload]) -> Iterator[str]:
    """Say where two uploads differ by less than two noises do."""
    pairs = [
        (one, other, float(difference.square().sum()), len(difference))
        for one, other in _pairs([one for one in held if not one.in_own_units])
        for difference in _differences(one.moves, other.moves)
    ]
    alike = [
        (one, other, math.sqrt(square / values / (one.std**2 + other.std**2)))
        for one, other, square, values in pairs
        if _lower_tail(square / (one.std**2 + other.std**2), values) * len(pairs)
        < LEVEL
    ]
    if alike:
        one, other, size = min(alike, key=lambda entry: entry[2])
        yield (
            f"Two uploads differ by {size:.3g} times what two noises of their own do "
            f"({one.where}; {other.where}): the same noise is in both, or none."
        )


def _pairs(held: Sequence[NoisedUpload]) -> Iterator[tuple[NoisedUpload, NoisedUpload]]:
    """Yield uploads that follow each other: of one round, and of one client."""
    rounds, clients = defaultdict(list), defaultdict(list)
    for one in held:
        rounds[one.upload.index].append(one)
        clients[one.upload.sender].append(one)
    for some in (*rounds.values(), *clients.values()):
        yield from pairwise(some)


def _differences(
    one: Mapping[str, Numbers], other: Mapping[str, Numbers]
) -> Iterator[Tensor]:
    for name, move in one.items():
        if name in other and len(other[name].first) == len(move.first):
            yield move.first - other[name].first


def _unmoved(held: Sequence[NoisedUpload]) -> Iterator[str]:
    """Say where more numbers stay than noise would leave."""
    from scipy.stats import binom, norm

    chance = 2 * norm.cdf(NEAR) - 1
    for one in held:
        near = 0.0 if one.in_own_units else NEAR * one.std
        first = torch.cat([move.first for move in one.moves.values()])
        unmoved = int((first.abs() <= near).sum())
        if binom.sf(unmoved - 1, len(first), chance) * len(held) < LEVEL:
            yield (
                f"{unmoved} of {len(first)} numbers of an upload are moved by "
                f"{near:.2g} at most ({one.where}): there is no noise on them."
            )


def _unevenly_added(evidence: Evidence) -> Iterator[str]:
    """Say where clients' noises are counted as equal, and weigh unequally."""
    recorded = {upload.index for upload in recorded_uploads(evidence)}
    for index in sorted(recorded & evidence.uploads.keys()):
        event = evidence.event_of(index, "global")
        weights = weights_of(evidence.uploads[index])
        if event is None or event.noise_at not in ("client", "distributed"):
            continue
        counted = sum(weight**2 for weight in weights) / max(weights) ** 2
        if event.noise_multiplier and counted < event.parties * (1 - 1e-3):
            yield (
                f"The noises of {event.parties} clients are said to add up, and in round "
                f"{index} they weigh unequally: beside what the heaviest sends there is "
                f"the noise of {counted:.3g}. Declare it as each upload's own."
            )


def _lost(noises: Sequence[ServersNoise]) -> Iterator[str]:
    """Say where the server's noise is smaller than the steps of the numbers."""
    for noise in noises:
        for name, step in noise.steps.items():
            if 0 < noise.std < step / 2:
                yield (
                    f"The server's noise on {name} of round {noise.index} is declared as "
                    f"{noise.std / step:.2g} of the step between neighbouring numbers "
                    "that are sent: rounding takes it away."
                )


def _reused(noises: Sequence[ServersNoise]) -> Iterator[str]:
    """Say where the noise of two rounds is not independent."""
    by_size = defaultdict(list)
    for noise in noises:
        parts = [drawn.first for _, drawn in sorted(noise.tensors.items())]
        by_size[sum(map(len, parts))].append((noise.index, torch.cat(parts)[:COMPARED]))
    for some in by_size.values():
        rows = torch.stack([row for _, row in some])
        rows = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-300)
        size, alike = rows.shape[1], (rows @ rows.T).numpy()
        pairs = list(combinations(range(len(some)), 2))
        if not pairs or size < 2:
            continue
        place = max(pairs, key=lambda pair: abs(alike[pair]))
        if correlation_p(alike[place], size) * len(pairs) < LEVEL:
            one, other = (some[i][0] for i in place)
            yield (
                f"The server's noise of rounds {one} and {other} correlates at "
                f"{alike[place]:.3f} (n = {size}): whoever sees both broadcasts subtracts "
                "it. Draw it anew in each round."
            )


def correlation_p(correlation: float, values: int) -> float:
    """Return how rare a cosine of two independent draws of 2 values or more is, two-sided.

    Exact where one of them is normal, of mean 0: its direction is uniform, and the
    square of the cosine is of the Beta distribution (1/2, (values - 1)/2).

    Example:
        >>> round(correlation_p(0.5, 3), 6)  # on a sphere the cosine is uniform
        0.5
    """
    from scipy.stats import beta

    return float(beta.sf(min(correlation**2, 1.0), 0.5, (values - 1) / 2))


def _misshapen(noises: Sequence[ServersNoise]) -> Iterator[str]:
    """Say where the server's noise is not normal, whatever its size."""
    from scipy.stats import kstest

    drawn = [
        (noise, name, numbers.first.numpy())
        for noise in noises
        for name, numbers in noise.tensors.items()
        if len(numbers.first) >= FEWEST and numbers.square > 0
    ]
    for noise, name, values in drawn:
        spread = values / math.sqrt(float((values**2).mean()) or 1.0)
        if kstest(spread, "norm").pvalue * len(drawn) < LEVEL:
            yield (
                f"The server's noise on {name} of round {noise.index} is not normal "
                f"(Kolmogorov-Smirnov, n = {len(values)}, {len(np.unique(values))} "
                "different values): what the accountant counts holds for Gaussian noise."
            )


def _guessed(
    held: Sequence[NoisedUpload], noises: Sequence[ServersNoise]
) -> Iterator[str]:
    """Say where noise is what a usual generator draws after a small seed."""
    drawn = [
        (f"round {noise.index}, server", numbers.first)
        for noise in noises
        for numbers in noise.tensors.values()
    ]
    drawn += [(one.where, move.first) for one in held for move in one.moves.values()]
    looked_at = [(where, first) for where, first in drawn if len(first) >= FIRST]
    for where, first in looked_at:
        seed = find_seed(first.numpy(), LEVEL / len(looked_at), correlation_p)
        if seed:
            yield (
                f"The noise of {where} is what {seed} draws: whoever tries seeds "
                "subtracts it. Draw it from the system's randomness."
            )
