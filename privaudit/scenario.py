"""The scenario interface, and the names of all scenarios.

A scenario says who looks on and what is tried. Its first attack is the one that the
verdict is about: it was named before any score was seen, so no best of several is
reported as if it had been the only one.
"""

from collections.abc import Callable
from dataclasses import dataclass

from privaudit.attack import Attack
from privaudit.registry import Registry


@dataclass(frozen=True)
class Scenario:
    """Who looks on, and what is tried.

    Attributes:
        name: As registered.
        question: What is asked, in one sentence.
        threat: A threat model by name, see :mod:`privaudit.threats`.
        attacks: By name; the first one carries the verdict.
    """

    name: str
    question: str
    threat: str
    attacks: dict[str, Attack]


SCENARIOS: Registry[Callable[..., Scenario]] = Registry(
    "scenario", "privaudit.scenarios"
)
