"""A run as if it had been stopped earlier: one transcript, and no further training."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from privaudit.core.errors import ConfigError
from privaudit.federation.transcript import Transcript
from privaudit.runs.population import Population
from privaudit.runs.run import Run


@dataclass(frozen=True)
class StoppedRun(Run):
    """The first rounds of a finished run, with the broadcast of what they made.

    Its server has seen what it would have seen of a training of so many rounds, where
    no rate and no noise depends on their number; personal models that are released at
    the end are none of it. Nothing is written into it.

    Attributes:
        whole: The finished run.
        rounds: How many count, 1 or more.
    """

    whole: Run
    rounds: int

    @classmethod
    def of(cls, run: Run, rounds: int) -> Run:
        """Return a run after so many rounds: itself after its last one.

        Raises:
            ConfigError: It has fewer.
        """
        run.require_complete()
        if rounds > run.config.rounds or rounds < 1:
            raise ConfigError(
                f"{run.name} was to be looked at after round {rounds}, and it has "
                f"{run.config.rounds}. Name rounds from 1 to that."
            )
        return run if rounds == run.config.rounds else cls(run.path, run, rounds)

    @cached_property
    def header(self) -> dict[str, Any]:
        """The whole run's, with another head: signals are kept for these rounds alone."""
        progress = self.whole.header["progress"]
        head = f"{progress['head']}, the first {self.rounds} rounds"
        return {**self.whole.header, "progress": {**progress, "head": head}}

    @cached_property
    def population(self) -> Population:
        """The whole run's."""
        return self.whole.population

    @cached_property
    def transcript(self) -> Transcript:
        """What was sent in the rounds that count, and the broadcast after them."""
        return Transcript(
            message
            for message in self.whole.transcript
            if message.round < self.rounds
            or (message.round == self.rounds and message.kind == "broadcast")
        )

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """One entry for each round that counts."""
        return self.whole.metrics[: self.rounds]

    @property
    def has_utility(self) -> bool:
        """Not of personal models; its rounds' metrics say what it was worth."""
        return False
