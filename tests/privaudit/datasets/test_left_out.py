"""Candidates that a run does without."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privaudit import train
from privaudit.core.errors import ConfigError, TooFewRecordsError
from privaudit.datasets.left_out import leave_out, read_positions, write_positions
from privaudit.datasets.split import PUBLIC, UNUSED, Split
from privaudit.federated.runs.config import make_config
from privaudit.federated.runs.population import populate


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
    assert re.fullmatch(r"3 records \([0-9a-f]{4}\)", one.described()["without"])
    assert one.described() == other.described()
    assert one.described() != make_config("promptfl", without="3-4,6").described()


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


def test_a_client_keeps_its_coin_without_its_first_record() -> None:
    asked: dict[str, Any] = {
        "rounds": 1, "epochs": 1, "seed": 3, "clients": 10, "members": "clients",
    }  # fmt: skip
    whole = train("promptfl", **asked)
    assert set(whole.ledger.is_member) == {True, False}
    owned = [whole.ledger.candidates_of(n) for n in range(10)]
    gone = np.array([own[0] for own in owned])
    less = train("promptfl", without=write_positions(gone), **asked)
    for number, before in enumerate(owned):
        after = less.ledger.candidates_of(number)
        np.testing.assert_array_equal(after, before[1:])
        np.testing.assert_array_equal(
            less.ledger.is_member[after], whole.ledger.is_member[after]
        )
        assert len(less.ledger.units(after).first) == 1


def test_canaries_that_stay_are_as_they_were() -> None:
    asked: dict[str, Any] = {"seed": 3, "canary": "mislabelled", "canaries": 10}
    whole = populate(make_config("promptfl", **asked))
    assert whole.canaries is not None
    drawn = whole.canaries.indices
    other = np.setdiff1d(whole.indices("client-0"), drawn)[:3]
    gone = np.sort(np.concatenate([drawn[:1], other]))
    less = populate(make_config("promptfl", without=write_positions(gone), **asked))
    assert less.canaries is not None
    np.testing.assert_array_equal(less.canaries.indices, drawn[1:])
    assert less.canaries.norm == whole.canaries.norm
    for before, after in (
        (whole.records.labels, less.records.labels),
        (whole.records.identities, less.records.identities),
    ):
        np.testing.assert_array_equal(before[drawn[1:]], after[drawn[1:]])
    gone = np.intersect1d(drawn, whole.indices("client-0"))
    with pytest.raises(TooFewRecordsError, match="All canaries of one client"):
        populate(make_config("promptfl", without=write_positions(gone), **asked))
