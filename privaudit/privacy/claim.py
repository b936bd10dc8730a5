"""Claim of a method about its own privacy; what is proved is a certificate."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """The epsilon a method claims by its own formula, not what is proved.

    Attributes:
        epsilon: None where the method claims nothing.
        delta: Of the claim.
        source: Whose formula it is, in words.
    """

    epsilon: float | None = None
    delta: float = 1e-5
    source: str = "no privacy mechanism"
