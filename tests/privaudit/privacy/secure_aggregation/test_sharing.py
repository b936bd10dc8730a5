from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privaudit.privacy.secure_aggregation.sharing import combine, split, times

SECRET = bytes(range(16))


def pycryptodome() -> Any:
    return pytest.importorskip("Crypto.Protocol.SecretSharing").Shamir


def elements() -> st.SearchStrategy[int]:
    return st.integers(0, 2**128 - 1)


def test_a_line_through_the_secret_is_shared_by_hand() -> None:
    """p(x) = 7 + 5 x: 5 x 2 is 10, 5 x 3 is 15, and plus is exclusive or."""
    shares = split((7).to_bytes(16), 2, range(3), (5).to_bytes(16))
    assert [int.from_bytes(share) for share in shares.values()] == [
        7 ^ 5,
        7 ^ 10,
        7 ^ 15,
    ]
    assert combine({0: shares[0], 2: shares[2]}) == (7).to_bytes(16)


@given(elements(), elements(), elements())
def test_the_elements_form_a_field(a: int, b: int, c: int) -> None:
    assert times(a, b) == times(b, a) < 2**128
    assert times(a, times(b, c)) == times(times(a, b), c)
    assert times(a, b ^ c) == times(a, b) ^ times(a, c)
    assert times(a, 1) == a


def test_pycryptodome_reads_our_shares_and_we_read_its() -> None:
    shamir = pycryptodome()
    ours = split(SECRET, 4, range(7), bytes(range(100, 148)))
    theirs = shamir.split(4, 7, SECRET)
    for some in combinations(range(7), 4):
        assert shamir.combine([(i + 1, ours[i]) for i in some]) == SECRET
        assert combine({i: dict(theirs)[i + 1] for i in some}) == SECRET


@settings(max_examples=30, deadline=None)
@given(st.binary(min_size=16, max_size=16), st.data())
def test_enough_shares_give_the_secret_back(secret: bytes, data: st.DataObject) -> None:
    parties = data.draw(st.integers(2, 30))
    threshold = data.draw(st.integers(1, parties))
    count = 16 * (threshold - 1)
    random = data.draw(st.binary(min_size=count, max_size=count))
    shares = split(secret, threshold, range(parties), random)
    some = data.draw(st.permutations(range(parties)))[:threshold]
    assert combine({i: shares[i] for i in some}) == secret


def test_too_few_shares_fit_every_secret() -> None:
    """Two points of a parabola: any value at 0 has one parabola through all three."""
    shares = split(SECRET, 3, range(5), bytes(range(50, 82)))
    for other in (bytes(16), b"\xff" * 16):
        third = pycryptodome().combine(  # the value at 3, from those at 0, 1, 2
            [(0 ^ 3, other), (1 ^ 3, shares[0]), (2 ^ 3, shares[1])]
        )
        assert combine({0: shares[0], 1: shares[1], 2: third}) == other
    assert combine({0: shares[0], 1: shares[1]}) != SECRET
