"""Evidence that rules look at, a run's own record of itself; rules, and their findings."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from jaxtyping import UInt8
from torch import Tensor

from privaudit.core.errors import TranscriptError
from privaudit.core.seeds import Randomness
from privaudit.core.storage import DAMAGE
from privaudit.core.tensors import Tensors
from privaudit.federation.trainer import ClientId, Task, Trainer
from privaudit.federation.transcript import Message
from privaudit.privacy.certificate import Certificate, CertifiedView, events_by_round
from privaudit.privacy.events import (
    Claim,
    ClientTrace,
    MechanismEvent,
    Release,
    RoundTrace,
    Unit,
)
from privaudit.recording.opacus import EngineNote
from privaudit.recording.origins.recorded import RecordedRun
from privaudit.recording.recorded_trainer import RecordedTrainer
from privaudit.runs.run import Run


@dataclass(frozen=True, eq=False)  # one is itself: what is read of it is kept by it
class Evidence:
    """A run as the rules see it; a test may alter any part of it.

    Attributes:
        certified: What is recorded as proved, per view.
        trace: The owner's notes on each round; None if nobody took any.
        members: A fingerprint of every record that a client trains on.
        randomness: Where noise and secret samples come from.
        is_open: Whether others than its owner may enter the run's folder.
        coin_seed: That tosses the membership coins again; None where none does.
        is_declared: Whether the mechanisms are somebody else's word: a recording's
            owner's, or another package's.
        engines: What clients' privacy engines noted: round, client and note.
    """

    trainer: Trainer
    name: str
    settings: Mapping[str, Any]
    task: Task
    claim: Claim
    certified: Mapping[CertifiedView, Certificate]
    rounds: Sequence[Sequence[MechanismEvent]]
    messages: Sequence[Message]
    trace: Sequence[RoundTrace] | None
    members: Mapping[ClientId, Sequence[str]]
    dataset: str
    seed: int | None
    randomness: Randomness = "seed"
    is_open: bool = False
    coin_seed: int | None = None
    is_declared: bool = False
    engines: Sequence[tuple[int, ClientId, EngineNote]] = ()

    @classmethod
    def of(cls, run: Run) -> "Evidence":
        """Read a finished run."""
        trainer = run.require_complete().trainer  # scores alone have none to check
        claim, certified, rounds = _read_privacy(run)
        return cls(
            trainer=trainer,
            name=run.config.trainer,
            settings=run.config.settings,
            task=run.population.task,
            claim=claim,
            certified=certified,
            rounds=rounds,
            messages=tuple(run.transcript),
            trace=run.trace,
            members=_members(run),
            dataset=run.config.dataset,
            seed=run.config.seed,
            randomness=run.config.randomness,
            coin_seed=run.coin_seed,
            is_open=os.name == "posix" and bool(run.path.stat().st_mode & 0o077),
            is_declared=not run.config.applies_mechanisms,
            engines=run.engines if isinstance(run, RecordedRun) else (),
        )

    def claiming(self, claim: Claim) -> "Evidence":
        """Return the same of another claim, with certificates for its delta."""
        certified = {
            view: one.at(claim.delta, self.rounds)
            for view, one in self.certified.items()
        }
        return replace(self, claim=claim, certified=certified)

    def setting(self, *names: str) -> tuple[str, ...]:
        """Return those of the trainer's parameters that it has, as "name=value"."""
        return tuple(
            f"{name}={self.settings[name]}"
            for name in names
            if self.settings.get(name) is not None
        )

    @property
    def word(self) -> str:
        """What an epsilon of the accountant's is: "certified", or "declared"."""
        return "declared" if self.is_declared else "certified"

    @property
    def given(self) -> str:
        """Likewise, as a verb."""
        return "declared" if self.is_declared else "proved"

    @cached_property
    def sends(self) -> bool:
        """Whether clients sent any update, singly or in a sum."""
        return any(m.is_update or m.kind == "sum" for m in self.messages)

    @cached_property
    def is_noised(self) -> bool:
        """Whether any mechanism has noise."""
        return any(event.noise_multiplier > 0 for _, event in self.events())

    @cached_property
    def unit(self) -> Unit:
        """What the mechanisms protect; a record where there are none."""
        return next((event.unit for _, event in self.events()), "record")

    @cached_property
    def claim_holds(self) -> bool:
        """Whether the claim holds in some view, and not less in `released`.

        Proved, or as declared.
        """
        claimed = self.claim.epsilon
        proved = {v: c.stated for v, c in self.certified.items()}
        covered = [e for e in proved.values() if e is not None and claimed is not None]
        released = proved.get("released")
        if claimed is None or (released is not None and released > claimed):
            return False
        return any(epsilon <= claimed for epsilon in covered)

    def events(self) -> Iterator[tuple[int, MechanismEvent]]:
        """Yield every mechanism with its round."""
        for index, events in enumerate(self.rounds):
            for event in events:
                yield index, event

    def event_of(self, index: int, release: Release) -> MechanismEvent | None:
        """Return a round's mechanism for a release, if it has one."""
        events = self.rounds[index] if index < len(self.rounds) else ()
        return next((event for event in events if event.release == release), None)

    def server_step(self, index: int) -> tuple[MechanismEvent, Tensors, Tensors] | None:
        """Return a round's noise of the server, and the broadcasts before and after it.

        None where it declares none, or where one was not broadcast.
        """
        event = self.event_of(index, "global")
        before, after = (self.broadcasts.get(i) for i in (index, index + 1))
        if event is None or event.noise_at != "server" or not (before and after):
            return None
        return event, before, after

    def notes(self) -> Iterator[tuple[int, ClientId, ClientTrace]]:
        """Yield what every client noted in every round."""
        for index, traced in enumerate(self.trace or ()):
            for client, notes in traced.items():
                yield index, client, notes

    @cached_property
    def uploads(self) -> dict[int, list[Message]]:
        """What clients sent to the server, by round."""
        by_round = defaultdict(list)
        for message in self.messages:
            if message.is_update:
                by_round[message.round].append(message)
        return dict(by_round)

    @cached_property
    def sums(self) -> dict[int, list[tuple[Message, list[ClientId]]]]:
        """The sums of updates that the server learned, and whose, by round.

        Survivors are numbered as a recording's clients are, or else as those who got
        the round's broadcast.
        """
        by_round, voices, asked = defaultdict(list), list[ClientId](), defaultdict(list)
        recorded = isinstance(self.trainer, RecordedTrainer)
        for message in self.messages:
            if message.kind == "broadcast":
                asked[message.round].append(message.receiver)
            elif message.kind == "survivors":
                numbers = message.tensors["clients"].tolist()
                names = asked[message.round]
                voices = [str(n) if recorded else names[n] for n in numbers]
            elif message.kind == "sum":
                by_round[message.round].append((message, voices))
        return dict(by_round)

    @cached_property
    def participants(self) -> dict[int, list[ClientId]]:
        """Who sent an update, by round; where there are sums alone, their numbers."""
        summed = {
            index: [voice for _, voices in some for voice in voices]
            for index, some in self.sums.items()
        }
        return summed | {
            i: [m.sender for m in some] for i, some in self.uploads.items()
        }

    @cached_property
    def broadcasts(self) -> dict[int, Tensors]:
        """What the server sent in each round, to one of those who got it."""
        by_round: dict[int, Tensors] = {}
        for message in self.messages:
            if message.kind == "broadcast":
                by_round.setdefault(message.round, message.tensors)
        return by_round


