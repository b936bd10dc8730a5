"""Inversion: what a server reads of records themselves out of uploads; scored elsewhere.

A batch is described by the mean of its records' numbers, so that what uploads tell of a
batch is put in terms that a person knows: classes and features, or words.

*Learned inversion.* The server simulates clients: it trains them on batches of public
records, from what a client received and as the method says, and so knows uploads whose
batches it drew itself. The best linear estimate of a batch from its upload follows.
Source: Wu, Chen, Guo and Weinberger, "Learning to invert: simple adaptive attacks for
gradient inversion in federated learning", UAI 2023. Theirs is a network from gradients to
records; here it is ridge regression of a batch's mean description, because a mean is what a
sum of gradients can tell.

*Gradient matching.* Where an upload is of few records, its numbers outnumber theirs. Dummy
records are moved until a client that trains on them, with all its local steps, sends the
same. Source: Zhu, Liu and Han, "Deep leakage from gradients", NeurIPS 2019; Geiping et al.,
"Inverting gradients", NeurIPS 2020; on prompts, arXiv 2403.07901. They descend along the
gradient of a distance of gradients; here are Levenberg-Marquardt steps on the L2 distance,
with derivatives by finite differences of the replayed training, so that any trainer's local
steps can be replayed as they are.

*Moved rows.* A token's row of a trained embedding table gets a gradient from the texts that
hold it and from no others, and SGD and Adam without weight decay move nothing else. So the
rows that are not as they were received are exactly the tokens of a client's texts, after any
number of local steps. Where every row moved, by noise or by decay, nothing is read. Source:
Melis, Song, De Cristofaro and Shmatikov, "Exploiting unintended feature leakage in
collaborative learning", IEEE S&P 2019, section 4.1; after it Gupta et al., "Recovering
private text in federated learning of language models", NeurIPS 2022.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from privaudit.auditing.attack import Adversary, Target
from privaudit.core.errors import AttackError
from privaudit.core.lazy_torch import Tensor, functional, torch
from privaudit.core.seeds import Stream
from privaudit.core.tensors import Stacked, Tensors
from privaudit.datasets.records import ANSWER, PADDING
from privaudit.federation.rounds import count_participants
from privaudit.federation.trainer import (
    ClientId,
    LearnsPrompt,
    Records,
    ShowsChoices,
    Task,
)
from privaudit.federation.uploads import COORDINATES, WEIGHT, update_deltas
from privaudit.models.interfaces import Classifier, OwnersModel
from privaudit.models.transformers.towers import TextEncoderTower
from privaudit.statistics.progress import Phase
from privaudit_labs.simulated_clients import train_simulated_clients

LEAST_SHARE = 1e-3  # of the largest variance: directions below are left out


@dataclass(frozen=True)
class ClassesAndFeatures:
    """Which class a record has, and by what its feature differs from others of it.

    Attributes:
        centres: Mean feature of each class's public records.
        axes: Directions in which records of a class differ, of unit variance each.
        spread: Their standard deviations, largest first.
    """

    centres: Float[Tensor, "classes dim"]
    axes: Float[Tensor, "axes dim"]
    spread: Float[Tensor, " axes"]

    @classmethod
    def learn(cls, public: Records, reads_features: bool) -> "ClassesAndFeatures":
        """Return the description that public records give."""
        features = public.features.double()
        hot = functional.one_hot(public.labels).double()
        counts = hot.sum(dim=0).clamp(min=1)
        centres = (hot.T @ features) / counts[:, None]
        _, spread, axes = torch.linalg.svd(
            features - centres[public.labels], full_matrices=False
        )
        spread = spread / len(public) ** 0.5
        kept = (spread**2 > LEAST_SHARE * spread[:1] ** 2) & reads_features
        return cls(centres, axes[kept], spread[kept].clamp(min=1e-12))

    def of(self, records: Records) -> Float[Tensor, "records numbers"]:
        """Return the class's indicators, and the feature's place within the class."""
        hot = functional.one_hot(records.labels, len(self.centres)).double()
        inside = records.features.double() - self.centres[records.labels]
        coordinates = inside @ self.axes.T / self.spread
        return torch.cat(
            [hot, (hot[:, :, None] * coordinates[:, None]).flatten(1)], dim=1
        )

    def shares(self, mean: Float[Tensor, " numbers"]) -> Float[Tensor, " classes"]:
        """Return the share of each class in a described batch; they sum to 1."""
        shares = mean[: len(self.centres)].clamp(min=0)
        return shares / shares.sum().clamp(min=1e-12)

    def features(self, mean: Float[Tensor, " numbers"]) -> Float[Tensor, "classes dim"]:
        """Return the mean feature of each class's records in a described batch."""
        classes = len(self.centres)
        coordinates = mean[classes:].view(classes, len(self.axes))
        shares = mean[:classes, None].clamp(min=0.5 / len(self.centres) ** 2)
        return self.centres + (coordinates / shares * self.spread) @ self.axes


