"""Learned inversion: regress what batches hold on what stand-ins with them would send.

The server trains stand-ins of a client on batches of public records, from what the
client received and as the method says, and so knows uploads whose batches it drew
itself. The best linear estimate of a batch from its upload follows.

Source: Wu, Chen, Guo and Weinberger, "Learning to invert: simple adaptive attacks for
gradient inversion in federated learning", UAI 2023. Theirs is a network from gradients
to records; here it is ridge regression of a batch's mean description, because a mean is
what a sum of gradients can tell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.inversion.descriptions import ClassesAndFeatures, Description
from privaudit.auditing.inversion.uploads import SeenUpload, seen_uploads
from privaudit.core.streams import Stream
from privaudit.federated.trainer import ClientId, Records

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
    probabilities are those of stand-ins, so momentum and schedules need no formula.

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
"""Of ridge regression, in units of a stand-in's mean squared distance from the others."""


@dataclass(frozen=True)
class BatchEstimate:
    """What an upload tells of the records behind it.

    Attributes:
        found: Their mean description.
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
        description: What is read.
        sizes: Records of a client's stand-ins.
        examples: Stand-ins for each start of training.
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
            asked.append((self._delta(one) - centre) / scale)
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
        place = one.place(BIAS)
        if place is None:
            return []
        classes = len(self.description.centres)
        moved, asked = sent[:, place], self._delta(one)[place]
        shares = means[:, :classes]
        return [shares_by_bias(moved[:, :classes], shares, asked[:classes])]

    def closest(self, target: Target, seen: SeenUpload, count: int) -> list[Records]:
        """Return the batches of stand-ins that would send what is most like an upload.

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

    def _delta(self, one: SeenUpload) -> Float[Tensor, " numbers"]:
        """Return an upload as a mean over clients, where it does not say its weight."""
        return one.delta if one.records is not None else one.delta / one.clients

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
        """Return which stand-ins make up each example: several, where sums are seen."""
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
        """Return what stand-ins would have sent; asked once for all who start alike."""
        for other, records, sent in self._replayed:
            if records == size and one.same_start(other):
                return sent
        public: Records = self.adversary.task.public
        names = [f"stand-in-{number} of {client}" for number in range(len(batches))]
        sent = one.replay(self.adversary, names, [public.pick(b) for b in batches])
        self._replayed.append((one, size, sent))
        return sent


def batch_sizes(adversary: Adversary, targets: Sequence[Target]) -> dict[ClientId, int]:
    """Return how many records stand-ins of each client train on.

    As many as its upload says, else as the coin gives; but most are given the median,
    which is within a factor of two, so that one set of stand-ins serves them all.
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