def _read_privacy(
    run: Run,
) -> tuple[Claim, dict[CertifiedView, Certificate], list[list[MechanismEvent]]]:
    """Return what privacy.json says: the claim, certificates, mechanisms by round."""
    privacy = run.privacy
    try:
        certified = {
            view: Certificate.from_json(fields)
            for view, fields in privacy["certified"].items()
        }
        rounds = events_by_round(privacy["mechanisms"], run.config.rounds)
        return Claim(**privacy["claimed"]), certified, rounds
    except (*DAMAGE, IndexError) as error:
        raise TranscriptError(
            f"{run.path / 'privacy.json'} cannot be read as a privacy record "
            f"({error!r}): it was altered, or is of another version. Train again."
        ) from None


def _members(run: Run) -> dict[ClientId, list[str]]:
    """Return the fingerprint of every record that each client trained on."""
    contents, clients = run.population.dataset.contents, run.population.task.clients
    return {
        client: fingerprints(contents[torch.from_numpy(run.ledger.members_of(number))])
        for number, client in enumerate(clients)
    }


def fingerprints(contents: UInt8[Tensor, "records bytes"]) -> list[str]:
    """Return the hash of each record's picture and words, whatever its label.

    A picture that was changed, or is stored as another file, has another one.
    """
    return [row.tobytes().hex() for row in contents.numpy()]


Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One thing that a rule found.

    Attributes:
        severity: "error": the claim does not hold, or the record of it is wrong.
            "warning": it holds against fewer adversaries, or on a condition, that a
            reader would miss. "note": what could not be checked, or is as it should be.
        settings: What causes it, as "name=value".
    """

    rule: str
    severity: Severity
    sentence: str
    settings: tuple[str, ...] = ()

    def __str__(self) -> str:
        cause = f" [{', '.join(self.settings)}]" if self.settings else ""
        return f"{self.severity}: {self.rule}: {self.sentence}{cause}"

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON's types."""
        return asdict(self) | {"settings": list(self.settings)}


Found = Iterator[tuple[Severity, str] | tuple[Severity, str, tuple[str, ...]]]
"""Severity, sentence and, where any cause it, settings of each finding."""


@dataclass(frozen=True)
class Rule:
    """One question about a run."""

    name: str
    question: str
    check: Callable[[Evidence], Found]

    def __call__(self, evidence: Evidence) -> list[Finding]:
        """Return what it finds."""
        return [Finding(self.name, *fields) for fields in self.check(evidence)]


def rule(check: Callable[[Evidence], Found]) -> Rule:
    """Return the rule that is called as a function is, and asks its docstring's line."""
    question = (check.__doc__ or "").partition("\n")[0]
    return Rule(check.__name__.replace("_", "-"), question, check)
