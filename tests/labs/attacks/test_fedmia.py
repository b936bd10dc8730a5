from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm

from privaudit.core.errors import AttackError
from privaudit.federation.threat_models import View
from privaudit.trainers.promptfl import PromptFL
from privaudit_labs.attacks.fedmia import FedMia, _averaged
from tests.conftest import noisy_candidates
from tests.toy_federation import CLIENTS, Play


def test_peers_say_what_a_non_member_looks_like() -> None:
    """Two peers of known confidences: minus the log of the upper tail, by hand."""
    known = np.array([[1.0, 5.0], [0.0, 0.0], [2.0, 2.0]])
    found = FedMia(variance="per-record")._beyond(known, np.array([True, False, False]))
    np.testing.assert_allclose(found, -norm.logsf([1.0, 5.0], 1.0, 1.0))


def test_rounds_are_averaged() -> None:
    scores = _averaged("ann", {0: np.array([1.0, -1.0]), 2: np.array([3.0, -5.0])})
    np.testing.assert_array_equal(scores.scores, [2.0, -3.0])
    np.testing.assert_array_equal(scores.guesses, [True, False])
    assert set(scores.by_round) == {0, 2}


def test_members_among_classes_that_peers_never_saw_are_found(play: Play) -> None:
    """All confidences are far above the peers', and still they are distinguished."""
    classes = noisy_candidates(CLIENTS, 40, 80)
    asked = {
        client: records.pick(records.labels == number)
        for number, (client, records) in enumerate(classes.items())
    }
    coins = {c: torch.arange(len(records)) % 2 == 0 for c, records in asked.items()}
    shards = {client: asked[client].pick(coin) for client, coin in coins.items()}
    trainer = PromptFL(epochs=20, batch_size=0, learning_rate=0.2)
    played = play(trainer, shards=shards)
    adversary, targets = played.watched(candidates=asked)
    for target, found in zip(targets, FedMia()(adversary, targets), strict=True):
        assert len(np.unique(found.scores)) == len(target.candidates)
        assert set(found.by_round) == set(range(len(played.rounds)))
        member = coins[target.client].numpy()
        assert found.scores[member].mean() > found.scores[~member].mean()


def test_who_sees_one_peer_is_refused(play: Play) -> None:
    adversary, targets = play(PromptFL()).watched()
    two = tuple(m for m in adversary.view.messages if m.sender != "client-2")
    with pytest.raises(AttackError, match="at least 2 others"):
        FedMia()(replace(adversary, view=View("server", two)), targets[:2])
