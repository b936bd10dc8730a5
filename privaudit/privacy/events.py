"""Privacy mechanisms: what is claimed, what was applied in a round, and what it did.

A transcript shows what was sent, and a certificate what was meant. Whether samples were
drawn, gradients clipped and noise added as meant shows in neither: so a private trainer
notes it in a round's :attr:`privaudit.federation.trainer.Round.trace`, for the run's owner
alone. Notes change nothing of what is sent, and no view holds them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args, get_origin

import pydantic.dataclasses
from jaxtyping import Bool, Float, Int
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from privaudit.core.errors import ConfigError
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.parameters import above_zero, at_least_one, probability
from privaudit.privacy.discrete_gaussian import Grid, Rounding


@dataclass(frozen=True)
class Claim:
    """The epsilon a method claims by its own formula, not what is proved.

    Attributes:
        epsilon: None where the method claims nothing.
        delta: Of (epsilon, delta)-DP, in (0, 1).
        source: Whose formula it is, in words.
    """

    epsilon: float | None = None
    delta: float = 1e-5
    source: str = "no privacy mechanism"


Release = Literal["global", "local", "upload", "choice"]
NoiseAt = Literal["server", "client", "distributed", "none"]
Unit = Literal["record", "client"]
Adjacency = Literal["add/remove-one", "replace-one"]


@dataclass(frozen=True)
class MechanismEvent:
    """One Gaussian mechanism of one round.

    Attributes:
        release: What it protects. "global": a sum over clients of what each one sends,
            one sum per step, so that clients' noises add up. "upload": a result that a
            client computed from noised steps and sends, such as a prompt after local
            training; others' noise is not counted in its favour. "choice": which of its
            numbers a client sends; like "upload". "local": stays with the client and
            shows in the personal model it releases.
        kind: The noise: "discrete-gaussian" on a grid, or "gaussian" in floating point,
            whose low bits no accountant counts.
        noise_multiplier: Standard deviation of the noise over the clip norm, both in
            the same units (both of sums, or both of means): of one client's own noise,
            of the server's, or, for "distributed", of all clients' shares together.
            0 is no noise.
        sensitivity: By how many clip norms the release changes between neighbours, with
            one record more or less: see :func:`sensitivity`.
        clip_norm: For the record only.
        sampling_rate: Chance of a record to be in the batch, in (0, 1]; 1 claims no
            amplification.
        sampling: "poisson": every record by its own coin; "fixed-batch" is accounted
            as if the record were in every batch; "without-replacement": so many clients
            of all are drawn for a round, each set of them with equal chance.
        noise_at: Who adds it; "distributed" is a share of 1/parties of the variance
            by each client, under a secure sum. A "local" release has its client's
            noise or none.
        parties: How many clients took part in the round, at least 1.
        steps: How many times it was applied in the round, at least 1.
        per_record: Whether each record's gradient was clipped, not a batch's mean: then
            the bound holds only while all other records' gradients stay as they are,
            whatever they are taken at being released too.
        unit: What one more or less, or another in its place, makes neighbours.
        adjacency: Which of the two it is.
        bounded: Whether anything bounds what the noise hides. Without a clip nothing
            does, and noise of any size proves nothing.
        values: How many numbers are noised at once; 0 in floating point.
        scale: Least standard deviation of one party's noise in steps of the grid.
        rounding: How values were brought onto the grid.
    """

    release: Release
    noise_multiplier: float
    sensitivity: float
    clip_norm: float
    sampling_rate: float
    sampling: Literal["poisson", "fixed-batch", "without-replacement"]
    noise_at: NoiseAt
    parties: int
    steps: int = 1
    per_record: bool = True
    kind: Literal["gaussian", "discrete-gaussian"] = "gaussian"
    unit: Unit = "record"
    adjacency: Adjacency = "add/remove-one"
    bounded: bool = True
    values: int = 0
    scale: int = 0
    rounding: Rounding = "nearest"

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.type in (int, bool):
                _require(type(value) is one.type, self, one.name)
            elif get_origin(one.type) is Literal:
                labels = get_args(one.type)
                _require(value in labels, self, one.name, labels)
        _require(0 <= self.noise_multiplier < math.inf, self, "noise_multiplier")
        _require(0 < self.sensitivity < math.inf, self, "sensitivity")
        _require(self.clip_norm > 0, self, "clip_norm")
        _require(0 < self.sampling_rate <= 1, self, "sampling_rate")
        _require(self.parties >= 1, self, "parties")
        _require(self.steps >= 1, self, "steps")
        least = int(self.kind == "discrete-gaussian")
        _require(self.values >= least, self, "values")
        _require(self.scale >= least, self, "scale")
        by_others = self.noise_at in ("server", "distributed")
        _require(not (self.release == "local" and by_others), self, "noise_at")

    def on(
        self, grid: Grid | None, values: int, rounding: Rounding = "nearest"
    ) -> "MechanismEvent":
        """Return the same mechanism as drawn on a grid; itself without noise."""
        if grid is None or not values or self.noise_at == "none":
            return self
        return replace(
            self,
            kind="discrete-gaussian",
            values=values,
            scale=grid.scale,
            rounding=rounding,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON's types."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "MechanismEvent":
        """Return the event that :meth:`to_json` wrote.

        Raises:
            ConfigError: A field is unknown, missing or outside its range.
        """
        try:
            return cls(**fields)
        except TypeError as error:
            raise ConfigError(
                f"A privacy mechanism cannot be read from {dict(fields)}: {error}."
            ) from error


def on_grid(
    events: Sequence[MechanismEvent], grid: Grid | None, values: int
) -> tuple[MechanismEvent, ...]:
    """Return mechanisms as drawn on a grid for values rounded to the nearest step."""
    return tuple(event.on(grid, values) for event in events)


def sensitivity(*, tensors: int, per_record: bool, displaces: bool = False) -> float:
    """Return by how many clip norms one record more or less moves a release.

    sqrt(k) for k tensors clipped apart (clipped jointly they count as one). A sum of
    clipped records moves by one clip norm, a clipped batch mean by two: from one end
    of the ball to the other.

    Args:
        tensors: How many tensors are clipped apart, at least 1.
        per_record: Whether each record's gradient is clipped, before the sum.
        displaces: Whether a record that joins pushes another out of the batch, or
            changes what the sum is divided by: so it is with batches of fixed size
            from a larger shard, and it doubles the sum's change too.

    Example:
        >>> sensitivity(tensors=1, per_record=True)
        1.0
        >>> round(sensitivity(tensors=3, per_record=False), 3)
        3.464
    """
    if tensors < 1:
        raise ConfigError(f"At least one tensor must be clipped, not {tensors}.")
    return math.sqrt(tensors) * (1 if per_record and not displaces else 2)


def noise_of_pure(epsilon: int | float) -> float:
    """Return the noise multiplier of a Gaussian that tells no less than pure epsilon-DP.

    Pure DP's trade-off function is linear between (0, 1), (p, p) and (1, 0), with p =
    1 / (1 + exp(epsilon)). A Gaussian's is convex, and so below it where mu = -2
    Phi^-1(p): what is composed of such Gaussians bounds what is composed of pure ones.

    Source: Dong, Roth and Su, "Gaussian differential privacy", J. R. Stat. Soc. B 2022,
    section 2, for the two functions.

    Example:
        >>> [round(noise_of_pure(epsilon), 3) for epsilon in (0.1, 1, 1000)]
        [7.98, 0.812, 0.011]
    """
    from scipy.special import log_expit, ndtri_exp

    return float(-0.5 / ndtri_exp(log_expit(-epsilon)))


def _require(
    holds: bool, event: MechanismEvent, field: str, labels: Sequence[str] = ()
) -> None:
    if not holds:
        known = f"It is {' or '.join(map(repr, labels))}. " if labels else ""
        raise ConfigError(
            f"A privacy mechanism of a {event.release} release was described with "
            f"{field} = {getattr(event, field)}. {known}MechanismEvent says what can be."
        )


@dataclass(frozen=True)
class GaussianNoise:
    """One release's Gaussian mechanism, in units of what a client computes.

    Attributes:
        noise_multiplier: Standard deviation over clip norm; 0 is no noise.
        clip_norm: Largest l2 norm of what is noised, above 0.
    """

    noise_multiplier: float
    clip_norm: float

    @property
    def std(self) -> float:
        """Standard deviation of the noise."""
        return self.noise_multiplier * self.clip_norm if self.noise_multiplier else 0.0


@dataclass(frozen=True)
class Mechanisms:
    """What protects one round: its two releases, and who adds noise to the shared one.

    Attributes:
        local: Of the gradients by u and v.
        shared: Of the sum over clients of gradients by the global prompt.
        noise_at: Who adds the shared one's noise.
        parties: How many clients take part.
    """

    local: GaussianNoise
    shared: GaussianNoise
    noise_at: NoiseAt
    parties: int

    @property
    def upload_std(self) -> float:
        """Standard deviation of the noise on one client's upload."""
        shares = self.parties if self.noise_at == "distributed" else 1
        return 0.0 if self.noise_at == "server" else self.shared.std / math.sqrt(shares)

    @property
    def server_std(self) -> float:
        """Standard deviation of the server's noise on the sum of the uploads."""
        return self.shared.std if self.noise_at == "server" else 0.0


