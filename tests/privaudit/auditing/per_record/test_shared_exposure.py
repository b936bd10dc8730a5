"""Records that all attacks point at."""

from dataclasses import replace

import numpy as np
import pytest
from jaxtyping import Float

from privaudit.auditing.attack_result import AttackResult, ClientScores, evaluate_scores
from privaudit.auditing.per_record.shared_exposure import rank_clients, share_exposure

COUNT = 100


def result(*scores: Float[np.ndarray, " candidates"], first: int = 0) -> AttackResult:
    clients = [
        ClientScores(
            f"client-{number}",
            np.arange(COUNT) + COUNT * number + first,
            np.zeros(COUNT, np.int64),
            one,
            one > 0,
            np.arange(COUNT) % 2 == 0,
        )
        for number, one in enumerate(scores)
    ]
    return evaluate_scores("some", "", "0", clients)


def test_by_hand() -> None:
    """The first attack points at records 90 to 99, the second at 85 to 94."""
    up = np.arange(COUNT, dtype=np.float64)
    both = {"up": result(up), "shifted": result(np.roll(up, -5))}
    (client,) = rank_clients(both)
    assert np.flatnonzero(client.seen == 2).tolist() == [90, 91, 92, 93, 94]
    assert np.flatnonzero(client.seen == 1).tolist() == [
        *range(85, 90),
        *range(95, 100),
    ]
    found = share_exposure([client])
    assert found.all.attacks == 2
    assert found.all.members.value == pytest.approx(3 / 50)
    assert found.all.others.value == pytest.approx(2 / 50)
    assert found.all.beyond.value == pytest.approx(1 / 50)
    assert found.all.independent == pytest.approx(0.01)
    assert found.levels[0].independent == pytest.approx(0.19)


def test_attacks_that_know_all_expose_members_and_no_others() -> None:
    knows = np.where(np.arange(COUNT) % 2 == 0, 1.0, 0.0) * np.arange(COUNT)
    exposure = share_exposure(rank_clients({n: result(knows) for n in "abc"}))
    assert exposure.all.members.value == pytest.approx(10 / 50)
    assert exposure.all.others.value == 0
    assert exposure.all.beyond.low > 0


def test_attacks_that_agree_and_know_nothing_expose_members_as_others() -> None:
    """The chance of independent attacks is far off, and the others are not."""
    rng = np.random.default_rng(0)
    (one,) = rank_clients({"any": result(np.zeros(COUNT))})
    alarms = 0
    for _ in range(100):
        shared = rng.normal(size=(3, COUNT))
        noise = 0.1 * rng.normal(size=(2, 3, COUNT))
        ranks = ((shared + noise).argsort(axis=-1).argsort(axis=-1) + 1) / (COUNT + 1)
        clients = [replace(one, ranks=r) for r in ranks.transpose(1, 0, 2)]
        found = share_exposure(clients).all
        alarms += found.beyond.low > 0
        assert found.members.value > 2 * found.independent
    assert alarms <= 100 * 0.025 + 3 * np.sqrt(100 * 0.025)


def test_constant_scores_point_at_nobody() -> None:
    (client,) = rank_clients({"flat": result(np.zeros(COUNT))})
    assert not client.seen.any()


def test_clients_that_an_attack_left_out_are_left_out() -> None:
    up = np.arange(COUNT, dtype=np.float64)
    found = rank_clients({"all": result(up, up), "one": result(up)})
    assert [one.scores.client for one in found] == ["client-0"]
    assert not rank_clients({"all": result(up), "others": result(up, first=7)})
