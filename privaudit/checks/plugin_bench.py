"""A round of two clients under many keys, and pairs of data sets that are neighbours.

Federations side by side draw from one key under names of their own, so that hundreds of
them cost little more than one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from privaudit.core.errors import TooFewRecordsError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Tensors
from privaudit.federated.federation import Federation, give_away, run_round
from privaudit.federated.trainer import Events, Records, Task, Trainer
from privaudit.privacy.certificate import CertifiedView

PILOT = 32  # runs that tell the direction
AT_ONCE = 128  # federations side by side
ALIKE, LEAST_COMPARED, KEYS = 0.9, 40, 32
"""Correlation of so many independent normal values is so large in 1e-13 of all cases."""
RECORDS = 6  # of each of two clients
LOUD = 50.0  # times a real picture's features: of a record that any clip binds
TARGET, BYSTANDER = "client-0", "client-1"
Rows = Float[Tensor, "_ _"]  # a run and a number
Side = Literal["with", "without"]
SIDES: tuple[Side, Side] = ("with", "without")


@dataclass(frozen=True)
class Pair:
    """Two data sets of the target that are neighbours, or are twice.

    Attributes:
        name: What tells them apart, in words.
        shards: The target's records on either side.
        twice: Whether a neighbour of a neighbour stands on the other side.
    """

    name: str
    shards: Mapping[Side, Records]
    twice: bool = False


@dataclass(frozen=True)
class TrialBench:
    """Two clients with a few public records, and a round of theirs under many keys."""

    trainer: Trainer
    task: Task
    keys: Seeds
    first: dict[str, Events] = field(default_factory=dict)

    @property
    def shards(self) -> tuple[Records, Records, Records]:
        """The target's, the bystander's, and those that are left."""
        rows = torch.arange(len(self.task.public))
        cuts = (RECORDS, 2 * RECORDS)
        parts = (rows[: cuts[0]], rows[cuts[0] : cuts[1]], rows[cuts[1] :])
        if len(rows) < 2 * RECORDS + 2:
            raise TooFewRecordsError(
                f"A trial of a trainer's mechanisms takes {2 * RECORDS + 2} public "
                f"records, and there are {len(rows)}. Give more, by --public-share."
            )
        one, other, rest = (self.task.public.pick(part) for part in parts)
        return one, other, rest

    def events(self) -> Events:
        """Return the mechanisms of a round."""
        if "events" not in self.first:
            target, *_ = self.shards
            self.play(target, range(1))
        return self.first["events"]

    def play(
        self, target: Records, some: range, *, index: int = 0, keys: Seeds | None = None
    ) -> dict[CertifiedView, Rows]:
        """Play a round from the start in federations side by side; return all views.

        Clients of federations side by side draw from one key under names of their own.
        """
        parts = [
            self._play(target, some[first : first + AT_ONCE], index, keys or self.keys)
            for first in range(0, len(some), AT_ONCE)
        ]
        return {view: torch.cat([part[view] for part in parts]) for view in parts[0]}

    def _play(
        self, target: Records, some: range, index: int, keys: Seeds
    ) -> dict[CertifiedView, Rows]:
        _, bystander, _ = self.shards
        sizes = {TARGET: 2 * RECORDS, BYSTANDER: 2 * RECORDS}
        rounds = max(self.task.rounds, index + 1)  # noise may be set by their number
        task = replace(self.task, candidates=sizes, rounds=rounds)
        shards, public = {TARGET: target, BYSTANDER: bystander}, Seeds(0)
        federations = [
            Federation.begin(
                self.trainer,
                task,
                shards,
                public,
                f"run-{run}",
                keys.child("trial", run),
            )
            for run in some
        ]
        records = run_round(self.trainer, task, federations, index)
        self.first.setdefault("events", records[0].events)
        views: dict[CertifiedView, list[Tensor]] = {
            v: [] for v in get_args(CertifiedView)
        }
        for federation, record in zip(federations, records, strict=True):
            sent = {m.sender: m.tensors for m in record.messages if m.is_update}
            views["server"].append(_row(sent.get(TARGET, {})))
            views["server-aggregate"].append(_sum_of(list(sent.values())))
            models, messages = give_away(self.trainer, task, federation, index + 1)
            down = [m for m in messages if m.receiver == BYSTANDER]
            views["peer"].append(_row(down[0].tensors if down else {}))
            views["released"].append(_row(models[TARGET]))
        return {view: torch.stack(rows) for view, rows in views.items()}

    def impure(self) -> Iterator[str]:
        """Say whether the same key gives something else: then noise is not its own."""
        target, *_ = self.shards
        found = []
        for seed in (1, 2):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                state = np.random.get_state()  # noqa: NPY002 # what a trainer may draw from
                np.random.seed(seed)  # noqa: NPY002
                found.append(self.play(target, range(2)))
                np.random.set_state(state)  # noqa: NPY002
        if any(
            not torch.allclose(found[0][v], found[1][v], atol=1e-6) for v in found[0]
        ):
            yield (
                "One round under one key gives different results: something is drawn "
                "from a generator that all of a process share, and not from "
                "Round.secret, so that nothing says what the noise is."
            )

    def without_key(self, views: Sequence[CertifiedView]) -> Iterator[str]:
        """Say where another key changes nothing in a view that noise is to hide."""
        target, *_ = self.shards
        one, other = (
            self.play(target, range(2), keys=self.keys.child("another key", n))
            for n in range(2)
        )
        for view in views:
            if one[view].numel() and torch.allclose(one[view], other[view], atol=1e-9):
                yield (
                    f"What the view {view} holds is the same under every secret key: "
                    "there is no noise in it, or it follows from the public seed."
                )
                return

    def repeated(self, views: Sequence[CertifiedView]) -> Iterator[str]:
        """Say where the noise of two rounds, or of two clients, is the same."""
        target, *_ = self.shards
        one, other = (self.play(target, range(PILOT), index=n) for n in range(2))
        for view in views:
            alike = _alike(one[view], other[view])
            if abs(alike) > ALIKE:
                yield (
                    f"The noise of two rounds correlates at {alike:.2f} in the view "
                    f"{view}: whoever sees both subtracts it."
                )
        if "server" in views:
            alike = _alike(*self._uploads_of_two(target))
            if abs(alike) > ALIKE:
                yield (
                    f"The noise of two clients correlates at {alike:.2f}: whoever sees "
                    "both uploads subtracts it. Draw it under the client's name."
                )

    def _uploads_of_two(self, target: Records) -> tuple[Rows, Rows]:
        """Return both clients' uploads under keys of their own: one run each."""
        keys = [self.keys.child("key of two", n) for n in range(KEYS)]
        seen = [self.play(target, range(1), keys=key) for key in keys]
        first = torch.cat([views["server"] for views in seen])
        total = torch.cat([views["server-aggregate"] for views in seen])
        return first, total - first if total.shape == first.shape else torch.zeros(0)

    def pairs(self, events: Events) -> list[Pair]:
        """Return neighbours: with the record that shows most, of each kind there is."""
        target, _, rest = self.shards
        event = next(e for e in events if e.noise_multiplier > 0)
        replaced = event.adjacency == "replace-one"
        found = []
        for name, one, other in self._records(rest):
            if event.unit == "client":
                whole = torch.zeros(len(target), dtype=torch.long)
                sides: dict[Side, Records] = {
                    "with": one.pick(whole),
                    "without": other.pick(whole),
                }
                found.append(Pair(f"{name} alone", sides, twice=not replaced))
            else:
                base = Records.joined([target, other]) if replaced else target
                joined = Records.joined([target, one])
                found.append(Pair(name, {"with": joined, "without": base}))
        is_alone = event.unit == "record" and not replaced
        if is_alone and self.task.kind == "classification":
            # A batch's mean that is clipped, in place of each record, turns round.
            beside = Records.joined([target, other])
            louder = Records.joined([beside, replace(one, features=2 * one.features)])
            name = "a record that outweighs its opposite"
            found.append(Pair(name, {"with": louder, "without": beside}))
        return found

    def _records(self, rest: Records) -> Iterator[tuple[str, Records, Records]]:
        """Yield a record by its name, and one that is unlike it."""
        first = rest.pick(torch.tensor([0]))
        others = (rest.labels != first.labels).nonzero().flatten()
        unlike = rest.pick(others[:1] if len(others) else torch.tensor([-1]))
        yield "a record", first, unlike
        if self.task.kind == "classification":
            loud = replace(first, features=LOUD * first.features)
            opposed = replace(first, features=-LOUD * first.features)
            yield "a record that any clip binds", loud, opposed


def _alike(one: Rows, other: Rows) -> float:
    """Return how rows of the same runs correlate, less what all runs share."""
    if one.shape != other.shape or one.numel() < LEAST_COMPARED:
        return 0.0
    rows = [found - found.mean(dim=0) for found in (one, other)]
    rows = [row / row.norm(dim=0).clamp(min=1e-300) for row in rows]
    lengths = float(rows[0].norm() * rows[1].norm())
    return float((rows[0] * rows[1]).sum()) / lengths if lengths else 0.0


def _row(tensors: Tensors) -> Tensor:
    parts = [t.double().flatten() for _, t in sorted(tensors.items())]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def _sum_of(uploads: Sequence[Tensors]) -> Tensor:
    """Return the sum of uploads, as a row."""
    rows = [_row(upload) for upload in uploads]
    same = len({len(row) for row in rows}) == 1
    return torch.stack(rows).sum(dim=0) if same else torch.zeros(0).double()
