"""Rules of noise: is it as large as claimed, and as a recording declares?

What a client sends is its training and noise, and nobody can part the two. But whatever
the training was, noise that is independent of it makes a message no shorter than the
noise by itself is (chi-square), the difference of two messages no shorter than that of
two noises, and leaves few numbers unmoved. The server's noise is there itself: the next
broadcast less the mean of uploads. It is new in each round, normal, larger than the
steps of the numbers it lies on, and follows from no seed that somebody would try.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, islice, pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import beta, binom, chi2, kstest, norm
from torch import Tensor

from privaudit.checks.lint.accounting import event_unit
from privaudit.checks.lint.evidence import Evidence, Found, Severity, rule
from privaudit.checks.lint.recorded_uploads import (
    COMPARED,
    Numbers,
    ServersNoise,
    Upload,
    is_recorded,
    recorded_uploads,
    servers_noise,
    weights_of,
)
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Tensors
from privaudit.federation.trainer import ClientId, Round
from privaudit.privacy.events import MechanismEvent, Release
from privaudit.privacy.secure_aggregation.ideal_sum import secure_sum
from privaudit.statistics.comparisons import holm
from privaudit.tuning.prompts.private_training import PrivateTrainer

FIRST = 16
"""Numbers of a draw that tell its seed. Torch draws so many at once, and the last of a
number that is no multiple of it once more: of less than two such blocks all count."""
SEEDS = (*range(1024), 1234, 2020, *range(2021, 2031), 12345, 31337, 123456)


GENERATORS: dict[str, Callable[[int, int], np.ndarray]] = {
    "torch.manual_seed": lambda seed, size: torch.randn(
        size, generator=torch.Generator().manual_seed(seed), dtype=torch.float32
    ).numpy(),
    # Flower's
    "numpy.random.seed": lambda seed, size: np.random.RandomState(seed).standard_normal(
        size
    ),
    "numpy.random.default_rng": lambda seed, size: np.random.default_rng(
        seed
    ).standard_normal(size),
}
"""What a generator draws first after a seed: so many values."""


@lru_cache
def _draws(generator: str, size: int) -> np.ndarray:
    """Return what a generator draws after each seed, each of length 1."""
    count = FIRST if size == 2 * FIRST else size
    drawn = [GENERATORS[generator](seed, size)[:count] for seed in SEEDS]
    rows = np.array(drawn).astype(float)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def find_seed(values: np.ndarray, level: float) -> str:
    """Return the call after which a generator draws these values, but for their scale.

    Empty where none of the known ones does. Noise that comes second behind another draw
    is not found, nor is any other seed.

    Args:
        values: FIRST at least, as they were drawn, perhaps beside something else.
        level: Chance to name a seed for values that are normal and independent.
    """
    size = min(len(values), 2 * FIRST)
    first = values[: FIRST if size == 2 * FIRST else size]
    length = float(np.linalg.norm(first))
    if not length:
        return ""
    tried = len(GENERATORS) * len(SEEDS)
    for name in GENERATORS:
        cosines = _draws(name, size) @ (first / length)
        best = int(np.abs(cosines).argmax())
        if correlation_p(float(cosines[best]), len(first)) * tried < level:
            return f"{name}({SEEDS[best]})"
    return ""


@runtime_checkable
class ShowsNoise(Protocol):
    """A trainer that finds the server's noise itself, between two broadcasts."""

    def noise_on_sum(
        self, before: Tensors, after: Tensors, total: Tensors, parties: int
    ) -> Tensor:
        """Return what the server added to the sum of uploads."""


@dataclass(frozen=True)
class Residual:
    """One draw of noise beside what was claimed of it.

    Attributes:
        where: Round and party, in words.
        values: How many independent normal values, if the claim holds.
        square: Sum of their squares, in squared claimed standard deviations: then
            chi-square with so many degrees of freedom.
    """

    release: Release
    where: str
    values: int
    square: float


