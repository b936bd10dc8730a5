"""What an adversary read of each client's records, before anybody knows how well."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.inversion.descriptions import (
    ClassesAndFeatures,
    Description,
    learn_description,
)
from privaudit.auditing.inversion.learned import (
    BatchEstimate,
    LearnedInversion,
    batch_sizes,
)
from privaudit.auditing.inversion.matching import MatchedBatch, match
from privaudit.auditing.inversion.moved_tokens import ReadTokens, read_tokens
from privaudit.auditing.inversion.uploads import seen_uploads
from privaudit.federated.trainer import ClientId, Records
from privaudit.federated.trainer_abilities import AddsNoise, LearnsPrompt
from privaudit.statistics.progress import Phase

GUESSES = 3  # combinations of labels that are matched


@dataclass(frozen=True)
class InvertedClient:
    """What was read of one client's records.

    Attributes:
        description: In what terms.
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
        ...


def invert(
    adversary: Adversary,
    targets: Sequence[Target],
    *,
    examples: int,
    rounds: int,
    most_matched: int,
) -> list[InvertedClient]:
    """Return what uploads tell of each target's records; of candidates their number counts.

    The settings are those of :class:`privaudit.attacks.upload_inversion.UploadInversion`.

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
    noised = isinstance(trainer, AddsNoise) and trainer.is_noised
    if noised or not isinstance(trainer, LearnsPrompt) or trainer.image_tokens:
        return None  # nothing to match exactly, or no features alone
    (seen,) = seen_uploads(adversary, client.client, 1)
    if seen.clients > 1 or seen.records is None or not 1 <= seen.records <= most:
        return None
    assert isinstance(description, ClassesAndFeatures)
    found, count = client.estimate.found, int(seen.records)
    features = normalize(description.features(found), dim=1).float()
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
