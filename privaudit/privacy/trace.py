"""Trace of clients' privacy mechanisms in a round, as only a run's owner may know it.

A transcript shows what was sent, and a certificate what was meant. Whether samples were
drawn, gradients clipped and noise added as meant shows in neither: so a private trainer
notes it here, in a round's :attr:`privaudit.federated.trainer.Round.trace`. Notes change nothing
of what is sent, and no view holds them.
"""

from collections.abc import Mapping
from typing import Literal

import pydantic.dataclasses
import torch
from jaxtyping import Bool, Float, Int
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor

from privaudit.privacy.events import Release

ClippedBy = Literal["record", "batch", "client"]


@pydantic.dataclasses.dataclass(frozen=True)
class ClippedNorm:
    """The largest norm of a release's gradients after clipping, in one round.

    Attributes:
        by: Whether every record's gradient was clipped, the mean over a batch, or all
            that a client's training moved.
        largest: In the units of the release's :class:`MechanismEvent`.
    """

    release: Release
    by: ClippedBy
    largest: NonNegativeFloat


@pydantic.dataclasses.dataclass(frozen=True)
class DrawnNoise:
    """The noise that was added to a release in one step.

    Attributes:
        values: How many draws.
        square: Sum of their squares, in the squared units of the release's event.
    """

    release: Release
    values: PositiveInt
    square: NonNegativeFloat


@pydantic.dataclasses.dataclass(frozen=True)
class ClientTrace:
    """What one client did in one round.

    Attributes:
        records: How many it trains on.
        batches: Their positions in each batch, batch by batch.
        norms: At most one for each release.
        noise: In the order in which it was drawn.
    """

    records: NonNegativeInt
    batches: tuple[tuple[NonNegativeInt, ...], ...] = ()
    norms: tuple[ClippedNorm, ...] = ()
    noise: tuple[DrawnNoise, ...] = ()

    def __bool__(self) -> bool:
        """Say whether anything was noted; trainers without mechanisms do not."""
        return bool(self.batches or self.norms or self.noise)


class Trace:
    """Takes the notes of a cohort's round.

    Example:
        >>> trace = Trace(torch.tensor([3]))
        >>> trace.batch(torch.tensor([[2, 0]]), torch.tensor([[True, True]]))
        >>> trace.of(0).batches
        ((0, 2),)
    """

    def __init__(self, sizes: Int[Tensor, " k"]) -> None:
        self._sizes = sizes.tolist()
        self._batches: list[list[tuple[int, ...]]] = [[] for _ in self._sizes]
        self._norms: dict[tuple[Release, ClippedBy], Tensor] = {}
        self._noise: list[tuple[Release, int, list[float]]] = []

    def batch(self, chosen: Int[Tensor, "k b"], mask: Bool[Tensor, "k b"]) -> None:
        """Note which of its records each client takes in a step."""
        for client_batches, indices, real in zip(
            self._batches, chosen, mask, strict=True
        ):
            client_batches.append(tuple(sorted(indices[real].tolist())))

    def clipped(
        self,
        release: Release,
        by: ClippedBy,
        gradients: Mapping[str, Float[Tensor, "k ..."]],
        unit: float = 1.0,
    ) -> None:
        """Note how long what was clipped is; the largest norm of the round stays.

        Args:
            release: What the gradients are for.
            by: Whether they are [k, records, ...], or one for each client: batch means
                or moves [k, ...].
            gradients: After clipping; their joint norm counts.
            unit: What a length of 1 is in the units of the release's event.
        """
        leading = 2 if by == "record" else 1
        squares = [_square(tensor, leading) for tensor in gradients.values()]
        norms = unit * torch.stack(squares).sum(dim=0).sqrt()
        largest = norms.flatten(1).amax(dim=1) if leading == 2 else norms
        before = self._norms.get((release, by), torch.zeros_like(largest))
        self._norms[release, by] = torch.maximum(before, largest)

    def noise(
        self, release: Release, noise: Mapping[str, Float[Tensor, "k ..."]], unit: float
    ) -> None:
        """Note how much noise each client added to each tensor of a release in a step.

        ``unit`` is what 1 is in the units of the release's event.
        """
        values = sum(tensor[0].numel() for tensor in noise.values())
        squares = sum(_square(tensor, 1) for tensor in noise.values())
        assert isinstance(squares, Tensor)
        self._noise.append((release, values, (unit**2 * squares).tolist()))

    def of(self, position: int) -> ClientTrace:
        """Return the notes on the client at a position of the cohort."""
        norms = [
            ClippedNorm(release, by, float(largest[position]))
            for (release, by), largest in self._norms.items()
        ]
        noise = [DrawnNoise(r, n, squares[position]) for r, n, squares in self._noise]
        batches, size = self._batches[position], self._sizes[position]
        return ClientTrace(size, tuple(batches), tuple(norms), tuple(noise))


RoundTrace = Mapping[str, ClientTrace]
"""Of each client that took part in a round."""


def _square(tensor: Tensor, leading: int) -> Tensor:
    return tensor.detach().double().square().flatten(leading).sum(dim=-1)
