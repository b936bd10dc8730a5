"""What honest parties compute, and what they refuse."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.privacy.secure_aggregation.fixed_point import FixedPoint
from privaudit.privacy.secure_aggregation.identities import Roster
from privaudit.privacy.secure_aggregation.masks import pair_mask, self_mask
from privaudit.privacy.secure_aggregation.primitives import agree, key_pair
from privaudit.privacy.secure_aggregation.protocol import (
    aggregate,
    threshold_of,
)
from privaudit.privacy.secure_aggregation.randomness import KeyedSecrets, SystemSecrets
from tests.privaudit.privacy.secure_aggregation.bounds import (
    error_of_sum,
    most_colluders,
)
from tests.privaudit.privacy.secure_aggregation.conftest import (
    THREE,
    decoded,
    identities_of,
    summed,
)


def test_three_clients_sum_up_by_hand() -> None:
    outcome = summed(THREE)
    assert decoded(outcome, 3) == [1.75, 4.0]
    assert outcome.survivors == (0, 1, 2)
    assert outcome.faults == ()


def test_two_clients_masks_are_put_on_by_hand() -> None:
    """The first adds what both agreed on, the second takes it off; and its own."""
    outcome = summed([[1.0], [2.0]])
    codes = FixedPoint(2, 64, 8.0).encode(np.array([1.0, 2.0]))
    first, second = (KeyedSecrets.of_seed(Seeds(0), 0, name) for name in ("c0", "c1"))
    private, _ = key_pair(first("mask key", 16))
    _, public = key_pair(second("mask key", 16))
    shared = pair_mask(agree(private, public), codes[:1], "", 1, 0)
    sent = [p.arrays["masked"] for p in outcome.packets if p.kind == "masked"]
    own = [self_mask(entropy("own mask", 16), codes[:1]) for entropy in (first, second)]
    assert (sent[0] == codes[:1] + own[0] + shared).all()
    assert (sent[1] == codes[1:] + own[1] - shared).all()


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_the_sum_is_the_plain_one_to_the_stated_error(data: st.DataObject) -> None:
    clients = data.draw(st.integers(2, 7))
    numbers = st.lists(st.floats(-8, 8), min_size=3, max_size=3)
    updates = data.draw(st.lists(numbers, min_size=clients, max_size=clients))
    outcome = summed(updates, seed=data.draw(st.integers(0, 10)))
    error = Fraction(error_of_sum(FixedPoint(clients, 64, 8.0)))
    for found, column in zip(
        decoded(outcome, clients), zip(*updates, strict=True), strict=True
    ):
        rounding = abs(Fraction(found)) / 2**53  # of the result, to float64
        exact = sum(map(Fraction, column))
        assert abs(Fraction(found) - exact) <= error + rounding


def test_half_the_bytes_give_a_coarser_sum() -> None:
    outcome = summed(THREE, bits=32)
    assert outcome.total is not None
    code = FixedPoint(3, 32, 8.0)
    found = code.decode(outcome.total)
    np.testing.assert_allclose(found, [1.75, 4.0], atol=error_of_sum(code))
    sent = [p.arrays["masked"].nbytes for p in outcome.packets if p.kind == "masked"]
    assert sent == [8, 8, 8]


def test_equal_seeds_give_equal_packets_and_others_do_not() -> None:
    def sent(seed: int) -> list[bytes]:
        packets = summed(THREE, seed=seed).packets
        return [a.tobytes() for p in packets for a in p.arrays.values()]

    assert sent(1) == sent(1)
    assert sent(1) != sent(2)


def test_the_operating_systems_randomness_does_as_well() -> None:
    code = FixedPoint(3, 64, 8.0)
    codes = [code.encode(np.array(update)) for update in THREE]
    own = [SystemSecrets()] * 3
    runs = [aggregate(codes, identities_of(3), own, code) for _ in range(2)]
    totals = [run.total for run in runs]
    assert totals[0] is not None
    assert totals[1] is not None
    assert code.decode(totals[0]).tolist() == [1.75, 4.0]
    assert (totals[0] == totals[1]).all()
    first, second = (next(p for p in r.packets if p.kind == "masked") for r in runs)
    assert (first.arrays["masked"] != second.arrays["masked"]).any()


def test_a_sum_over_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="over 1 client was requested"):
        summed([[1.0]])


@pytest.mark.parametrize("parties", range(2, 40))
def test_two_thresholds_of_clients_share_more_than_a_third(parties: int) -> None:
    threshold = threshold_of(parties)
    assert 2 * parties / 3 < threshold <= parties
    most = most_colluders(parties, threshold)
    assert most in (parties // 3, parties // 3 + 1)
    assert 2 * threshold > parties + most


def test_clients_without_keys_of_their_own_are_refused() -> None:
    with pytest.raises(ConfigError, match="3 clients were listed with 2 keys"):
        Roster((b"a", b"b", b"a"), "")
