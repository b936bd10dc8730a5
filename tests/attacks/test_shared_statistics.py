from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from privaudit.attacks.shared_statistics import SharedStatistics
from privaudit.auditing.attack import Adversary, Target
from privaudit.core.errors import ViewError
from privaudit.core.seeds import Seeds
from privaudit.federation.client_statistics import EMBEDDING, UNCERTAINTY
from privaudit.federation.threat_models import View
from privaudit.federation.trainer import Records, Task, Trainer
from privaudit.federation.transcript import Message
from privaudit.federation.uploads import STATISTIC
from privaudit.trainers.fedpt_dhapa import FedPTDhapa
from privaudit.trainers.promptfl import PromptFL
from tests.conftest import noisy_candidates, toy_records
from tests.toy_federation import CLIENTS, Play, auroc_of

CANDIDATES = 20
Watched = Callable[..., tuple[Adversary, list[Target], list[np.ndarray]]]


@pytest.fixture
def watched(play: Play, task: Task) -> Watched:
    """Train on half of each client's candidates, by coin, and look on as the server."""
    task = replace(task, candidates=dict.fromkeys(CLIENTS, CANDIDATES))
    candidates = noisy_candidates(CLIENTS, CANDIDATES, 30)
    coins = [np.random.default_rng(n).random(CANDIDATES) < 0.5 for n in range(3)]
    shards = {
        client: records.pick(torch.from_numpy(coin))
        for (client, records), coin in zip(candidates.items(), coins, strict=True)
    }

    def look(
        trainer: Trainer, rounds: int = 3
    ) -> tuple[Adversary, list[Target], list[np.ndarray]]:
        world = replace(task, rounds=rounds)
        played = play(trainer, task=world, shards=shards)
        return *played.watched(candidates=candidates), coins

    return look


def with_statistics_of_others(adversary: Adversary) -> Adversary:
    """Put the next client's statistics in the place of each client's own."""
    clients = adversary.task.clients
    turned = dict(zip(clients, [*clients[1:], clients[0]], strict=True))
    sent = {(m.sender, m.round): m.tensors for m in adversary.view.messages}

    def turn(message: Message) -> Message:
        if message.sender not in clients:
            return message
        foreign = sent[turned[message.sender], message.round]
        statistics = {n: t for n, t in foreign.items() if n.startswith(STATISTIC)}
        return replace(message, tensors={**message.tensors, **statistics})

    messages = tuple(map(turn, adversary.view.messages))
    return replace(adversary, view=View("server", messages))


def test_few_candidates_in_enough_dimensions_are_recovered_for_certain(
    watched: Watched,
) -> None:
    """Twelve dimensions and twelve rounds' entropies: more than 20 candidates."""
    adversary, targets, coins = watched(FedPTDhapa(), rounds=12)
    found = SharedStatistics()(adversary, targets)
    assert auroc_of(found, coins).value == 1
    for scores, coin in zip(found, coins, strict=True):
        assert np.array_equal(scores.guesses, coin)


def test_statistics_of_another_client_tell_nothing(watched: Watched) -> None:
    adversary, targets, coins = watched(FedPTDhapa())
    found = SharedStatistics()(with_statistics_of_others(adversary), targets)
    estimate = auroc_of(found, coins)
    assert estimate.low < 0.5 < estimate.high


def test_noise_as_large_as_it_gets_leaves_a_coin_toss(watched: Watched) -> None:
    hidden = FedPTDhapa(gamma=0.0, statistics_noise=1000.0)
    adversary, targets, coins = watched(hidden)
    found = SharedStatistics()(adversary, targets)
    assert all(abs(s.scores - 0.5).max() < 0.05 for s in found)
    estimate = auroc_of(found, coins)
    assert estimate.low < 0.5 < estimate.high


def test_noise_that_is_hardly_there_hides_nothing(watched: Watched) -> None:
    hidden = FedPTDhapa(gamma=0.0, statistics_noise=1e-4)
    adversary, targets, coins = watched(hidden, rounds=12)
    found = SharedStatistics()(adversary, targets)
    for scores, coin in zip(found, coins, strict=True):
        np.testing.assert_allclose(scores.scores, coin, atol=0.05)


def test_the_mean_embedding_tells_more_than_a_few_rounds_of_entropies(
    watched: Watched,
) -> None:
    """Twelve numbers, the bounds and whole sizes are enough for twenty candidates."""
    found = {}
    for name, trainer in {
        EMBEDDING: FedPTDhapa(alpha=0.0, gamma=0.0),
        UNCERTAINTY: FedPTDhapa(beta=0.0, gamma=0.0),
        "both": FedPTDhapa(gamma=0.0),
    }.items():
        adversary, targets, coins = watched(trainer)
        found[name] = auroc_of(SharedStatistics()(adversary, targets), coins).value
    assert found[EMBEDDING] > 0.95
    assert found["both"] >= found[EMBEDDING]
    assert 0.5 < found[UNCERTAINTY] < 0.9


def test_a_label_is_not_looked_at(watched: Watched) -> None:
    adversary, targets, _ = watched(FedPTDhapa())

    def blind(records: Records) -> Records:
        labels: Tensor = torch.zeros_like(records.labels)
        return replace(records, labels=labels)

    unlabelled = [replace(t, candidates=blind(t.candidates)) for t in targets]
    plain, other = (
        SharedStatistics()(adversary, some) for some in (targets, unlabelled)
    )
    for one, two in zip(plain, other, strict=True):
        np.testing.assert_array_equal(one.scores, two.scores)


def test_clients_that_say_nothing_of_their_records_cannot_be_attacked_so(
    watched: Watched,
) -> None:
    for trainer in (PromptFL(), FedPTDhapa(alpha=0.0, beta=0.0)):
        adversary, targets, _ = watched(trainer)
        with pytest.raises(ViewError, match="send no mean over their records"):
            SharedStatistics()(adversary, targets)


def test_a_client_that_says_it_has_no_records_has_no_member_among_the_candidates(
    play: Play,
) -> None:
    shards = dict.fromkeys(CLIENTS, toy_records(9, 5))
    played = play(FedPTDhapa(), shards={**shards, "client-2": toy_records(0)})
    asked = {"client-2": toy_records(8, 3)}
    (found,) = SharedStatistics()(*played.watched(candidates=asked))
    assert found.scores.max() == 0
    assert not found.guesses.any()


def test_it_solves_for_candidates_that_are_longer_than_one(task: Task) -> None:
    """With noise features are cut to length 1 by client and adversary alike."""
    trainer = FedPTDhapa(gamma=0.0, statistics_noise=1e-4)
    long = toy_records(6)
    long = replace(long, features=3 * normalize(long.features, dim=1))
    model = trainer.start(task, Seeds(0))
    norms = trainer.contributions(task, model, long)[EMBEDDING].norm(dim=2)
    torch.testing.assert_close(norms, torch.ones_like(norms))
