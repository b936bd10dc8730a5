"""A recorded federation as a run: everything that an audit asks of one."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from privaudit.core.errors import ConfigError, TranscriptError
from privaudit.core.storage import parse_json
from privaudit.core.tensors import LazyTensors, Tensors, all_finite
from privaudit.datasets.dataset import Dataset
from privaudit.datasets.split import PUBLIC, Split
from privaudit.federation.trainer import ClientId, Records, Task
from privaudit.federation.transcript import MASKED_KINDS, SERVER, Message, Transcript
from privaudit.federation.uploads import WEIGHT
from privaudit.models.interfaces import OwnersModel
from privaudit.privacy.certificate import declared_only
from privaudit.privacy.events import Claim
from privaudit.recording.bundle import BUNDLE, ORIGIN, Bundle, RecordedConfig, bundle_of
from privaudit.recording.opacus import EngineNote
from privaudit.recording.owner import Owner, chosen_owner
from privaudit.recording.recorded_trainer import (
    IndividualRecordedTrainer,
    RecordedTrainer,
    as_summed,
    escaped,
    escaped_name,
)
from privaudit.runs.population import Population
from privaudit.runs.run import RUN_ORIGINS, Run
from privaudit.statistics.verdict import Sampling


@dataclass(frozen=True)
class OwnersRecords:
    """Records that only their owner has: nothing of them is known but their number.

    Attributes:
        digest: What the recording says is the data's hash.
        hashes: Of each record, where the owner has them.
    """

    count: int
    digest: str
    hashes: UInt8[np.ndarray, "n bytes"] | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        """Return no picture."""
        raise ConfigError(
            "A record of a recorded federation was to be shown, and its owner has it. "
            "Leave pictures out of the report."
        )

    @property
    def contents(self) -> Sequence[bytes]:
        """The owner's hash of each record, or else its position."""
        if self.hashes is not None:
            return [row.tobytes() for row in self.hashes]
        return [n.to_bytes(8, "little") for n in range(self.count)]


