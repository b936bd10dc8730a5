"""Secret exposure: how high does a model rank each planted secret among others like it?

A secret's exposure is the logarithm to base 2 of how many secrets there are, less that of
its rank by likelihood. Its own and the others were drawn alike, so that one that nobody
trained on has each rank alike, whatever the model: P(exposure >= e) is at most 2^-e.
Each is compared with others that were drawn for it alone, so that ranks are independent.

Source: Carlini et al., "The secret sharer: evaluating and testing unintended memorization
in neural networks", USENIX Security 2019, sections 4.2 and 4.4: of a sample of the space,
without their fit of its tail.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from privaudit.auditing.answer_values import answer_values
from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.played_scenario import AuditPart, PlayedScenario
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.datasets.records import ANSWER, TokenSequences
from privaudit.federation.trainer import ClientId, Records
from privaudit.statistics.estimate import (
    Estimate,
    mean_with_t,
    proportion,
    two_proportions,
)


@dataclass(frozen=True)
class SecretScores:
    """What one client's model says of secrets in its canaries' places.

    Attributes:
        logs: Log-likelihood of a canary with its own secret, and then with each other.
    """

    client: ClientId
    logs: Float[np.ndarray, "canaries secrets"]

    @property
    def margin(self) -> Float[np.ndarray, " canaries"]:
        """Log-likelihood of the own secret less that of another on average, in nats."""
        others = self.logs[:, 1:]
        top = others.max(axis=1)
        mean = np.log(np.exp(others - top[:, None]).mean(axis=1)) + top
        return self.logs[:, 0] - mean

    @property
    def exposure(self) -> Float[np.ndarray, " canaries"]:
        """In bits, from 0 to log2 of how many secrets were compared.

        A tie counts for the others.
        """
        rank = (self.logs >= self.logs[:, :1]).sum(axis=1)
        return math.log2(self.logs.shape[1]) - np.log2(rank)


def expected_exposure(secrets: int) -> float:
    """Return the mean exposure, in bits, of one of so many secrets that nobody trained on.

    Example:
        >>> round(expected_exposure(2), 3), round(expected_exposure(64), 3)
        (0.5, 1.375)
    """
    return math.log2(secrets) - math.lgamma(secrets + 1) / math.log(2) / secrets


def secret_scores(played: PlayedScenario) -> list[SecretScores]:
    """Return what models say of each client's canaries; empty where none are secrets."""
    population = played.run.population
    canaries, others = population.canaries, population.other_secrets
    if canaries is None or others is None:
        return []
    scored = []
    for target in played.targets:
        asked = population.asked_about(target.client, canaries=True)
        chosen = np.isin(asked, canaries.indices)
        own = torch.from_numpy(np.searchsorted(canaries.indices, asked[chosen]))
        mask = torch.from_numpy(chosen)
        scored.append(score_secrets(played.adversary, target, mask, others[own]))
    return scored


def score_secrets(
    adversary: Adversary,
    target: Target,
    canaries: Tensor,
    others: Int[Tensor, "canaries secrets tokens"],
) -> SecretScores:
    """Score other secrets' tokens in the places of a client's canaries.

    ``canaries`` is a mask over its candidates, or their numbers.
    """
    model, candidates = target.reconstructed.model, target.candidates

    def score() -> SecretScores:
        texts = with_others(candidates.pick(canaries), others)
        (tokens,) = answer_values(adversary, model, texts)
        logs = tokens.sum(dim=1).numpy().reshape(-1, 1 + others.shape[1])
        return SecretScores(target.client, logs)

    return adversary.once(("secrets",), score, model, candidates)


def with_others(
    records: Records, others: Int[Tensor, "records secrets tokens"]
) -> Records:
    """Return each record, and behind it the same with each of its other secrets."""
    assert records.words is not None
    words, count = records.words, 1 + others.shape[1]
    many = torch.arange(len(records)).repeat_interleave(count)
    ids, kinds = words.ids[many], words.kinds[many]
    for row in range(len(records)):
        own = words.ids[row][words.kinds[row] == ANSWER]
        filled = torch.cat([own[None], others[row]])
        is_answer = kinds[row * count : (row + 1) * count] == ANSWER
        ids[row * count : (row + 1) * count][is_answer] = filled.flatten()
    return replace(records.pick(many), words=TokenSequences(ids, kinds))


@dataclass(frozen=True)
class SecretExposure:
    """Exposures in bits, and how many secrets a model ranks above all others.

    Attributes:
        secrets: That each was compared with, its own among them.
        members: Mean exposure of canaries that were trained on.
        others: Of those that were not.
        untrained: The mean that one has that nobody trained on, in closed form.
        first_of_members: Share that is ranked above all others.
        first_of_others: Likewise; 1 / secrets is expected of an untrained one.
        beyond: The first share less the second.
    """

    secrets: int
    members: Estimate
    others: Estimate
    untrained: float
    first_of_members: Estimate
    first_of_others: Estimate
    beyond: Estimate


def _measure(played: PlayedScenario) -> SecretExposure | None:
    found = secret_scores(played)
    canaries = played.run.population.canaries
    if not found or canaries is None:
        return None
    rows = np.concatenate([played.records(one.client) for one in found])
    truth = played.run.ledger.is_member[rows[np.isin(rows, canaries.indices)]]
    bits = np.concatenate([one.exposure for one in found])
    return summarise(bits, truth, found[0].logs.shape[1])


def summarise(
    bits: np.ndarray, truth: np.ndarray, secrets: int
) -> SecretExposure | None:
    """Summarise canaries' exposures in bits; None without members, or without others.

    ``secrets`` is how many there could have been, the canary's own among them.
    """
    first, counts = bits >= math.log2(secrets), []
    for of in (truth, ~truth):
        counts.append((int(first[of].sum()), int(of.sum())))
    if not all(size for _, size in counts):
        return None
    members, others = counts
    return SecretExposure(
        secrets,
        mean_with_t(bits[truth]),
        mean_with_t(bits[~truth]),
        expected_exposure(secrets),
        proportion(*members),
        proportion(*others),
        two_proportions(*members, *others),
    )


EXPOSURE = AuditPart(
    "exposure",
    SecretExposure | None,
    applies=lambda played: (
        played.scenario.one_run and played.run.population.other_secrets is not None
    ),
    compute=_measure,
    nothing=None,
    title="Exposure of planted secrets, in bits",
)
