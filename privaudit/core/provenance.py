"""Provenance of numbers in words: bits, library builds, processor."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

NOT_STATED = "bits that are not stated"


def in_words(computed: Mapping[str, Any]) -> str:
    """Return what :func:`privaudit.core.portable_bits.computed_with` said, as a phrase.

    Example:
        >>> in_words({"bits": "portable", "builds": {"torch": "2.13.0", "numpy": "2.4"}})
        'portable bits of torch 2.13.0, numpy 2.4'
        >>> in_words({})
        'bits that are not stated'
    """
    if "bits" not in computed:
        return NOT_STATED
    builds = computed.get("builds", {}).items()
    said = f"{computed['bits']} bits of {', '.join(f'{n} {b}' for n, b in builds)}"
    differing = ", ".join(computed.get("differing", ()))
    return f"{said}, but for {differing}" if differing else said


@dataclass(frozen=True)
class Provenance:
    """What a run was computed with, as results that are made of it keep it.

    Attributes:
        bits: Which, of which library builds, in words; empty where it is not stated.
        processor: By its maker's name; several where the run went on elsewhere.
    """

    bits: str = ""
    processor: str = ""

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> "Provenance":
        """Return what a run's header says; nothing of a training elsewhere."""
        if "computed" not in header or header.get("origin"):
            return cls()
        parts = [*header.get("earlier", ()), header]
        bits = dict.fromkeys(in_words(one.get("computed", {})) for one in parts)
        processors = dict.fromkeys(str(one.get("processor", "?")) for one in parts)
        return cls(", then ".join(bits), ", then ".join(processors))

    def __str__(self) -> str:
        if not self.bits:
            return NOT_STATED
        return f"{self.bits} on {self.processor}"


def counted(found: Iterable[Provenance]) -> str:
    """Return what runs were computed with, and how many of them; empty for none.

    Example:
        >>> counted([Provenance("native bits of torch 2", "Xeon"), Provenance()])
        'bits that are not stated (1 run); native bits of torch 2 on Xeon (1 run)'
    """
    counts = sorted(Counter(map(str, found)).items(), key=lambda one: (-one[1], one[0]))
    return "; ".join(f"{said} ({n} run{'s' * (n > 1)})" for said, n in counts)
