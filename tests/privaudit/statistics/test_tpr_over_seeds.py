import numpy as np
import pytest

from privaudit.core.errors import ConfigError
from privaudit.statistics.curve import Groups, tpr_at_fpr, tpr_over_seeds


def seeds(rng: np.random.Generator, count: int, records: int) -> list[Groups]:
    """Return seeds that differ in how much they leak."""
    shifts = rng.normal(1.0, 0.3, count)
    return [
        (rng.normal(shift, 1, records), rng.normal(0, 1, records)) for shift in shifts
    ]


def test_five_seeds_resolve_what_one_does_not(rng: np.random.Generator) -> None:
    groups = seeds(rng, 5, 200)
    assert tpr_over_seeds(groups[:1]).unresolved == "needs 1000 non-members, has 200"
    assert not tpr_over_seeds(groups).unresolved


def test_a_single_seed_is_that_of_its_records(rng: np.random.Generator) -> None:
    (group,) = seeds(rng, 1, 1000)
    assert tpr_over_seeds([group]) == tpr_at_fpr(*group, 0.01)


def test_the_interval_is_never_narrower_than_that_of_records(
    rng: np.random.Generator,
) -> None:
    groups = seeds(rng, 4, 300)
    members, others = (np.concatenate(side) for side in zip(*groups, strict=True))
    plain, found = tpr_at_fpr(members, others, 0.01), tpr_over_seeds(groups)
    assert found.value == plain.value
    assert found.low <= plain.low
    assert found.high >= plain.high
    assert found.n == (1200, 1200)


def test_seeds_that_leak_unlike_are_covered_by_the_spread_over_seeds() -> None:
    rng = np.random.default_rng(5)
    truth = tpr_over_seeds(seeds(rng, 500, 400)).value
    found = [tpr_over_seeds(seeds(rng, 5, 400)) for _ in range(200)]
    assert np.mean([one.low <= truth <= one.high for one in found]) >= 0.88


def test_no_seeds_are_refused() -> None:
    with pytest.raises(ConfigError, match="no seeds to pool"):
        tpr_over_seeds([])
