"""Numbers as integers modulo 2^bits, so that masks hide them and sums stay exact."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64, Int64

from privaudit.core.errors import ConfigError, TrainingError
from privaudit.privacy.secure_aggregation.packets import Codes

GUARD = 8  # bits that an honest sum leaves empty, so that most others are noticed
COARSEST = 2.0**-10  # a larger step would drown updates


@dataclass(frozen=True)
class FixedPoint:
    """How numbers are coded where some parties sum them up.

    The step is the finest power of two at which the sum still fits. Each number is
    rounded to the nearest step, so the sum is off by at most parties * step / 2.

    Attributes:
        parties: How many numbers are summed at most.
        bits: 32 halves the bytes, for small numbers; 64 leaves room for one range that
            fits what all trainers send, tensors times numbers of records.
        largest: Magnitude up to which numbers can be coded, above 0.

    Raises:
        ConfigError: The step would be above 2^-10.

    Example:
        >>> code = FixedPoint(parties=10)
        >>> code.step == 2.0**-31
        True
        >>> code.decode(code.encode(np.array([0.5, -3.0])))
        array([ 0.5, -3. ])
    """

    parties: int
    bits: Literal[32, 64] = 64
    largest: float = 2.0**20

    def __post_init__(self) -> None:
        if self.step > COARSEST:
            raise ConfigError(
                f"{self.bits} bits code sums of {self.parties} numbers up to "
                f"{self.largest:g} in steps of {self.step:g}, and {COARSEST:g} is the "
                "coarsest. Use 64 bits, or a smaller range."
            )

    @property
    def step(self) -> float:
        """The distance between neighbouring codes, a power of two."""
        top = math.floor(math.log2(self.parties * self.largest)) + 1
        return 2.0 ** (top - (self.bits - 1 - GUARD))

    @property
    def dtype(self) -> type[Any]:
        """The unsigned type whose overflow is the modulus."""
        return np.uint64 if self.bits == 64 else np.uint32

    def encode(
        self, numbers: Float64[np.ndarray, " n"], whose: str = "An update"
    ) -> Codes:
        """Return the nearest codes.

        Raises:
            TrainingError: A number is out of range. Clipping it would change the sum
                without a word.
        """
        extreme = float(np.abs(numbers).max(initial=0.0))
        if not extreme <= self.largest:
            raise TrainingError(
                f"{whose} reaches {extreme:.4g}, and the fixed-point code of masked "
                f"sums holds up to {self.largest:.7g}. Lower the learning rate, clip "
                "updates, or train with ideal secure aggregation."
            )
        steps = np.rint(numbers / self.step).astype(np.int64)
        return steps.astype(self.dtype)  # modulo 2^bits

    def decode(self, codes: Codes) -> Float64[np.ndarray, " n"]:
        """Return the numbers; the upper half of the codes is negative."""
        return self._signed(codes) * self.step

    def fits(self, codes: Codes) -> bool:
        """Say whether honest parties' numbers can sum up to this.

        Each number that is uniform instead passes with a chance of about 2^-8.
        """
        most = self.parties * math.floor(self.largest / self.step + 0.5)
        steps = self._signed(codes)
        return bool(((steps <= most) & (steps >= -most)).all())

    def _signed(self, codes: Codes) -> Int64[np.ndarray, " n"]:
        kind = np.int64 if self.bits == 64 else np.int32
        return codes.view(kind).astype(np.int64)
