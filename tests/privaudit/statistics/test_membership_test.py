"""The permutation test of membership: exact on nulls, and what it finds of a tail."""

from collections.abc import Callable

import numpy as np
import pytest

from privaudit.core.errors import ConfigError
from privaudit.statistics.membership_test import (
    ALPHA,
    DRAWS,
    FEWER_DRAWS,
    Strata,
    membership_test,
    orders,
)

Make = Callable[[np.random.Generator], Strata]


def split(
    rng: np.random.Generator, members: int, others: int, decimals: int = 9
) -> Strata:
    """Return noise in one stratum, rounded so that it ties."""
    is_member = rng.permutation(members + others) < members
    return [(np.round(rng.normal(size=members + others), decimals), is_member)]


NULLS: dict[str, Make] = {
    "ten and ten": lambda rng: split(rng, 10, 10),
    "one to twenty": lambda rng: split(rng, 5, 100),
    "twenty to one": lambda rng: split(rng, 100, 5),
    "ties": lambda rng: split(rng, 30, 60, decimals=0),
    "zero and one": lambda rng: [
        ((rng.random(90) < 0.1) * 1.0, rng.permutation(90) < 40)
    ],
    "unlike clients": lambda rng: [
        (size * rng.normal(size=size) + size, rng.permutation(size) < size // 3)
        for size in (4, 9, 20, 60)
    ],
}


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """A level is exact at any number of draws of which alpha is a whole share."""
    monkeypatch.setattr("privaudit.statistics.membership_test.DRAWS", 199)


@pytest.mark.usefixtures("few_draws")
@pytest.mark.parametrize("make", NULLS.values(), ids=NULLS)
def test_noise_is_called_a_leak_at_most_as_often_as_said(
    make: Make, rng: np.random.Generator
) -> None:
    """1,000 nulls of each design: at most 2.5 % and three standard errors."""
    found = [membership_test(make(rng)) for _ in range(1000)]
    most = ALPHA + 3 * np.sqrt(ALPHA * (1 - ALPHA) / 1000)
    for part in ("either", "average", "tail"):
        assert np.mean([getattr(one, part) <= ALPHA for one in found]) <= most


@pytest.mark.usefixtures("few_draws")
def test_records_that_resemble_others_leave_the_level(rng: np.random.Generator) -> None:
    """Ten copies of each record, with coins of their own."""

    def copies() -> Strata:
        scores = np.repeat(rng.normal(size=12), 10)
        return [(scores, rng.random(120) < 0.5)]

    alarms = np.mean([membership_test(copies()).either <= ALPHA for _ in range(1000)])
    assert alarms <= ALPHA + 3 * np.sqrt(ALPHA * (1 - ALPHA) / 1000)


def test_a_few_certain_members_are_a_tail_and_no_average(
    rng: np.random.Generator,
) -> None:
    members, others = rng.normal(size=(2, 1000))
    members[:30] += 8
    scores, is_member = np.concatenate([members, others]), np.arange(2000) < 1000
    found = membership_test([(scores, is_member)])
    assert found.top[0] == found.top[1] >= 30
    assert found.either <= 0.001
    assert "tail" in found.parts()


@pytest.mark.usefixtures("few_draws")
def test_a_common_shift_is_an_average(rng: np.random.Generator) -> None:
    def shifted() -> Strata:
        ((scores, is_member),) = split(rng, 280, 260)
        return [(scores + 0.3 * is_member, is_member)]

    found = [membership_test(shifted()) for _ in range(100)]
    assert sum("average" in one.parts() for one in found) >= 78  # 90 less 4 errors


def test_perfect_scores_leave_as_small_a_chance_as_there_is(
    rng: np.random.Generator,
) -> None:
    is_member = np.arange(100) < 50
    found = membership_test([(is_member + rng.random(100) / 2, is_member)])
    assert found.average == 1 / (DRAWS + 1)
    assert found.top == (10, 10)
    assert found.parts() == ("average", "tail")


def test_equal_scores_tell_nothing_and_few_records_no_tail() -> None:
    is_member = np.arange(20) < 10
    equal = membership_test([(np.zeros(20), is_member)])
    assert (equal.either, equal.average, equal.tail) == (1, 1, 1)
    few = membership_test([(np.arange(8.0), np.arange(8) >= 4)])
    assert few.tail > ALPHA


def test_an_exact_p_value_of_a_small_split() -> None:
    """One of the 70 splits of eight into fours has the highest ranks."""
    found = membership_test([(np.arange(8.0), np.arange(8) >= 4)])
    assert found.average == pytest.approx(1 / 70, abs=4 * np.sqrt(1 / 70 / DRAWS))


@pytest.mark.usefixtures("few_draws")
@pytest.mark.parametrize("kind", ["offsets", "large values"])
def test_either_key_finds_what_it_alone_can(
    kind: str, rng: np.random.Generator
) -> None:
    """Offsets of clients hide a tail from the scores, heavy ones from the standardised."""
    strata = []
    for _ in range(10):
        is_member = rng.random(80) < 0.5
        scores = rng.normal(size=80)
        scores[is_member] += 6 * (rng.random(int(is_member.sum())) < 0.1)
        if kind == "offsets":
            scores += 20 * rng.normal()
        strata.append((scores, is_member))
    assert membership_test(strata).tail <= ALPHA
    assert len(orders([scores for scores, _ in strata])) == 2
    assert len(orders([strata[0][0]])) == 1


def test_the_same_scores_have_the_same_p_values_and_many_take_fewer_draws(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for those that no draw reaches: else 26 audits of a run would hide any leak."""
    (stratum,) = split(rng, 40, 40)
    found = membership_test([stratum])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(f"{membership_test.__module__}._KEPT", 0)
        assert membership_test([stratum]) == found  # drawn anew
    monkeypatch.setattr(f"{membership_test.__module__}.LARGE", 100)
    large = np.arange(102)
    monkeypatch.setattr(f"{membership_test.__module__}._KEPT", 100)
    told = membership_test([(large * 1.0, large > 50)])
    assert told.either == told.average == pytest.approx(1 / (DRAWS + 1))
    found = membership_test([(large * 1.0, large % 2 == 0)])
    assert (found.average * (FEWER_DRAWS + 1)) % 1 == pytest.approx(0, abs=1e-9)
    with pytest.raises(ConfigError, match="a stratum"):
        membership_test([])
