"""The one form of what a run is compared with: a signed baseline, or public numbers."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

from privaudit.auditing.storage.load import StoredAudit
from privaudit.checks.gate.checks import GateQuestion
from privaudit.checks.gate.guarantees import Stated
from privaudit.checks.gate.settings import GateSettings
from privaudit.checks.gate.shortfall import Shortfall
from privaudit.checks.gate.strength import Made
from privaudit.federated.runs.runs import Run

Pairing = Literal["record", "no", "no baseline"]


class Against(ABC):
    """What a run is compared with.

    Attributes:
        pairing: Whether each record is compared with itself.
        guarantees: Claimed and certified epsilons, by name; empty where nothing is
            said, not even "none".
        gate: The gate's settings that were in force, which later ones may not fall
            behind; None where nothing says them, nor how strong attacks are to be.
    """

    pairing: ClassVar[Pairing]
    guarantees: Mapping[str, Stated]
    gate: GateSettings | None

    @property
    @abstractmethod
    def label(self) -> str:
        """What it is called in sentences."""

    @abstractmethod
    def demanded(self, scenario: str) -> Made:
        """Return the attacks that are to be made, the headline first, and how."""

    @abstractmethod
    def questions(
        self, audit: StoredAudit, attacks: Sequence[str], settings: GateSettings
    ) -> Iterator[GateQuestion]:
        """Yield a question for each metric that is asked for.

        Raises:
            IncompatibleRunsError: The two cannot be compared; the text says by what.
        """

    def notes(self, run: Run, settings: GateSettings, target: str) -> Iterator[str]:
        """Yield in words what a reader must know besides.

        Args:
            run: The run that is compared.
            settings: What is asked of it.
            target: The branch that a change goes to; empty, or a file, where none is
                named.
        """
        yield from ()

    def stale(self, made_by: str | None) -> Iterator[Shortfall]:
        """Yield what makes it one of something else than the run's past.

        Args:
            made_by: The version of privaudit whose attacks were made on the run; None
                where nobody knows.
        """
        yield from ()

    def check_alike(self, run: Run) -> None:  # noqa: B027 # public numbers say neither
        """Raise IncompatibleRunsError unless both have the same data and model."""
