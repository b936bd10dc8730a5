"""Exposure of planted secrets, of members and of others.

Source: Carlini et al., "The secret sharer", USENIX Security 2019.
"""

import math
from dataclasses import dataclass

import numpy as np

from privaudit.auditing.audit_part import AuditPart
from privaudit.auditing.extraction.secrets import (
    expected_exposure,
    secret_scores,
)
from privaudit.auditing.parts.extraction import share
from privaudit.auditing.played_scenario import PlayedScenario
from privaudit.statistics.estimate import Estimate, mean_with_t


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
    """Summarise canaries' exposures in bits; None without members, or without others."""
    first = share([bits >= math.log2(secrets)], [truth])
    if first is None:
        return None
    return SecretExposure(
        secrets,
        mean_with_t(bits[truth]),
        mean_with_t(bits[~truth]),
        expected_exposure(secrets),
        first.members,
        first.others,
        first.beyond,
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
