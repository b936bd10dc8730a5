"""What an adversary can have a model write of each client's texts."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.extraction.draws import Draws
from privaudit.auditing.extraction.suffixes import AnswerTable
from privaudit.federated.trainer import ClientId


@dataclass(frozen=True)
class ExtractedClient:
    """What one client's model says of the client's candidates.

    Attributes:
        table: Of all candidates, in their order.
        drawn: Candidates whose suffixes were drawn, chosen without their membership.
        draws: What came of that.
    """

    client: ClientId
    table: AnswerTable
    drawn: Int[np.ndarray, " some"]
    draws: Draws


@runtime_checkable
class Extracts(Protocol):
    """An attack that has texts written, not only says whose they are."""

    @property
    def prefix(self) -> float:
        """Percent of an answer that is shown, for scores and draws."""
        ...

    @property
    def p(self) -> float:
        """The probability from which an extraction counts."""
        ...

    @property
    def near(self) -> float:
        """Percent of a suffix's tokens that may differ in a near match."""
        ...

    def extract(self, adversary: Adversary, target: Target) -> ExtractedClient:
        """Return what the target's model says of its candidates' texts."""
        ...
