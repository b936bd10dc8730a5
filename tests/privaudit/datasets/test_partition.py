import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from privaudit.core.errors import ConfigError, TranscriptError
from privaudit.core.seeds import Seeds
from privaudit.datasets.partition import Dirichlet, Pathological
from privaudit.datasets.split import PUBLIC, TEST, Split, SplitSizes, split_records
from privaudit.federated.runs.ledger import Ledger

LABELS = np.repeat(np.arange(10), 60)


def split(partition: Pathological | Dirichlet, clients: int, seed: int = 0) -> Split:
    return split_records(
        LABELS,
        partition,
        SplitSizes(0.25, 0.25),
        clients=clients,
        seeds=Seeds(seed),
    )


@given(clients=st.integers(1, 10), seed=st.integers(0, 50))
def test_pathological_classes_have_one_owner_and_are_split_evenly(
    clients: int, seed: int
) -> None:
    dealt = split(Pathological(), clients, seed)
    classes = [set(LABELS[dealt.of(c)].tolist()) for c in range(clients)]
    assert sum(len(mine) for mine in classes) == len(set().union(*classes)) == 10
    sizes = [len(mine) for mine in classes]
    assert max(sizes) - min(sizes) <= 1


@given(seed=st.integers(0, 50), alpha=st.sampled_from([0.3, 1.0, 100.0]))
def test_every_record_has_exactly_one_place(seed: int, alpha: float) -> None:
    dealt = split(Dirichlet(alpha), 3, seed)
    counts = [len(dealt.of(owner)) for owner in (TEST, PUBLIC, 0, 1, 2)]
    assert sum(counts) == len(LABELS)
    assert counts[:2] == [150, 150]


def test_a_large_alpha_deals_evenly_and_a_small_one_does_not() -> None:
    def spread(alpha: float) -> float:
        dealt = split(Dirichlet(alpha), 4)
        shares = [np.bincount(LABELS[dealt.of(c)], minlength=10) for c in range(4)]
        return float(np.std(shares))

    assert spread(1000.0) < 2 < spread(0.2)


def test_more_clients_than_classes_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"over 11 clients .* 10 classes"):
        split(Pathological(), 11)


def test_a_client_without_candidates_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 2 are needed"):
        split(Dirichlet(0.001), 40)


def test_shares_that_leave_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="leave no candidates"):
        split_records(
            LABELS,
            Pathological(),
            SplitSizes(0.6, 0.4),
            clients=2,
            seeds=Seeds(0),
        )


def test_the_membership_coin_is_fair_and_tossed_for_candidates_alone() -> None:
    dealt = split(Pathological(), 5)
    heads = tosses = 0
    for seed in range(50):
        ledger = Ledger.toss(dealt, Seeds(seed))
        assert not ledger.is_member[dealt.owner < 0].any()
        heads += int(ledger.is_member.sum())
        tosses += int((dealt.owner >= 0).sum())
    assert binomtest(heads, tosses).pvalue > 1e-3


def test_the_coin_does_not_look_at_the_class() -> None:
    """Members and others of a shard come from one distribution."""
    dealt = split(Pathological(), 5)
    by_class = np.zeros((10, 2))
    for seed in range(50):
        ledger = Ledger.toss(dealt, Seeds(seed))
        mine = dealt.owner >= 0
        np.add.at(by_class, (LABELS[mine], ledger.is_member[mine].astype(int)), 1)
    shares = by_class[:, 1] / by_class.sum(axis=1)
    assert np.abs(shares - 0.5).max() < 0.06


def test_a_ledger_survives_the_disk(tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "ledger.npz"
    ledger = Ledger.toss(split(Pathological(), 5), Seeds(0))
    ledger.save(path)
    np.testing.assert_array_equal(Ledger.load(path).is_member, ledger.is_member)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(TranscriptError, match="cut or altered"):
        Ledger.load(path)
