"""The scenario interface, the names of all scenarios, and the attacks that most share.

A scenario says who looks on and what is tried. Its first attack is the one that the
verdict is about, unless one on weights promises to be certain: no rule asks who is a
member, so no best of several is reported as if it had been the only one. It also says
what models answer when they are asked: probabilities, or labels alone.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Literal

from privaudit.auditing.attack import (
    ATTACKS,
    Adversary,
    AppliesToSome,
    Attack,
    NeedsMore,
    ReadsUploads,
    Target,
)
from privaudit.core.errors import AttackError, ConfigError
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.registry import Registry
from privaudit.core.tensors import Stacked
from privaudit.federation.trainer import ANSWERS, Records, Signals, Task, Trainer, Want
from privaudit.models.interfaces import TaskKind
from privaudit.recording.origins.scores import SCORES

Answers = Literal["probabilities", "labels"]
SURE = 0.9  # what a bare label is taken to mean: any number that is not all or nothing


def answering(trainer: Trainer, answers: Answers, kind: TaskKind) -> Trainer:
    """Return the method with models of a kind that answer no more than that.

    Shadow models answer alike, so an attack learns what bare labels tell, too.

    Raises:
        AttackError: Its models answer in words, and a label was asked for.
    """
    if answers == "probabilities":
        return trainer
    if kind == "generation":
        raise AttackError(
            "Labels alone were asked of generative models. Use the scenario "
            "prompt-release for them."
        )
    labels_only = copy(trainer)
    mixed = type("LabelsOnly", (_LabelsOnly, type(trainer)), {})
    object.__setattr__(labels_only, "__class__", mixed)
    return labels_only


class _LabelsOnly:
    """A trainer's base whose models say which class is likeliest, and nothing else."""

    def query(
        self: Any, task: Task, models: Stacked, records: Records, want: Want = ANSWERS
    ) -> Iterator[Signals]:
        """Yield log-probabilities that tell the likeliest class only."""
        for signals in super().query(task, models, records, want):  # type: ignore[misc]
            yield {"log_probabilities": _bare(signals["log_probabilities"])}


def _bare(logs: Tensor) -> Tensor:
    """Return ``SURE`` for the likeliest class, and the rest shared by all others."""
    classes = logs.shape[-1]
    rest = (1 - SURE) / max(classes - 1, 1)
    answer = torch.full_like(logs, rest).log()
    best = logs.argmax(dim=-1, keepdim=True)
    return answer.scatter(-1, best, float(torch.tensor(SURE).log()))


MASKED = (
    "Uploads are masked, so there is no single one to reconstruct a client's model "
    "from: this is what server-aggregate sees."
)