def client_residuals(evidence: Evidence) -> Iterator[Residual]:
    """Yield what clients noted of their noise, where mechanisms claim some."""
    for index, client, notes in evidence.notes():
        for drawn in notes.noise:
            event = evidence.event_of(index, drawn.release)
            if event is None or event.noise_at not in ("client", "distributed"):
                continue
            shares = event.parties if event.noise_at == "distributed" else 1
            variance = (event.noise_multiplier * event.clip_norm) ** 2 / shares
            where = f"round {index}, {client}"
            yield Residual(drawn.release, where, drawn.values, drawn.square / variance)


def server_residuals(evidence: Evidence) -> Iterator[Residual]:
    """Yield the server's noise: the next broadcast less what uploads make of the last.

    Both stand in the transcript. A trainer's step is affine in the sum of uploads, so
    a probe tells its slope, and the difference over the slope is the noise on the sum.
    Nothing where no server's noise is claimed, a trainer sends more than one tensor, or
    its server steps by Adam, which is not affine.
    """
    trainer = evidence.trainer
    if isinstance(trainer, ShowsNoise):
        yield from _shown(evidence, trainer)
        return
    if is_recorded(evidence):
        yield from _recorded(evidence)
        return
    claimed = [e for _, e in evidence.events() if e.noise_at == "server"]
    if not (claimed and isinstance(trainer, PrivateTrainer)):
        return
    if trainer.optimiser.kind != "sgd":
        return
    quiet = replace(trainer, epsilon=None)
    state: Tensors = quiet.begin(_double(evidence.broadcasts[0]))
    for index, (total, parties) in sorted(_totals(evidence).items()):
        at = Round(index, Seeds(0), parties)
        noise, state = _one_round(evidence, quiet, state, at, total)
        event = evidence.event_of(index, "global")
        if noise is None or event is None or event.noise_at != "server":
            return
        std = event.noise_multiplier * event.clip_norm / event_unit(evidence)
        yield _of_server(index, noise, std)


def _shown(evidence: Evidence, trainer: ShowsNoise) -> Iterator[Residual]:
    """Yield what a trainer finds itself between two broadcasts."""
    for index, (total, _) in sorted(_totals(evidence).items()):
        if (step := evidence.server_step(index)) is None:
            continue
        event, before, after = step
        noise = trainer.noise_on_sum(before, after, total, event.parties)
        yield _of_server(index, noise, event.noise_multiplier * event.clip_norm)


def _of_server(index: int, noise: Tensor, std: float) -> Residual:
    square = float((noise / std).square().sum())
    return Residual("global", f"round {index}, server", noise.numel(), square)


def _recorded(evidence: Evidence) -> Iterator[Residual]:
    """Yield what is left of a recorded broadcast without the mean of uploads."""
    for noise in servers_noise(evidence):
        for name, drawn in noise.tensors.items() if noise.std else ():
            where = f"round {noise.index}, server"
            where += f", {name}" * (len(noise.tensors) > 1)
            square = drawn.square / noise.std**2
            yield Residual("global", where, drawn.values, square)


def _totals(evidence: Evidence) -> dict[int, tuple[Tensors, tuple[ClientId, ...]]]:
    """Return the sum of each round, as made here or as the server learned it, and whose.

    Masks leave the sum alone.
    """
    masked = {
        index: (sums[0][0].tensors, tuple(sums[0][1]))
        for index, sums in evidence.sums.items()
    }
    return masked | {
        index: (
            secure_sum([_double(message.tensors) for message in sent]),
            tuple(message.sender for message in sent),
        )
        for index, sent in evidence.uploads.items()
    }


def _one_round(
    evidence: Evidence, quiet: Any, state: Tensors, at: Round, summed: Tensors
) -> tuple[Tensor | None, Tensors]:
    """Return the noise on the round's sum, and the server's state behind it."""
    total, index = _double(summed), at.index
    received, after = evidence.broadcasts[index], evidence.broadcasts.get(index + 1)
    if len(total) != 1 or len(received) != 1 or after is None:
        return None, state
    (name,), (shown,) = total, received

    def move(inbox: Tensor) -> Tensors:
        return quiet.aggregate(evidence.task, state, {name: inbox}, at)[0]

    clean = move(total[name])[shown]
    slope = move(total[name] + 1)[shown] - clean
    noise = (after[shown].double() - clean) / slope
    return noise, move(total[name] + noise)