@dataclass(frozen=True)
class Words:
    """Which tokens a record's answer holds."""

    ids: Int[Tensor, " tokens"]

    @classmethod
    def learn(cls, public: Records) -> "Words":
        """Return the description that public records give."""
        if public.words is None:
            raise AttackError(
                "Texts were to be read out of uploads, but nothing is known of this "
                "run's texts. Attack its models instead: --scenario server-reconstruct."
            )
        return cls(public.words.ids[public.words.kinds == ANSWER].unique())

    def of(self, records: Records) -> Float[Tensor, "records numbers"]:
        """Return 1 where a record's answer holds a token, else 0."""
        assert records.words is not None
        ids, kinds = records.words.ids, records.words.kinds
        column = torch.searchsorted(self.ids, ids).clamp(max=len(self.ids) - 1)
        known = (kinds == ANSWER) & (self.ids[column] == ids)
        held = torch.zeros(len(ids), len(self.ids), dtype=torch.float64)
        return held.scatter_add(1, column, known.double()).clamp(max=1)


Description = ClassesAndFeatures | Words


def learn_description(task: Task) -> Description:
    """Return what can be read of a task's records."""
    if task.kind == "generation":
        return Words.learn(task.public)
    owners = isinstance(task.backbone, OwnersModel)
    return ClassesAndFeatures.learn(task.public, reads_features=not owners)


AT_ONCE = 64  # simulated clients that train together
T = TypeVar("T")


@dataclass(frozen=True)
class SeenUpload:
    """What one client sent in a round, or the sum of several, beside what it received.

    Attributes:
        sent: Tensors by name, weights included.
        clients: How many are in it: 1, or more for a sum.
    """

    round: int
    sent: Tensors
    received: Tensors
    clients: int

    @property
    def records(self) -> float | None:
        """How many records it is a mean over; None where it does not say."""
        return float(self.sent[WEIGHT]) if WEIGHT in self.sent else None

    @cached_property
    def delta(self) -> Float[Tensor, " numbers"]:
        """What the upload moved, its weight divided out, as one vector.

        Of a sum, the mean over its clients, if it says no weight.
        """
        sent = {name: tensor.unsqueeze(0) for name, tensor in self.sent.items()}
        if self.clients > 1 and self.records is None:
            sent = {
                name: tensor.double() / self.clients for name, tensor in sent.items()
            }
        return self.rows(sent)[0]

    def rows(self, sent: Stacked) -> Float[Tensor, "k numbers"]:
        """Return what uploads like this one moved, as one vector each."""
        deltas = update_deltas(sent, self.received)
        flat = [
            deltas[n].unsqueeze(1).flatten(1).double()
            for n in sorted(deltas.keys() & self.sent.keys())
        ]
        return torch.cat(flat, dim=1)

    def slice_of(self, name: str) -> slice | None:
        """Return where a tensor's numbers stand in a row of what moved.

        None where not all that was received is sent back: as tensors of the same names,
        or as one row of them in the order of names.
        """
        first, found = 0, None
        for one in sorted(self.received.keys() - {COORDINATES}):
            last = first + self.received[one].numel()
            found, first = (slice(first, last) if one == name else found), last
        return found if first == len(self.delta) else None

    def replay(
        self,
        adversary: Adversary,
        clients: Sequence[ClientId],
        shards: Sequence[Records],
    ) -> Float[Tensor, "clients numbers"]:
        """Return what clients with these records would move, from the same start.

        They train as the method says, with all local steps, clipping and noise of their
        own. What a client keeps to itself is as it starts.
        """
        trainer, task = adversary.trainer, adversary.task
        if isinstance(trainer, ShowsChoices):
            trainer = trainer.with_choices_of(self.sent)
        count = count_participants(len(task.clients), adversary.participation)
        parts = []
        for first in range(0, len(shards), AT_ONCE):
            names = clients[first : first + AT_ONCE]
            some = [replace(s, views=None) for s in shards[first : first + AT_ONCE]]
            result = train_simulated_clients(
                trainer, task, self.received, names, some, adversary.seeds, self.round,
                task.clients[:count],
            )  # fmt: skip
            parts.append(self.rows(result.sent))
        return torch.cat(parts)

    def same_start(self, other: "SeenUpload") -> bool:
        """Say whether simulated clients would move alike in both."""
        return self.sent.keys() == other.sent.keys() and all(
            torch.equal(tensor, other.received[name])
            for name, tensor in self.received.items()
        )


