import numpy as np
import pytest

from privaudit.core.errors import ConfigError
from privaudit.statistics.epsilon.designs import (
    IndependentRuns,
    OneRunCanaries,
    require_design,
)

COINS = np.array([True, False, True])


def test_members_and_nonmembers_are_counted() -> None:
    runs = IndependentRuns(np.arange(3.0), COINS)
    assert (runs.members, runs.nonmembers) == (2, 1)


def test_each_design_passes_for_itself_only() -> None:
    runs, canaries = (kind(np.arange(3), COINS) for kind in KINDS)
    require_design(runs, "many runs", "A bound")
    require_design(canaries, "one run", "A bound")
    with pytest.raises(
        ConfigError, match=r"of 3 canaries of one run\. It does not hold"
    ):
        require_design(canaries, "many runs", "SplitThreshold")
    with pytest.raises(ConfigError, match=r"of 3 runs\. It does not hold"):
        require_design(runs, "one run", "OneRunGuesses")


KINDS = (IndependentRuns, OneRunCanaries)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_that_cannot_be_used_are_refused(
    kind: type[IndependentRuns | OneRunCanaries],
) -> None:
    with pytest.raises(ConfigError, match="2 scores and 3 coins"):
        kind(np.arange(2.0), COINS)
    with pytest.raises(ConfigError, match="0 scores and 0 coins"):
        kind(np.zeros(0), COINS[:0])
    with pytest.raises(ConfigError, match="2 of 3"):
        kind(np.array([1.0, np.nan, np.inf]), COINS)