@dataclass(frozen=True)
class Scenario:
    """Who looks on, and what is tried.

    Attributes:
        question: What is asked, in one sentence.
        threat: A threat model by name, see :mod:`privaudit.federation.threat_models`.
        attacks: By name; the first one that can read a run's models carries the
            verdict.
        by_round: Whether it is asked when it leaked, and whose a record is.
        answers: What models say when they are asked.
        one_run: Whether epsilon is bounded from below, by canaries.
        dominates: Scenarios whose adversaries see less: their views, and what models
            answer them, are functions of this one's. Audits make the named attack of
            each here too, where that shows other models.
        notes: What a reader must know of how it was played, by subject: "masked",
            "clients" or "attacks".
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
    notes: Mapping[str, str] = field(default_factory=dict)
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

    def that_see(
        self, adversary: Adversary, targets: Sequence[Target], asked: Collection[str]
    ) -> "Scenario":
        """Return the scenario without attacks that lack something, and a note of why.

        Raises:
            AttackError: One of them was asked for.
        """
        lacking = {
            name: reason
            for name, attack in self.attacks.items()
            if isinstance(attack, NeedsMore)
            and (reason := attack.why_not(adversary, targets))
        }
        for name in lacking.keys() & set(asked):
            raise AttackError(
                f"The attack {name!r} was requested. {lacking[name]} Leave it out."
            )
        kept = {name: one for name, one in self.attacks.items() if name not in lacking}
        said = " ".join(f"{name} was left out: {why}" for name, why in lacking.items())
        notes = {**self.notes, "attacks": said} if said else self.notes
        return replace(self, attacks=kept, notes=notes)

    def besides(self, attacks: Mapping[str, Attack]) -> "Scenario":
        """Return the scenario with further attacks behind its own.

        Raises:
            ConfigError: One goes by a label of its own, and is another attack.
        """
        for label, own in self.attacks.items():
            if attacks.get(label, own) != own:
                raise ConfigError(
                    f"The attack {attacks[label]!r} was given as {label!r}, and that of "
                    f"{self.name} is {own!r}. Give it a label of its own."
                )
        return replace(self, attacks={**self.attacks, **attacks})

    def where_masked(self) -> "Scenario":
        """Return the scenario as it can be played where uploads were masked.

        A server then sees sums only: whoever asks for its view gets that of
        server-aggregate, and a note of it.
        """
        if self.threat != "server":
            return self
        return replace(self, threat="server-aggregate", notes={"masked": MASKED})

    def leaving_out(self, clients: Sequence[str]) -> "Scenario":
        """Return the scenario with a note of clients whose models a server cannot reconstruct."""
        if self.threat != "server" or not clients:
            return self
        note = (
            f"Left out: {', '.join(clients)}. The last upload is not finite, or lacks "
            "tensors that others send, so this audit says nothing about them."
        )
        return replace(self, notes={**self.notes, "clients": note})

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

    def on_models(self) -> "Scenario":
        """Return the scenario without attacks that read uploads and ask no model."""
        return self._keeping(lambda attack: not isinstance(attack, ReadsUploads))


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


SLICES = ("image", "description")
SHARES = (0, 10, 100)
ALPHAS = (0.5, 1.0, 2.0, inf)
TOKEN_LOSS = "token-loss"
ON_TOKENS = (
    "max-renyi",
    "min-k",
    "min-k-plus-plus",
    "mod-renyi",
    "max-prob-gap",
    "perplexity-zlib",
)


@dataclass(frozen=True)
class GridCell:
    """One cell of the grid.

    Attributes:
        share: K in percent.
        alpha: The order of the entropy.
    """

    slice: str
    share: int
    alpha: float

    @property
    def order(self) -> str:
        """The order as it is written."""
        return {0.5: "½", inf: "∞"}.get(self.alpha, f"{self.alpha:g}")

    @property
    def attack(self) -> str:
        """The name of its attack."""
        return f"max-renyi {self.slice} {self.share} % order {self.order}"


def grid_cells() -> list[GridCell]:
    """Return the grid of Table 4 of FedRand, for all orders of the entropy."""
    return [GridCell(s, k, a) for s in SLICES for k in SHARES for a in ALPHAS]


def token_attacks() -> dict[str, Attack]:
    """Return the attacks on texts by name; the first one is the cheap one.

    That is the likelihood of people's own words, as the loss is for classifiers.
    MaxRényi does not look at them: it is there to be compared with what is published.
    """
    attacks: dict[str, Attack] = {
        name: ATTACKS.find(name)() for name in (TOKEN_LOSS, *ON_TOKENS)
    }
    make = ATTACKS.find("max-renyi")
    return attacks | {
        cell.attack: make(slice=cell.slice, share=cell.share, alpha=cell.alpha)
        for cell in grid_cells()
    }


NAMED = "rmia"
LOSS = "loss-threshold"
ON_SHADOWS = ("lira", "shadow")
OTHERS = ("confidence", "modified-entropy", "entropy")


def model_attacks(shadows: int) -> dict[str, Attack]:
    """Return the attacks by name; the first one carries the verdict.

    RMIA was named on runs of other seeds (docs/decisions/0012-headline.md). Without
    shadow models it is left out, and the loss threshold, which needs nothing of the
    adversary's own, is the first; on models that write, the token loss.
    """
    return {
        NAMED: ATTACKS.find(NAMED)(shadows=shadows),
        LOSS: ATTACKS.find(LOSS)(),
        **token_attacks(),
        **{name: ATTACKS.find(name)(shadows=shadows) for name in ON_SHADOWS},
        **{name: ATTACKS.find(name)() for name in OTHERS},
    }


def weight_attacks() -> dict[str, Attack]:
    """Return the attacks on what is sent, which train no models: seconds each.

    One of them carries the verdict where its own scores promise that members are almost
    certain (docs/decisions/0012-headline.md).
    """
    names = "joint-regression", "projection-residual"
    return {name: ATTACKS.find(name)() for name in names}
