"""A number as a paper prints it: a mean in per cent, often with a spread."""

import re
from dataclasses import dataclass
from typing import Any

_NUMBER = r"\d+(?:\.\d+)?"
_PRINTED = re.compile(rf"({_NUMBER})(?:\s*(?:±|\+/-)\s*({_NUMBER}))?")


@dataclass(frozen=True)
class PaperNumber:
    """What a paper says of one cell.

    Attributes:
        text: As it is printed.
        mean: In the unit of its metric, mostly per cent.
        spread: What stands behind ±, in that unit; None where nothing does.
    """

    text: str
    mean: float
    spread: float | None = None

    @classmethod
    def read(cls, printed: Any) -> "PaperNumber":
        """Return the number that a plan gives, as text or as a number.

        Raises:
            ValueError: It is neither.

        Example:
            >>> PaperNumber.read("94.58±0.31")
            PaperNumber(text='94.58±0.31', mean=94.58, spread=0.31)
        """
        text = str(printed).strip()
        match = _PRINTED.fullmatch(text)
        if isinstance(printed, bool) or match is None:
            raise ValueError(
                f"{printed!r} is no number of a paper: write per cent, as 94.58 or "
                "'94.58±0.31'"
            )
        spread = float(match[2]) if match[2] else None
        return cls(text, float(match[1]), spread)