@RUN_ORIGINS.register(ORIGIN)
@dataclass(frozen=True)
class RecordedRun(Run):
    """A federation that others trained; its models are asked by its owner's functions.

    Attributes:
        owner: The owner's functions; by default those that were chosen.
    """

    path: Path
    owner: Owner | None = None

    @cached_property
    def asked(self) -> Owner | None:
        """The owner's functions; None without any: then nothing can be asked."""
        return self.owner or chosen_owner()

    @cached_property
    def bundle(self) -> Bundle:
        """What whoever recorded the federation declares of it."""
        place = self.path / BUNDLE
        return bundle_of(parse_json(self.read(BUNDLE), place), place)

    @cached_property
    def engines(self) -> tuple[tuple[int, ClientId, EngineNote], ...]:
        """What clients' privacy engines noted: round, client and note."""
        return tuple((one.round, one.client, one.note) for one in self.bundle.engines)

    @cached_property
    def config(self) -> RecordedConfig:
        """What is known of how the federation was made."""
        return self._checked_config(RecordedConfig)

    @cached_property
    def privacy(self) -> dict[str, Any]:
        """What is claimed, and declared: nothing of it is certified."""
        try:
            return declared_only(super().privacy)
        except (TypeError, KeyError, AttributeError) as error:
            raise TranscriptError(
                f"{self.path / 'privacy.json'} cannot be read as a privacy record "
                f"({error!r}): it was altered, or is of another version. Record again."
            ) from None

    @cached_property
    def trainer(self) -> RecordedTrainer:
        """The owner's functions behind the interface of a trainer."""
        sent = (m.tensors for m in self.transcript if m.kind == "broadcast")
        first: Tensors = next(sent, {})
        claimed = Claim(**self.bundle.claimed.model_dump())
        declared = self.bundle.aggregation
        alone = declared.kind == "individual"
        made = IndividualRecordedTrainer if alone else RecordedTrainer
        return made(declared, first, claimed, self.asked)

    @cached_property
    def population(self) -> Population:
        """Positions in the owner's data, and who owns them."""
        truth, names = self.truth, self.truth.clients
        count = len(truth.owner)
        labels, hashes = self._labels(count), self._hashes(count)
        split = Split(truth.owner)
        records = Records(
            features=torch.arange(count, dtype=torch.float64)[:, None],
            labels=labels,
            contents=None if hashes is None else torch.from_numpy(hashes),
        )
        classes = self.asked.names_of_classes if self.asked else ("-",)
        owned = OwnersRecords(count, self.header["data_hash"], hashes)
        candidates = {c: len(split.of(n)) for n, c in enumerate(names)}
        kind = self.asked.task if self.asked else "classification"
        public = split.of(PUBLIC)
        if not len(public):  # the candidates are their own reference, truth unknown
            public = np.flatnonzero(truth.owner >= 0)
        return Population(
            Dataset(owned, labels, classes),
            records,
            split,
            Task(
                backbone=OwnersModel(kind),
                public=records.pick(torch.from_numpy(public)),
                candidates=candidates,
                rounds=self.config.rounds,
            ),
            self.header["model_hash"],
        )

    def _labels(self, count: int) -> Tensor:
        if self.asked is None or self.asked.labels is None:
            return torch.zeros(count, dtype=torch.long)
        if len(self.asked.labels) != count:
            raise ConfigError(
                f"{self.asked.name} has {len(self.asked.labels)} labels, and the ledger "
                f"of {self.name} has {count} records. Give the class of each, in the "
                "ledger's order."
            )
        return torch.from_numpy(self.asked.labels)

    def _hashes(self, count: int) -> UInt8[np.ndarray, "n bytes"] | None:
        hashes = None if self.asked is None else self.asked.contents
        if hashes is not None and len(hashes) != count:
            raise ConfigError(
                f"The owner's module has the contents of {len(hashes)} records, and the "
                f"ledger of {self.name} has {count}. Give each, in the ledger's order."
            )
        return None if hashes is None else hashes.copy()

    @cached_property
    def transcript(self) -> Transcript:
        """Everything that was sent; uploads as sums are made of them, when asked for.

        What is on disk is as it was sent, and checked as such.
        """
        received: dict[ClientId, Tensors] = {}
        made: dict[Hashable, Tensors] = {}  # many messages may hold one upload
        summed = []
        recorded = super().transcript
        for message in recorded:
            if message.kind == "broadcast":
                received[message.receiver] = message.tensors
            before = received.get(message.sender, {}) if message.is_update else {}
            key = message.kind, id(message.tensors), id(before) if before else None
            if key not in made:
                made[key] = self._summed(message, before)
            summed.append(replace(message, tensors=made[key]))
        return Transcript(summed, recorded.end, recorded.shards)

    def _summed(self, message: Message, received: Tensors) -> Tensors:
        """Return what a message holds under names, and as sums, that mean it here."""
        declared, sent = self.bundle.aggregation, message.tensors
        if message.kind in MASKED_KINDS:
            return sent
        weight = declared.weight if message.is_update or message.kind == "sum" else None
        names = {escaped_name(name): name for name in sent if name != weight}

        def find(name: str) -> Tensor:
            if weight is None and not message.is_update:
                return sent[names[name]]
            asked = {names.get(name, weight), weight}
            own = {n: sent[n] for n in sent if n in asked}
            if message.kind == "sum":
                return _renamed(own, weight)[name]
            before = {n: received[n] for n in own if n in received}
            return as_summed(own, before, declared)[name]

        has_weight = message.is_update or (message.kind == "sum" and weight in sent)
        return LazyTensors([*names, *[WEIGHT] * has_weight], find)

    @cached_property
    def left_out(self) -> tuple[ClientId, ...]:
        """Clients whose last upload is not finite, of another form, or not whole.

        Nobody where that is everybody: then what fails gives the reason. Nobody
        either where the owner's ``reconstruct`` says what an upload means.
        """
        if self.asked is not None and self.asked.reconstruct is not None:
            return ()
        last = {m.sender: m.tensors for m in self.transcript if m.is_update}
        downs = (m for m in self.transcript if m.kind == "broadcast")
        received: dict[ClientId, Tensors] = {m.receiver: m.tensors for m in downs}
        returned = set().union(*last.values())
        damaged = tuple(
            client
            for client, sent in last.items()
            if not all_finite(sent)
            or returned & received.get(client, {}).keys() - sent.keys()
            or _are_of_other_shapes(sent, received.get(client, {}))
        )
        return damaged if len(damaged) < len(last) else ()

    @cached_property
    def personal_models(self) -> dict[ClientId, Tensors]:
        """Each client's model after the last round: what it released, or received."""
        view = [m for m in self.transcript if m.kind in ("broadcast", "release")]
        models: dict[ClientId, Tensors] = {}
        for message in sorted(view, key=lambda m: m.kind == "release"):
            who = message.receiver if message.sender == SERVER else message.sender
            models[who] = message.tensors
        return {c: models[c] for c in self.population.task.clients if c in models}

    @property
    def has_utility(self) -> bool:
        """Whether the owner's functions say what a model is good for."""
        asked = self.asked
        if asked is None or not self.personal_models:
            return False
        return asked.utility is not None or asked.task == "classification"

    @property
    def sampling(self) -> Sampling:
        """How members were chosen; unknown, too, where the ledger does not say."""
        return "unknown" if self.truth.coin is None else self.truth.sampling

    @property
    def trains_shadows(self) -> bool:
        """Whether the owner's functions say how a client trains."""
        return self.asked is not None and self.asked.local_update is not None

    @property
    def fingerprint(self) -> str:
        """What answers that are kept for later depend on besides the recording."""
        return self.asked.code if self.asked else ""


def _are_of_other_shapes(sent: Tensors, received: Tensors) -> bool:
    """Say whether an upload has a tensor of another shape than what was received."""
    both = sent.keys() & received.keys()
    return any(sent[name].shape != received[name].shape for name in both)


def _renamed(tensors: Tensors, weight: str | None) -> dict[str, Tensor]:
    """Return a sum with its weight under the name that means it."""
    named = escaped({n: t for n, t in tensors.items() if n != weight})
    if weight is not None and weight in tensors:
        named[WEIGHT] = tensors[weight].reshape(()).float()
    return named