def seen_uploads(adversary: Adversary, client: ClientId, most: int) -> list[SeenUpload]:
    """Return a client's uploads, evenly spaced, at most so many; or sums with it."""
    view = adversary.view
    if not view.sees_updates_of(client) and view.last_sum is not None:
        return [
            SeenUpload(s.index, dict(s.total), s.broadcast, s.parties)
            for s in _spaced(view.sums, most)
        ]
    return [
        SeenUpload(m.round, m.tensors, view.received_in(client, m.round).tensors, 1)
        for m in _spaced(view.updates_of(client), most)
    ]


def _spaced(found: Sequence[T], most: int) -> list[T]:
    count = min(most, len(found))
    return [found[len(found) * number // count] for number in range(count)]


STEPS, STALLED = 12, 0.99
"""Of each guess: steps, and the part of the distance left after one that ends them."""
MORE_STEPS, MORE_STALLED = 100, 0.9999
"""Of the best guess: where a record is far from public ones the way is long."""
DAMPING = tuple(10.0**-power for power in range(6))
"""Of steps that are tried together, relative to the largest singular value."""
NUDGE = 1e-2  # float32 tells what it does to an upload; features are of unit length
MATCHED = 1e-3  # relative distance at which uploads are the same


@dataclass(frozen=True)
class MatchedBatch:
    """Dummy records, and how close what they would send is to what was sent.

    Attributes:
        features: Of unit length.
        distance: Of the uploads, relative to the real one; 0 is a match.
    """

    features: Float[Tensor, "records dim"]
    labels: Int[Tensor, " records"]
    distance: float


def match(
    adversary: Adversary,
    seen: SeenUpload,
    batches: Sequence[Records],
    axes: Float[Tensor, "axes dim"],
) -> MatchedBatch:
    """Return the best of some batches, after their features were matched to an upload.

    Args:
        adversary: Replays training with the method, and seeds of its own.
        seen: The upload, of as many records as each batch has.
        batches: Where matching begins, the best guess first: labels, with features.
        axes: Directions that features are moved along, orthogonal, of unit length.
    """
    found: list[MatchedBatch] = []
    for batch in batches:
        found.append(_match(adversary, seen, batch, axes, STEPS, STALLED))
        if found[-1].distance <= MATCHED:
            return found[-1]
    best = min(found, key=lambda matched: matched.distance)
    start = Records(best.features, best.labels)
    return _match(adversary, seen, start, axes, MORE_STEPS, MORE_STALLED)


def _match(
    adversary: Adversary,
    seen: SeenUpload,
    batch: Records,
    axes: Float[Tensor, "axes dim"],
    steps: int,
    stalled: float,
) -> MatchedBatch:
    goal, size = seen.delta, len(batch)

    def sent(dummies: Float[Tensor, "guesses records dim"]) -> Tensor:
        shards = [
            Records(functional.normalize(d, dim=1).float(), batch.labels)
            for d in dummies
        ]
        return seen.replay(adversary, ["dummy"] * len(shards), shards)

    dummies = batch.features.double()
    missing = goal - sent(dummies[None])[0]
    single = torch.eye(size, dtype=axes.dtype)
    nudges = torch.einsum("rs,ad->rasd", single, axes).flatten(0, 1)
    for _ in range(steps):
        if missing.norm() <= MATCHED * goal.norm():
            break
        slopes = (sent(dummies + NUDGE * nudges) - (goal - missing)) / NUDGE
        tried = torch.einsum("tn,nsd->tsd", _steps(slopes, missing), nudges)
        left = goal - sent(dummies + tried)
        best = int(left.norm(dim=1).argmin())
        if left[best].norm() > stalled * missing.norm():
            break
        dummies, missing = (
            functional.normalize(dummies + tried[best], dim=1),
            left[best],
        )
    distance = float(missing.norm() / goal.norm().clamp(min=1e-30))
    return MatchedBatch(
        functional.normalize(dummies, dim=1).float(), batch.labels, distance
    )


def _steps(
    slopes: Float[Tensor, "inputs numbers"], missing: Float[Tensor, " numbers"]
) -> Float[Tensor, "steps inputs"]:
    """Return damped least-squares steps, from short ones to the full one."""
    left, values, right = torch.linalg.svd(slopes, full_matrices=False)
    along = right @ missing
    damping = torch.tensor(DAMPING, dtype=slopes.dtype)[:, None] * values.max()
    gains = values / (values**2 + damping**2).clamp(min=1e-300)
    return (gains * along) @ left.T


MISTAKE = 1e-6  # that rounding hides a token's row, or moves another


@dataclass(frozen=True)
class ReadTokens:
    """Which tokens a client's texts hold.

    Attributes:
        expected: How probably a batch of as many public texts holds each, in (0, 1).
    """

    held: Bool[Tensor, " vocabulary"]
    expected: Float[Tensor, " vocabulary"]

    def guessed(self) -> "ReadTokens":
        """Return what public texts alone say."""
        return ReadTokens(self.expected > 0.5, self.expected)

    def of(self, records: Records) -> Bool[Tensor, " vocabulary"]:
        """Return which tokens some records hold together."""
        together = torch.zeros_like(self.held)
        together[tokens_of(records)[1]] = True
        return together

    def scores(self, records: Records) -> Float[Tensor, " records"]:
        """Return how much likelier what was read is if a record was in the batch.

        The logarithm of a ratio of probabilities: a member's tokens are all read, and
        another's by chance.
        """
        chance = torch.where(self.held, self.expected, 1 - self.expected)
        surely = torch.where(self.held, 1 - MISTAKE, MISTAKE)
        rows, tokens = tokens_of(records)
        gains = (surely.double() / chance).log()[tokens]
        return gains.new_zeros(len(records)).index_add(0, rows, gains)


def tokens_of(records: Records) -> tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
    """Return each pair of a record and a token that it holds, once."""
    assert records.words is not None
    ids, kinds = records.words.ids, records.words.kinds
    rows, columns = (kinds != PADDING).nonzero(as_tuple=True)
    pairs = torch.stack([rows, ids[rows, columns]]).unique(dim=1)
    return pairs[0], pairs[1]


def read_tokens(
    adversary: Adversary, uploads: Sequence[SeenUpload], count: float
) -> ReadTokens | None:
    """Return which tokens uploads of so many records tell; None where they tell none.

    So it is without a table, where nothing of it moved or all did, where weights decay,
    which moves each row that is not zero, and of sums, whose rounding moves rows, too.
    """
    task = adversary.task
    if task.public.words is None or not isinstance(task.backbone, Classifier):
        return None
    tower = task.backbone.tower
    decays = getattr(adversary.trainer, "weight_decay", 0.0) > 0
    if decays or not isinstance(tower, TextEncoderTower):
        return None
    table = tower.model.get_input_embeddings().weight
    name = next(name for name, held in tower.weights.items() if held is table)
    found = [moved_rows(one, name) for one in uploads if one.clients == 1]
    moved = [rows for rows in found if rows is not None]
    if not moved or not (held := torch.stack(moved).any(dim=0)).any():
        return None
    empty = (uploads[0].received[name] == 0).all(dim=1)  # nothing shrinks a zero
    if (held | empty).all():
        return None
    _, tokens = tokens_of(task.public)
    shares = (tokens.bincount(minlength=len(held)) + 0.5) / (len(task.public) + 1)
    expected = 1 - (1 - shares.double()) ** count
    return ReadTokens(held, expected.clamp(MISTAKE, 1 - MISTAKE))


def moved_rows(one: SeenUpload, table: str) -> Bool[Tensor, " rows"] | None:
    """Return which rows of a table are not as they were received; None if it is not sent.

    To the last bit: what one client does not train is sent as it came, times the
    upload's weight, or as a move of zero.
    """
    numbers = one.slice_of(table)
    if numbers is None:
        return None
    before = one.received[table]
    if table not in one.sent:  # but all that moved, in a row
        return (one.delta[numbers].view(before.shape) != 0).any(dim=1)
    sent, weight = one.sent[table], one.sent.get(WEIGHT, torch.tensor(1.0))
    as_it_came = (sent == before * weight).all(dim=1)
    by_nothing = (sent == 0).all(dim=1)
    return ~(as_it_came | by_nothing)


BIAS = "head.bias"
FOLDS = 4
LEAST = 1e-9  # variance of shares in which no batch differs


def shares_by_bias(
    moved: Float[Tensor, "examples classes"],
    shares: Float[Tensor, "examples classes"],
    asked: Float[Tensor, " classes"],
) -> tuple[Float[Tensor, " classes"], Float[Tensor, " classes"]]:
    """Return the share of each class in a batch, and the part of the variance it tells.

    In closed form, of a classifier's own bias. The gradient of the mean cross-entropy by
    the bias of class k is the mean probability of k less the share of k. A step of SGD
    moves it by the learning rate times that, so the move is linear in the shares, with
    one slope for all classes; several steps add up to nearly that. Slope and
    probabilities are those of simulated clients: momentum and schedules need no formula.

    Source: Zhao, Mopuri and Bilen, "iDLG: improved deep leakage from gradients", 2020,
    for one record, whose class alone moves up; Yin et al., "See through gradients: image
    batch recovery via GradInversion", CVPR 2021, and Wainakh et al., "User-level label
    leakage from gradients in federated learning", PoPETs 2022, for batches. They take
    the weights of the last layer; a bias needs no features.

    1 where moves tell shares exactly, 0 where they tell nothing. It is that of examples
    outside of the fold on which the line was fitted; example n is in fold n modulo
    ``FOLDS``.

    Args:
        moved: How far training on each example's batch moved the bias.
        shares: Of the classes in these batches.
        asked: How far it moved in the upload.

    Example:
        >>> shares = torch.rand(40, 3, generator=torch.Generator().manual_seed(0))
        >>> moved = 0.1 * (shares - 1 / 3)  # a learning rate of 0.1, and three classes
        >>> found, known = shares_by_bias(moved, shares, torch.tensor([0.0, 0.05, -0.02]))
        >>> (found * 30).round().tolist(), known.round().tolist()
        ([10.0, 25.0, 4.0], [1.0, 1.0, 1.0])
    """
    fold = torch.arange(len(moved)) % FOLDS
    missed = torch.empty_like(shares)
    for out in range(FOLDS):
        theirs = fold == out
        missed[theirs] = shares[theirs] - _predicted(
            moved[~theirs], shares[~theirs], moved[theirs]
        )
    spread = shares.var(dim=0, correction=0).clamp(min=LEAST)
    known = 1 - missed.square().mean(dim=0) / spread
    return _predicted(moved, shares, asked[None])[0], known.clamp(0, 1)


def _predicted(
    moved: Float[Tensor, "examples classes"],
    shares: Float[Tensor, "examples classes"],
    asked: Float[Tensor, "others classes"],
) -> Float[Tensor, "others classes"]:
    """Return shares on the line through examples: a slope, and each class's own height."""
    middle, centre = moved.mean(dim=0), shares.mean(dim=0)
    about = moved - middle
    steepness = (about * (shares - centre)).sum() / about.square().sum().clamp(
        min=1e-30
    )
    return centre + steepness * (asked - middle)


PENALTIES = tuple(10.0**exponent for exponent in range(-8, 4))
"""Of ridge regression, in units of the simulated clients' mean squared distance."""


@dataclass(frozen=True)
class BatchEstimate:
    """What an upload tells of the records behind it.

    Attributes:
        prior: That of public batches: what is said without the upload.
        spread: Variance between public batches.
        known: What part of it the upload tells, in [0, 1].
        records: How many records the estimate takes it to be a mean of.
    """

    found: Float[Tensor, " numbers"]
    prior: Float[Tensor, " numbers"]
    spread: Float[Tensor, " numbers"]
    known: Float[Tensor, " numbers"]
    records: float


@dataclass(frozen=True)
class LearnedInversion:
    """Inverts uploads by examples of the adversary's making.

    Attributes:
        description: Numbers of a record that are regressed on uploads.
        sizes: Records that each of a client's simulated ones trains on.
        examples: Simulated clients for each start of training.
        rounds: Uploads of each client that are read together, at most.
    """

    adversary: Adversary
    description: Description
    sizes: Mapping[ClientId, int]
    examples: int
    rounds: int

    @cached_property
    def _replayed(self) -> list[tuple[SeenUpload, int, Tensor]]:
        return []

    def estimate(self, target: Target) -> BatchEstimate:
        """Return what a client's uploads, or the sums with them, tell of its batch."""
        seen = seen_uploads(self.adversary, target.client, self.rounds)
        size = self.sizes[target.client]
        batches, groups = self._batches(size), self._groups(seen[0].clients)
        described = self.description.of(self.adversary.task.public)
        means = torch.stack([described[batch].mean(dim=0) for batch in batches])
        means = torch.stack([means[group].mean(dim=0) for group in groups])
        inputs, asked, by_bias = [], [], []
        for one in seen:
            alone = self._replay(one, size, batches, target.client)
            sent = torch.stack([alone[group].mean(dim=0) for group in groups])
            by_bias += self._by_bias(one, sent, means)
            centre = sent.mean(dim=0)
            scale = (sent - centre).square().sum(dim=1).mean().sqrt().clamp(min=1e-30)
            inputs.append((sent - centre) / scale)
            asked.append((one.delta - centre) / scale)
        found, known = ridge(torch.cat(inputs, dim=1), means, torch.cat(asked))
        for shares, explained in by_bias:
            if explained.mean() > known[: len(explained)].mean():
                found[: len(shares)], known[: len(explained)] = shares, explained
        spread = means.var(dim=0, correction=0).clamp(min=LEAST)
        known = torch.where(spread > LEAST, known, 0)
        count = float(size * seen[0].clients)
        return BatchEstimate(found, means.mean(dim=0), spread, known, count)

    def _by_bias(
        self, one: SeenUpload, sent: Tensor, means: Tensor
    ) -> list[tuple[Tensor, Tensor]]:
        """Return classes' shares in closed form, where a head's bias was trained."""
        if not isinstance(self.description, ClassesAndFeatures):
            return []
        numbers = one.slice_of(BIAS)
        if numbers is None:
            return []
        classes = len(self.description.centres)
        moved, asked = sent[:, numbers], one.delta[numbers]
        shares = means[:, :classes]
        return [shares_by_bias(moved[:, :classes], shares, asked[:classes])]

    def closest(self, target: Target, seen: SeenUpload, count: int) -> list[Records]:
        """Return the public batches whose simulated uploads are most like an upload.

        So many, and as many more of other labels: matching never leaves its labels.
        """
        size, public = self.sizes[target.client], self.adversary.task.public
        batches = self._batches(size)
        sent = self._replay(seen, size, batches, target.client)
        order = (sent - seen.delta).norm(dim=1).argsort().tolist()
        chosen: list[Records] = []
        tried: set[tuple[int, ...]] = set()
        for number in order:
            batch = public.pick(batches[number])
            labels = tuple(batch.labels.sort().values.tolist())
            if len(chosen) < count or labels not in tried:
                chosen.append(batch)
                tried.add(labels)
        return chosen[: 2 * count]

    def _stream(self, purpose: str, size: int) -> Stream:
        return self.adversary.seeds.child("inversion", size).stream(purpose)

    def _batches(self, size: int) -> list[Int[Tensor, " records"]]:
        """Draw batches of public records, each of one fold, with its own class shares."""
        labels = self.adversary.task.public.labels
        stream, count = self._stream("batches", size), int(labels.max()) + 1
        weights = -torch.log(stream.uniform_tensor((self.examples, count)) + 1e-12)
        keys = stream.uniform_tensor((self.examples, len(labels))).log()
        keys = keys / weights[:, labels]  # the largest are a weighted sample
        fold = torch.from_numpy(stream.permutation(len(labels))) % FOLDS
        batches = []
        for number, key in enumerate(keys):
            own = (fold == number % FOLDS).nonzero().flatten()
            batches.append(own[key[own].topk(min(size, len(own))).indices])
        return batches

    def _groups(self, clients: int) -> list[Int[Tensor, " _"]]:
        """Return the simulated clients of each example: several, where sums are seen."""
        numbers = torch.arange(self.examples)
        if clients == 1:
            return list(numbers.view(-1, 1))
        stream = self._stream("groups", clients)
        folds = [numbers[numbers % FOLDS == fold] for fold in range(FOLDS)]
        return [
            folds[n % FOLDS][stream.below(len(folds[n % FOLDS]), clients)]
            for n in range(self.examples)
        ]

    def _replay(
        self, one: SeenUpload, size: int, batches: Sequence[Tensor], client: str
    ) -> Float[Tensor, "examples numbers"]:
        """Return what simulated clients would send; asked once for all who start alike."""
        for other, records, sent in self._replayed:
            if records == size and one.same_start(other):
                return sent
        public: Records = self.adversary.task.public
        names = [f"stand-in-{number} of {client}" for number in range(len(batches))]
        sent = one.replay(self.adversary, names, [public.pick(b) for b in batches])
        self._replayed.append((one, size, sent))
        return sent


def batch_sizes(adversary: Adversary, targets: Sequence[Target]) -> dict[ClientId, int]:
    """Return how many records simulated clients of each client train on.

    As many as its upload says, else as the coin gives; but most are given the median,
    which is within a factor of two, so that one set of simulated clients serves all.
    """
    expected = {}
    for target in targets:
        (first,) = seen_uploads(adversary, target.client, 1)
        expected[target.client] = (
            adversary.task.member_share * len(target.candidates)
            if first.records is None
            else first.records / first.clients
        )
    middle = float(np.median(list(expected.values())))
    return {
        client: max(1, round(middle if middle / 2 <= size <= 2 * middle else size))
        for client, size in expected.items()
    }


def ridge(
    inputs: Float[Tensor, "examples inputs"],
    outputs: Float[Tensor, "examples outputs"],
    asked: Float[Tensor, " inputs"],
) -> tuple[Float[Tensor, " outputs"], Float[Tensor, " outputs"]]:
    """Return outputs that centred inputs predict by ridge regression, and how well.

    How well is the share of variance told. Each output has the penalty whose predictions
    of other folds are best. Example n is
    in fold n modulo ``FOLDS``; folds share no public record, else known records would
    be recognised, and taken for the variance of new ones.
    """
    centre = outputs.mean(dim=0)
    about = outputs - centre
    gram = inputs @ inputs.T
    unit = gram.diagonal().mean().clamp(min=1e-30)
    gram, new = gram + unit, inputs @ asked + unit  # a constant is an input, too
    spread = about.square().mean(dim=0).clamp(min=LEAST)
    fold = torch.arange(len(inputs)) % FOLDS
    found, explained = [], []
    for penalty in PENALTIES:
        square = gram + penalty * unit * torch.eye(len(gram), dtype=gram.dtype)
        missed = about.clone()
        for out in range(FOLDS):
            ours, theirs = fold != out, fold == out
            weights = torch.linalg.solve(square[ours][:, ours], about[ours])
            missed[theirs] -= gram[theirs][:, ours] @ weights
        found.append(new @ torch.linalg.solve(square, about))
        explained.append(1 - missed.square().mean(dim=0) / spread)
    known, best = torch.stack(explained).max(dim=0)
    chosen = torch.stack(found).gather(0, best[None])[0]
    return centre + chosen, known.clamp(0, 1)


GUESSES = 3  # combinations of labels that are matched


@dataclass(frozen=True)
class InvertedClient:
    """What was read of one client's records.

    Attributes:
        description: What the estimate's numbers are: classes and features, or words.
        estimate: What all its uploads tell of the batch as a whole.
        matched: Single records, where an upload was of few; None elsewhere.
        tokens: Of texts, where rows of a token table tell them; None elsewhere.
    """

    client: ClientId
    description: Description
    estimate: BatchEstimate
    matched: MatchedBatch | None = None
    tokens: ReadTokens | None = None

    def scores(self, records: Records) -> Float[Tensor, " records"]:
        """Return how much likelier what was read is if a record was in the batch.

        The logarithm of the ratio of two normal densities: a record moves its batch's
        mean by its own part, of which what is read tells some.
        """
        estimate = self.estimate
        part = (self.description.of(records) - estimate.prior) / estimate.records
        read = (estimate.found - estimate.prior) / estimate.spread
        likelier = part @ read - part.square() @ (estimate.known / estimate.spread) / 2
        return likelier + (0 if self.tokens is None else self.tokens.scores(records))

    def features(self) -> Float[Tensor, "reconstructions dim"]:
        """Return reconstructed features: of records, or means of a batch's classes.

        Of classes that half a record at least is of.
        """
        assert isinstance(self.description, ClassesAndFeatures)
        if self.matched is not None:
            return self.matched.features.double()
        estimate = self.estimate
        shares = self.description.shares(estimate.found)
        held = shares * estimate.records >= min(0.5, float(shares.max()))
        return self.description.features(estimate.found)[held]


@runtime_checkable
class Inverts(Protocol):
    """An attack that reads records, not only whether one was there."""

    def invert(
        self, adversary: Adversary, targets: Sequence[Target]
    ) -> list[InvertedClient]:
        """Return what is read of each target's records."""


def invert(
    adversary: Adversary,
    targets: Sequence[Target],
    *,
    examples: int,
    rounds: int,
    most_matched: int,
) -> list[InvertedClient]:
    """Return what uploads tell of each target's records; of candidates their number counts.

    The settings are those of :class:`privaudit_labs.inversion.upload_inversion.UploadInversion`.

    Raises:
        ViewError: The adversary sees neither uploads nor sums of them.
        AttackError: Records are texts of which nothing is known.
    """
    description = learn_description(adversary.task)
    learned = LearnedInversion(
        adversary, description, batch_sizes(adversary, targets), examples, rounds
    )
    clients = []
    for number, target in enumerate(targets):
        adversary.tell(Phase("", "reconstruct", target.client, number, len(targets)))
        estimate = learned.estimate(target)
        client = InvertedClient(
            target.client,
            description,
            estimate,
            tokens=read_tokens(
                adversary,
                seen_uploads(adversary, target.client, rounds),
                estimate.records,
            ),
        )
        matched = _match_few(learned, target, client, most_matched)
        clients.append(client if matched is None else _with(client, matched))
    return clients


def _match_few(
    learned: LearnedInversion, target: Target, client: InvertedClient, most: int
) -> MatchedBatch | None:
    """Match single records where an upload is of few, and nothing hides them."""
    adversary, description = learned.adversary, client.description
    trainer = adversary.trainer
    if (
        getattr(trainer, "is_noised", False)
        or not isinstance(trainer, LearnsPrompt)
        or trainer.image_tokens
    ):
        return None  # nothing to match exactly, or no features alone
    (seen,) = seen_uploads(adversary, client.client, 1)
    if seen.clients > 1 or seen.records is None or not 1 <= seen.records <= most:
        return None
    assert isinstance(description, ClassesAndFeatures)
    found, count = client.estimate.found, int(seen.records)
    features = functional.normalize(description.features(found), dim=1).float()
    labels = _likely_labels(description.shares(found), count)
    guesses = [Records(features[chosen], chosen) for chosen in labels]
    if learned.sizes[client.client] == count:
        guesses = learned.closest(target, seen, GUESSES) + guesses
    return match(adversary, seen, guesses, description.axes)


def _with(client: InvertedClient, matched: MatchedBatch) -> InvertedClient:
    """Return a client of whose batch nothing is left to guess."""
    estimate, records = client.estimate, Records(matched.features, matched.labels)
    estimate = replace(
        estimate,
        found=client.description.of(records).mean(dim=0),
        known=(estimate.known > 0).double(),
        records=float(len(records)),
    )
    return replace(client, estimate=estimate, matched=matched)


def _likely_labels(
    shares: Float[Tensor, " classes"], count: int
) -> list[Int[Tensor, " records"]]:
    """Return the labels of so many records that are nearest to their shares."""
    likely = shares.argsort(descending=True)[: count + GUESSES - 1].sort().values
    drawn = torch.combinations(likely, count, with_replacement=True)
    counted = torch.stack([(drawn == c).sum(dim=1) for c in range(len(shares))], dim=1)
    off = (counted / count - shares).abs().sum(dim=1)
    return list(drawn[off.argsort()[:GUESSES]])