def split_budget(noise_multiplier: float, share: float) -> tuple[float, float]:
    """Return the multipliers of two releases of one sample that cost what one does.

    1/z^2 = 1/z_first^2 + 1/z_second^2, of which the first has ``share``.

    Args:
        noise_multiplier: z, of a single release; 0 gives none to either.
        share: Of 1/z^2 that goes to the first release, in (0, 1).

    Example:
        >>> split_budget(1.0, 0.5)
        (1.414..., 1.414...)
    """
    return noise_multiplier / math.sqrt(share), noise_multiplier / math.sqrt(1 - share)


def noise_std_published(
    epsilon: float,
    delta: float,
    rounds: int,
    clip_norm: float,
    batch_size: int,
    clients: int,
) -> tuple[float, float]:
    """Return the standard deviations of DP-FPL's local and global noise, as published.

    sigma_L = sqrt(T ln(1/delta)) / epsilon * C / B, on the gradients of a batch mean;
    sigma_G = sigma_L / N, on their mean over clients. This is the paper's formula with
    its constant c = 1. It is no proof that training is private with that epsilon: an
    accountant says what is (:mod:`privaudit.privacy.certificate`).

    Source: Tran et al., "Privacy-preserving personalized federated prompt learning for
    multimodal large language models", ICLR 2025, theorem 3.3.

    Args:
        epsilon: The claim, above 0.
        delta: In (0, 1).
        rounds: T, how many rounds of one step, at least 1.
        clip_norm: C, above 0.
        batch_size: B, at least 1.
        clients: N, at least 1.

    Example:
        >>> local, over_clients = noise_std_published(0.4, 1e-5, 100, 10.0, 32, 10)
        >>> print(f"{local:.2f} {over_clients:.3f}")
        26.51 2.651
    """
    above_zero("epsilon", epsilon)
    probability("delta", delta)
    at_least_one("number of rounds", rounds)
    above_zero("clip norm", clip_norm)
    at_least_one("batch size", batch_size)
    at_least_one("number of clients", clients)
    local = math.sqrt(rounds * math.log(1 / delta)) / epsilon * clip_norm / batch_size
    return local, local / clients


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
        values: How many independent draws there were.
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
