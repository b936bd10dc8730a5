import numpy as np
import pytest

from privaudit.statistics.epsilon.bound import largest_rejected


def test_it_finds_each_end_from_below() -> None:
    ends = np.array([0.3, 2.0, 7.5])
    found = largest_rejected(lambda x: x < ends, np.full(3, 10.0))
    assert found == pytest.approx(ends, abs=1e-11)
    assert (found <= ends).all()


def test_it_is_0_where_0_is_not_rejected_and_the_top_where_all_is() -> None:
    found = largest_rejected(lambda x: x < np.array([-1.0, 99.0]), np.array([5.0, 5.0]))
    assert found == pytest.approx([0.0, 5.0])
