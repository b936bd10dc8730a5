"""The noise that a run shows: drawn by clients, or added by the server."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from privaudit.checks.lint.evidence import Evidence
from privaudit.checks.lint.recorded_uploads import is_recorded, servers_noise
from privaudit.checks.lint.small_rules import event_unit
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Tensors
from privaudit.federated.trainer import ClientId, Round
from privaudit.privacy.events import Release
from privaudit.privacy.secure_aggregation.ideal_sum import secure_sum
from privaudit.tuning.prompts.private_training import PrivateTrainer


@runtime_checkable
class ShowsNoise(Protocol):
    """A trainer that finds the server's noise itself, between two broadcasts."""

    def noise_on_sum(
        self, before: Tensors, after: Tensors, total: Tensors, parties: int
    ) -> Tensor:
        """Return what the server added to the sum of uploads."""
        ...


@dataclass(frozen=True)
class Residual:
    """One draw of noise beside what was claimed of it.

    Attributes:
        release: What it hides.
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
            place = f"round {index}, {client}"
            yield Residual(drawn.release, place, drawn.values, drawn.square / variance)


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
            place = f"round {noise.index}, server"
            place += f", {name}" * (len(noise.tensors) > 1)
            square = drawn.square / noise.std**2
            yield Residual("global", place, drawn.values, square)


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
    from scipy.stats import chi2

    low, high = float(chi2.ppf(level / 2, values)), float(chi2.isf(level / 2, values))
    return math.sqrt(square / high), math.sqrt(square / low)
