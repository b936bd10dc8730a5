"""The scenario interface, and the names of all scenarios.

A scenario says who looks on and what is tried. Its first attack is the one that the
verdict is about: it was named before any score was seen, so no best of several is
reported as if it had been the only one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from privaudit.auditing.attack import AppliesToSome, Attack
from privaudit.auditing.query_access import Answers
from privaudit.core.errors import AttackError, ConfigError
from privaudit.core.registry import Registry
from privaudit.federated.trainer import Task, Trainer
from privaudit.models.interfaces import TaskKind
from privaudit.recording.origins.scores import SCORES

MASKED = (
    "Uploads are masked, so there is no single one to reconstruct a client's model "
    "from: this is what server-aggregate sees."
)


@dataclass(frozen=True)
class Scenario:
    """Who looks on, and what is tried.

    Attributes:
        name: As registered.
        question: What is asked, in one sentence.
        threat: A threat model by name, see :mod:`privaudit.federated.transcripts.threat_models`.
        attacks: By name; the first one that can read a run's models carries the
            verdict.
        by_round: Whether it is asked when it leaked, and whose a record is.
        answers: What models say when they are asked.
        one_run: Whether epsilon is bounded from below, by canaries.
        dominates: Scenarios whose adversaries see less: their views, and what models
            answer them, are functions of this one's. Audits make the named attack of
            each here too, where that shows other models.
        note: What a reader must know of how it was played; empty if nothing.
        unit: What is a member or none: a record, or a client as a whole.
    """

    name: str
    question: str
    threat: str
    attacks: dict[str, Attack]
    answers: Answers = "probabilities"
    by_round: bool = False
    one_run: bool = False
    dominates: tuple[str, ...] = ()
    note: str = ""
    unit: Literal["record", "client"] = "record"

    def for_task(self, kind: TaskKind) -> "Scenario":
        """Return the scenario with those attacks that take models of a task.

        Raises:
            AttackError: There is none.
        """
        applicable = self._keeping(lambda attack: attack.task in (kind, "either"))
        if not applicable.attacks:
            raise AttackError(
                f"No attack of {self.name} takes models of {kind}: "
                f"{', '.join(self.attacks)}. Add one that does."
            )
        return applicable

    def _keeping(self, is_kept: Callable[[Attack], bool]) -> "Scenario":
        kept = {name: one for name, one in self.attacks.items() if is_kept(one)}
        return replace(self, attacks=kept)

    def that_apply(self, trainer: Trainer, task: Task | None) -> "Scenario":
        """Return the scenario without attacks that a trainer's models give nothing."""
        return self._keeping(
            lambda attack: (
                not isinstance(attack, AppliesToSome)
                or attack.applies_to(trainer, task)
            )
        )

    def before_training(self, trainer: Trainer, kind: TaskKind) -> "Scenario":
        """Return the scenario with those attacks that a run to come can be asked."""
        return self.for_task(kind).that_apply(trainer, None)

    def besides(self, attacks: Mapping[str, Attack]) -> "Scenario":
        """Return the scenario with further attacks behind its own."""
        return replace(self, attacks={**self.attacks, **attacks, **self.attacks})

    def where_masked(self) -> "Scenario":
        """Return the scenario as it can be played where uploads were masked.

        A server then sees sums only: whoever asks for its view gets that of
        server-aggregate, and a note of it.
        """
        if self.threat != "server":
            return self
        return replace(self, threat="server-aggregate", note=MASKED)

    def leaving_out(self, clients: Sequence[str]) -> "Scenario":
        """Return the scenario with a note of clients whose models a server cannot reconstruct."""
        if self.threat != "server" or not clients:
            return self
        note = (
            f"Left out: {', '.join(clients)}. The last upload is not finite, or lacks "
            "tensors that others send, so this audit says nothing about them."
        )
        return replace(self, note=note)

    def without_pictures(self) -> "Scenario":
        """Return the scenario without attacks that look at a picture's own tokens."""
        return self._keeping(lambda attack: getattr(attack, "slice", "") != "image")

    def on_answers_alone(self) -> "Scenario":
        """Return the scenario without attacks that need more than an answer's tokens.

        Of the records of others' federations nothing else is known: neither what was
        asked nor any text.
        """
        return self._keeping(
            lambda attack: (
                getattr(attack, "slice", "") in ("", "description")
                and not getattr(attack, "reads_texts", False)
            )
        )

    def without_shadows(self) -> "Scenario":
        """Return the scenario with those attacks that train no models of their own."""
        return self._keeping(lambda attack: not attack.trains_shadows)


SCENARIOS: Registry[Callable[..., Scenario]] = Registry(
    "scenario", "privaudit.scenarios"
)
"""Each makes a scenario of ``shadows``: how many models its attacks train for each
attacked client, where they train any."""

OF_SCORES = Scenario(
    SCORES, "How well do these scores tell members from non-members?", SCORES, {}
)
"""Of scores that were computed elsewhere: no view of a run, and no attack of ours."""


def find_plan(name: str) -> Scenario:
    """Return what an audit of that name is about, that of scores included."""
    return OF_SCORES if name == SCORES else SCENARIOS.find(name)()


def find_scenario(scenario: str | Scenario, shadows: int) -> Scenario:
    """Return a scenario by name, with that many shadow models; 0 takes them out.

    Raises:
        UnknownNameError: No scenario has that name.
        ConfigError: Too few shadow models to learn from.
    """
    if isinstance(scenario, Scenario):
        return scenario
    if shadows != 0 and shadows < 5:
        raise ConfigError(
            f"{shadows} shadow models were requested, but at least 5 are needed: one "
            "to fix the threshold, four to learn from. The paper uses fifty; 0 leaves "
            "shadow attacks out."
        )
    plan = SCENARIOS.find(scenario)(shadows=shadows or 5)
    return plan if shadows else plan.without_shadows()
