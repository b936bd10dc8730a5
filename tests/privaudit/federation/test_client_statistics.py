import itertools

import numpy as np
import pytest

from privaudit.federation.client_statistics import solve_means, solve_membership


def centred(rows: np.ndarray, member: np.ndarray) -> np.ndarray:
    """Equations that say that these members have that mean."""
    return 1e6 * (rows - rows[:, member].mean(axis=1, keepdims=True))


def test_as_many_equations_as_candidates_leave_nothing_open(
    rng: np.random.Generator,
) -> None:
    rows, member = rng.normal(size=(30, 24)), rng.random(24) < 0.5
    found = solve_membership(centred(rows, member), np.zeros(30), 0.5)
    assert found[member].min() > 0.3
    assert found[~member].max() < 1e-3


def test_bounds_find_members_where_equations_are_fewer_than_candidates(
    rng: np.random.Generator,
) -> None:
    """Sums of 16 numbers and 24 candidates: no one solution without the bounds."""
    rows, member = rng.normal(size=(16, 24)), rng.random(24) < 0.5
    found = solve_membership(1e6 * rows, 1e6 * rows @ member, 0.5)
    np.testing.assert_allclose(found, member, atol=1e-3)


def test_it_is_the_best_point_of_a_fine_grid() -> None:
    equations, right = np.array([[2.0, 1.0], [0.0, 3.0]]), np.array([3.5, -1.0])

    def cost(m: np.ndarray) -> float:
        return float(((equations @ m - right) ** 2).sum() + ((m - 0.5) ** 2).sum() * 4)

    grid = itertools.product(np.linspace(0, 1, 201), repeat=2)
    best = min((np.array(point) for point in grid), key=cost)
    np.testing.assert_allclose(solve_membership(equations, right, 0.5), best, atol=0.01)


def test_equations_that_say_nothing_leave_the_coin() -> None:
    found = solve_membership(np.zeros((3, 4)), np.zeros(3), 0.3)
    assert found.tolist() == pytest.approx([0.3] * 4)


def test_the_number_of_members_is_found_with_them(rng: np.random.Generator) -> None:
    """A mean does not tell over how many records it is; the bounds on each do."""
    rows, member = rng.normal(size=(26, 30)), rng.random(30) < 0.5
    mean = rows[:, member].mean(axis=1)
    found = solve_means(1e6 * rows, 1e6 * mean, 0.5)
    np.testing.assert_allclose(found, member, atol=1e-3)


def test_a_mean_that_no_candidates_have_gives_no_more_than_a_guess(
    rng: np.random.Generator,
) -> None:
    rows = rng.normal(size=(40, 12))
    found = solve_means(1e6 * rows, 1e6 * rng.normal(size=40), 0.5)
    assert found.shape == (12,)
    assert np.isfinite(found).all()
    assert found.max() < 0.5
