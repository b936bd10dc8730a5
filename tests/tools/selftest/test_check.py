import numpy as np
import pytest

from privaudit.statistics.estimate import Estimate, unresolved
from privaudit_tools.selftest.catalogue import CHECKS
from privaudit_tools.selftest.check import (
    SelftestCheck,
    SelftestOutcome,
    by_coin,
    run_checks,
    share_of,
)
from tests.privaudit.execution.some_jobs import LikeOthers


def about(low: float, high: float) -> Estimate:
    return Estimate((low + high) / 2, low, high, (100,), "made up", 0.999)


@pytest.mark.parametrize(
    ("seen", "passed"),
    [
        (about(0.90, 0.92), False),
        (about(0.90, 0.93), True),
        (about(0.95, 0.96), True),
        (about(0.97, 0.99), True),
        (about(0.98, 0.99), False),
        (unresolved("needs records", (0,), "made up", 0.999), False),
    ],
)
def test_a_check_passes_where_its_interval_reaches_into_the_range(
    seen: Estimate, passed: bool
) -> None:
    check = SelftestCheck("group", "name", 0.93, 0.97, lambda rng: seen)
    assert SelftestOutcome(check, seen, 0.0).passed == passed


@pytest.mark.parametrize(
    ("low", "high", "says"),
    [
        (0.0, 0.025, "at most 0.025"),
        (0.65, 1.0, "at least 0.65"),
        (0.94, 0.995, "0.94 to 0.995"),
        (0.5, 0.5, "0.5"),
    ],
)
def test_the_range_reads_as_words(low: float, high: float, says: str) -> None:
    assert (
        SelftestCheck("group", "name", low, high, lambda rng: about(0.0, 1.0)).expected
        == says
    )


def test_a_checks_draws_depend_on_its_name_and_the_seed_alone() -> None:
    checks = [
        SelftestCheck("g", name, 0.4, 0.6, share_of(lambda rng: rng.random() < 0.5, 50))
        for name in ("one", "two", "three")
    ]
    both, alone = run_checks(checks, seed=3), run_checks(checks[1:2], seed=3)
    assert both[1].observed == alone[0].observed
    assert len({run_checks(checks[:1], s)[0].observed.value for s in range(8)}) > 1


def test_a_share_is_counted_at_999_in_1000() -> None:
    found = share_of(lambda rng: True, 20)(np.random.default_rng(0))
    assert (found.value, found.high, found.confidence) == (1, 1, 0.999)
    assert found.low == pytest.approx(0.0005 ** (1 / 20))


def test_progress_names_what_is_next() -> None:
    said: list[str] = []
    run_checks(
        [SelftestCheck("g", "a", 0.0, 1.0, lambda rng: about(0.0, 1.0))], 0, said.append
    )
    assert said == ["a"]


def test_both_classes_occur_whatever_the_coins() -> None:
    for seed in range(50):
        truth, members, others = by_coin(np.arange(2.0), np.random.default_rng(seed))
        assert (len(members), len(others), truth.sum()) == (1, 1, 1)


def test_checks_of_the_catalogue_find_the_same_elsewhere() -> None:
    quick = [check for check in CHECKS if "false without a leak" in check.name][:2]
    here, there = run_checks(quick, 3), run_checks(quick, 3, executor=LikeOthers())
    assert [one.check.name for one in there] == [check.name for check in quick]
    assert [one.observed for one in there] == [one.observed for one in here]
    assert len({check.name for check in CHECKS}) == len(CHECKS)