def _double(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.to(torch.float64) for name, tensor in tensors.items()}


def ratio_interval(square: float, values: int, level: float) -> tuple[float, float]:
    """Return the interval of a standard deviation over the claimed one.

    Exact for normal values: the sum of squares over the true variance is chi-square.
    The level is the chance to miss the truth.
    """
    low, high = float(chi2.ppf(level / 2, values)), float(chi2.isf(level / 2, values))
    return math.sqrt(square / high), math.sqrt(square / low)


BAND_LEVEL = 0.001
"""Chance that noise as claimed is called anything else, in a whole run."""


@rule
def noise_as_claimed(evidence: Evidence) -> Found:
    """Is the noise that was added within a chi-square band of the claim?"""
    groups: dict[Release, list[Residual]] = defaultdict(list)
    for residual in (*client_residuals(evidence), *server_residuals(evidence)):
        groups[residual.release].append(residual)
    if not evidence.engines:
        yield from _missing(evidence, groups)
    tests = [(release, r) for release, rs in groups.items() for r in (*rs, pool(rs))]
    squares = np.array([(r.square, float(r.values)) for _, r in tests]).reshape(-1, 2)
    rejected = holm(two_sided(squares))
    wrong = defaultdict(list)
    for (release, residual), p_value in zip(tests, rejected, strict=True):
        if p_value < BAND_LEVEL:
            wrong[release].append(residual)
    for release, residuals in wrong.items():
        yield _judged(evidence, release, residuals, groups[release])
    yield from _repeated(evidence)


def two_sided(squares: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, " n"]:
    """Return chi-square p-values: twice the smaller tail, at most 1.

    Rows hold a sum of squares over the claimed variance, and of how many values.

    Example:
        >>> two_sided(np.array([[100.0, 100.0], [25.0, 100.0]])).round(4)
        array([0.9624, 0.    ])
    """
    below = chi2.cdf(squares[:, 0], squares[:, 1])
    above = chi2.sf(squares[:, 0], squares[:, 1])
    return np.minimum(2 * np.minimum(below, above), 1.0)


def pool(residuals: Sequence[Residual]) -> Residual:
    """Return independent draws as one."""
    return Residual(
        residuals[0].release,
        "all together",
        sum(residual.values for residual in residuals),
        math.fsum(residual.square for residual in residuals),
    )


def _judged(
    evidence: Evidence,
    release: Release,
    wrong: Sequence[Residual],
    drawn: Sequence[Residual],
) -> tuple[Severity, str, tuple[str, ...]]:
    """Say how much noise there is; of the draws that differ, too little counts more."""
    whole = pool(drawn)
    ratio = math.sqrt(whole.square / whole.values)
    low, high = ratio_interval(whole.square, whole.values, 0.05)
    least = min(wrong, key=lambda residual: residual.square / residual.values)
    severity: Severity = "error" if least.square < least.values else "warning"
    single = sum(residual.where != whole.where for residual in wrong)
    return (
        severity,
        f"The noise on the {release} release has {ratio:.3f} [{low:.3f}, {high:.3f}] "
        f"times the claimed standard deviation (n = {whole.values}); {single} of "
        f"{len(drawn)} draws are outside the chi-square band (two-sided, level "
        f"{BAND_LEVEL:g}, Holm over all draws and their sum; least: {least.where}, "
        f"{math.sqrt(least.square / least.values):.3f}).",
        evidence.setting("mode", "noise_at"),
    )


