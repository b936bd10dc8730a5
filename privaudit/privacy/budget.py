"""Privacy budget of a round: shares of releases, and of who adds the noise."""

import math
from dataclasses import dataclass

from privaudit.privacy.events import NoiseAt


@dataclass(frozen=True)
class GaussianNoise:
    """One release's Gaussian mechanism, in units of what a client computes.

    Attributes:
        noise_multiplier: Standard deviation over clip norm; 0 is no noise.
        clip_norm: Largest norm.
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
