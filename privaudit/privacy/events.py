"""Mechanism events: what was applied to a round's releases for the sake of privacy."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from privaudit.core.errors import ConfigError
from privaudit.privacy.discrete_gaussian import Grid, Rounding

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


def _require(holds: bool, event: MechanismEvent, field: str) -> None:
    if not holds:
        raise ConfigError(
            f"A privacy mechanism of a {event.release} release was described with "
            f"{field} = {getattr(event, field)}. MechanismEvent says what can be."
        )