def _missing(evidence: Evidence, groups: dict[Release, list[Residual]]) -> Found:
    """Say where noise is claimed and none is to be seen."""
    claimed = Counter(e.release for _, e in evidence.events() if e.noise_multiplier > 0)
    noted = any(bool(notes) for _, _, notes in evidence.notes())
    for release, rounds in claimed.items():
        seen = len(
            {residual.where.split(",")[0] for residual in groups.get(release, ())}
        )
        if seen >= rounds:
            continue
        if noted:
            yield (
                "error",
                f"The {release} release claims noise in {rounds} rounds, and the run "
                f"shows some in {seen}.",
                evidence.setting("mode", "noise_at"),
            )
        else:
            yield (
                "warning",
                f"Whether the noise on the {release} release is as claimed cannot be "
                "determined: the run holds no owner's trace of it. Train again with this "
                "version, or let the trainer note its noise.",
            )


def _repeated(evidence: Evidence) -> Found:
    """Say where two draws are the same: their difference holds no noise."""
    squares = Counter(
        (drawn.release, drawn.square)
        for _, _, notes in evidence.notes()
        for drawn in notes.noise
        if drawn.square > 0
    )
    again = sum(count - 1 for count in squares.values())
    if again:
        yield (
            "error",
            f"{again} of {squares.total()} draws of noise repeat another one: whoever "
            "sees both subtracts it.",
            evidence.setting("mode", "noise_at"),
        )


LEVEL = 1e-6
"""Chance that one of the questions below calls noise as declared anything else."""
NEAR = 1e-3  # standard deviations that count as unmoved
FEWEST = 8  # numbers whose shape says something


@dataclass(frozen=True)
class NoisedUpload:
    """An upload that is said to hold noise."""

    upload: Upload
    std: float
    event: MechanismEvent

    @property
    def where(self) -> str:
        """Round and client, in words."""
        return f"round {self.upload.index}, {self.upload.sender}"

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
    for upload in () if evidence.engines else recorded_uploads(evidence):
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
    return float(chi2.cdf(square, values))


def _too_short(held: Sequence[NoisedUpload]) -> Found:
    """Say where an upload, or one tensor of it, is shorter than its noise can be."""
    found = [
        (_lower_tail(square / one.std**2, values), one, name, square, values)
        for one in held
        for name, square, values in _squares(one.upload.moves)
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
        for difference in _differences(one.upload.moves, other.upload.moves)
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
    chance = 2 * norm.cdf(NEAR) - 1
    for one in held:
        near = 0.0 if one.in_own_units else NEAR * one.std
        first = torch.cat([move.first for move in one.upload.moves.values()])
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
    for noise in (one for one in noises if one.tensors):
        parts = [drawn.first for _, drawn in sorted(noise.tensors.items())]
        by_size[sum(map(len, parts))].append((noise.index, torch.cat(parts)[:COMPARED]))
    for some in by_size.values():
        rows = torch.stack([row for _, row in some])
        rows = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-300)
        size, alike = rows.shape[1], (rows @ rows.T).numpy()
        pairs = list(combinations(range(len(some)), 2))
        if not pairs or size < 2:
            continue
        most = max(pairs, key=lambda pair: abs(alike[pair]))
        if correlation_p(alike[most], size) * len(pairs) < LEVEL:
            one, other = (some[i][0] for i in most)
            yield (
                f"The server's noise of rounds {one} and {other} correlates at "
                f"{alike[most]:.3f} (n = {size}): whoever sees both broadcasts subtracts "
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
    return float(beta.sf(min(correlation**2, 1.0), 0.5, (values - 1) / 2))


def _misshapen(noises: Sequence[ServersNoise]) -> Iterator[str]:
    """Say where the server's noise is not normal, whatever its size."""
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
    drawn += [(n.where, m.first) for n in held for m in n.upload.moves.values()]
    looked_at = [(where, first) for where, first in drawn if len(first) >= FIRST]
    for where, first in looked_at:
        seed = find_seed(first.numpy(), LEVEL / len(looked_at))
        if seed:
            yield (
                f"The noise of {where} is what {seed} draws: whoever tries seeds "
                "subtracts it. Draw it from the system's randomness."
            )
