"""Candidates that a run does without."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privaudit import train
from privaudit.core.errors import ConfigError
from privaudit.datasets.left_out import leave_out, read_positions, write_positions
from privaudit.datasets.split import PUBLIC, UNUSED, Split
from privaudit.federated.runs.config import make_config


@given(st.sets(st.integers(0, 60), min_size=1))
def test_positions_are_written_and_read(positions: set[int]) -> None:
    text = write_positions(np.array(list(positions)))
    assert read_positions(text).tolist() == sorted(positions)
    assert write_positions(read_positions(text)) == text


@pytest.mark.parametrize(
    "text", ["", "a", "3-", "-3", "5-3", "1,,2", "1 2", "0-999999999"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="without"):
        make_config("promptfl", without=text)


def test_one_configuration_has_one_name() -> None:
    one, other = (make_config("promptfl", without=w) for w in ("5,3,4", "3-5"))
    assert one == other
    assert one.without == "3-5"
    assert one.digest != make_config("promptfl").digest
    assert one.described()["without"] == "3 records"


def test_groups_are_left_out_together_and_others_stay() -> None:
    owner, group = np.array([0, 0, 1, 1, PUBLIC]), np.array([0, 0, 2, 3, 4])
    found = leave_out(Split(owner, group=group), np.array([1]))
    assert found.owner.tolist() == [UNUSED, UNUSED, 1, 1, PUBLIC]
    for odd in (4, 5):
        with pytest.raises(ConfigError, match=f"Record {odd} was to be left out"):
            leave_out(Split(owner), np.array([odd]))


def test_all_others_keep_their_client_and_their_coin() -> None:
    whole = train("promptfl", rounds=1, epochs=1, seed=3)
    gone = whole.ledger.candidates_of(0)[:4]
    less = train("promptfl", rounds=1, epochs=1, seed=3, without=write_positions(gone))
    stays = ~np.isin(np.arange(len(whole.ledger.owner)), gone)
    for name in ("owner", "is_member"):
        before, after = (getattr(run.ledger, name)[stays] for run in (whole, less))
        np.testing.assert_array_equal(before, after)
    assert (less.ledger.owner[gone] == UNUSED).all()
    assert not less.ledger.is_member[gone].any()


def test_a_client_without_candidates_is_refused() -> None:
    whole = train("promptfl", rounds=1, epochs=1, seed=3)
    gone = whole.ledger.candidates_of(0)
    with pytest.raises(ConfigError, match="Client 0"):
        train("promptfl", rounds=1, epochs=1, seed=3, without=write_positions(gone))
