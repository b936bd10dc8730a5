"""The error of an AUROC that other coins of the shadows make, beside the records'."""

from dataclasses import dataclass

import numpy as np
import pytest

from privaudit.statistics.comparisons import Comparison, pooled_paired_auroc_difference
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.roc import delong_components, pooled_auroc
from privaudit.statistics.shadow_comparison import (
    ShadowError,
    difference_with_shadow_error,
    rows_left,
    shadow_error,
    with_shadow_error,
)

Clients = list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Draw:
    """A made-up audit of one client: records, a target, and shadows in pairs.

    A shadow's signal of a record is the record's difficulty, a lift if it was trained
    on it, noise of this pair of shadow and record, and what the shadow says of all
    records of one kind: that part no record averages out.
    """

    lift: float
    shadows: int
    records: int = 100
    noise: float = 1.0
    common: float = 1.0

    def audit(self, rng: np.random.Generator) -> tuple[Clients, list[Clients]]:
        return self.audits(rng, self.lift)[0]

    def audits(
        self, rng: np.random.Generator, *lifts: float
    ) -> list[tuple[Clients, list[Clients]]]:
        """Targets with these lifts, on the same records and by the same coins.

        What a shadow says of a kind, that of the next target says twice as loudly.
        """
        difficulty, kind = rng.normal(size=(2, self.records))
        truth = rng.random(self.records) < 0.5
        coins = rng.random((self.shadows // 2, self.records)) < 0.5
        is_in = np.stack([coins, ~coins], axis=1).reshape(self.shadows, -1)
        shared_noise = self.common * rng.normal(size=(self.shadows, 1))
        found = []
        for number, lift in enumerate(lifts):
            target = difficulty + lift * truth + rng.normal(size=self.records)
            shadows = difficulty + lift * is_in + (1 + number) * shared_noise * kind
            shadows += self.noise * rng.normal(size=shadows.shape)

            def split(
                rows: np.ndarray,
                target: np.ndarray = target,
                shadows: np.ndarray = shadows,
            ) -> Clients:
                scores = target - shadows[rows].mean(axis=0)
                return [(scores[truth], scores[~truth])]

            left = [split(rows) for rows in rows_left(self.shadows)]
            found.append((split(np.arange(self.shadows)), left))
        return found


def estimated(clients: Clients, left_out: list[Clients]) -> Estimate:
    return with_shadow_error(pooled_auroc(clients), shadow_error(left_out))


def truth(draw: Draw, rng: np.random.Generator, audits: int = 1500) -> float:
    """Return the mean over other records, other coins and other shadows."""
    found = [draw.audit(rng)[0][0] for _ in range(audits)]
    return float(np.mean([delong_components(*one).value for one in found]))


def test_pairs_stay_together_and_each_is_left_out_once() -> None:
    for shadows in (6, 8, 30, 64, 100):
        left = [set(range(shadows)) - set(rows.tolist()) for rows in rows_left(shadows)]
        assert 3 <= len(left) <= 16
        assert sorted(row for rows in left for row in rows) == list(range(shadows))
        assert all({row ^ 1 for row in rows} == rows for rows in left)
    assert rows_left(4) == []


def test_shadows_that_all_say_the_same_add_no_error(rng: np.random.Generator) -> None:
    members, others = rng.normal(size=(2, 40))
    same = [[(members, others)]] * 5
    assert shadow_error(same) == ShadowError(0.0, 4.0, 5)
    plain = pooled_auroc([(members, others)])
    found = with_shadow_error(plain, ShadowError(0.0, 4.0, 5))
    assert (found.low, found.high) == pytest.approx((plain.low, plain.high))
    assert "5 sets of shadow models" in found.method


def test_what_moves_all_records_alike_is_the_jackknife_s_variance() -> None:
    """Each set moves every member across as many others: nothing is a record's own."""
    others = np.arange(10.0)
    left_out = [[(np.full(6, 2.5 + step), others)] for step in range(4)]
    values = np.array([0.3, 0.4, 0.5, 0.6])
    jackknife = 3 / 4 * float(((values - values.mean()) ** 2).sum())
    table = np.stack([(2.5 + step > others) * 1.0 for step in range(4)])
    rest = table - table.mean(0) - table.mean(1)[:, None] + table.mean()
    shared = float((rest**2).sum()) * 3 / (4 * 10 * 9)
    found = shadow_error(left_out)
    assert found.variance == pytest.approx(max(jackknife - shared, 0))
    assert found.freedom == 3


def test_clients_weigh_by_their_pairs(rng: np.random.Generator) -> None:
    """A client twice, in halves of one weight, is known twice as well as once."""
    left_out = [[(rng.normal(size=30) + 3 * k, rng.normal(size=30))] for k in range(5)]
    twice = [[*clients, *clients] for clients in left_out]
    once, doubled = shadow_error(left_out), shadow_error(twice)
    assert 0 < once.variance <= doubled.variance * 2


@pytest.mark.parametrize(("lift", "shadows"), [(0.0, 8), (1.0, 8), (1.0, 32)])
def test_intervals_cover_other_records_and_other_shadows(
    lift: float, shadows: int, rng: np.random.Generator
) -> None:
    """300 audits with new records, coins and shadows each; the bench has 5,000."""
    draw = Draw(lift, shadows)
    mean = 0.5 if lift == 0 else truth(draw, rng)
    found = [estimated(*draw.audit(rng)) for _ in range(300)]
    covered = sum(one.low <= mean <= one.high for one in found)
    assert covered >= 300 * 0.95 - 3 * np.sqrt(300 * 0.05 * 0.95)
    if lift == 0:
        leaks = sum(one.low > 0.5 for one in found)
        assert leaks <= 300 * 0.025 + 3 * np.sqrt(300 * 0.025 * 0.975)


def difference(
    rng: np.random.Generator, draw: Draw, *lifts: float
) -> tuple[Comparison, Comparison]:
    """Return one less the other for other records, and for other shadows as well."""
    (first, left), (second, their_left) = draw.audits(rng, *lifts)
    (members, others), (their_members, their_others) = first[0], second[0]
    scores = np.concatenate([members, others])
    theirs = np.concatenate([their_members, their_others])
    is_member = np.arange(len(scores)) < len(members)
    plain = pooled_paired_auroc_difference([(scores, theirs, is_member)])
    return plain, difference_with_shadow_error(plain, shadow_error(left, their_left))


def test_differences_cover_other_records_and_other_shadows(
    rng: np.random.Generator,
) -> None:
    """600 pairs of audits; without the shadows' part far fewer are covered."""
    draw, lifts = Draw(0.0, 8, common=3.0), (1.0, 0.5)
    found = [difference(rng, draw, *lifts) for _ in range(600)]
    mean = float(np.mean([plain.estimate.value for plain, _ in found]))
    plain, knowing = (
        sum(one[kind].estimate.low <= mean <= one[kind].estimate.high for one in found)
        for kind in (0, 1)
    )
    assert knowing >= 600 * 0.95 - 3 * np.sqrt(600 * 0.05 * 0.95)
    assert plain < knowing
    assert all(one[1].p_value >= one[0].p_value for one in found)


def test_what_both_sets_of_shadows_say_alike_is_no_error_of_a_difference(
    rng: np.random.Generator,
) -> None:
    left_out = [[(rng.normal(size=30) + 3 * k, rng.normal(size=30))] for k in range(5)]
    assert shadow_error(left_out).variance > 0
    assert shadow_error(left_out, left_out).variance == 0


def test_an_interval_at_its_end_widens_and_stays_a_share() -> None:
    perfect = Estimate(1.0, 0.9, 1.0, (20, 20), "AUROC")
    found = with_shadow_error(perfect, ShadowError(0.05**2, 9.0, 10))
    assert 0.8 < found.low < 0.9
    assert found.high == 1


def of_clients(
    rng: np.random.Generator, common: float, sets: int = 5, clients: int = 10
) -> list[Clients]:
    """Return scores without each set of shadows, which moves members of all clients."""
    base = rng.normal(size=(clients, 2, 40))
    left_out = []
    for _ in range(sets):
        own, shared = rng.normal(size=clients), rng.normal()
        moved = 0.3 * own + common * shared
        left_out.append([(x + m, y) for (x, y), m in zip(base, moved, strict=True)])
    return left_out


def test_shadows_of_each_client_are_known_by_all_clients_together(
    rng: np.random.Generator,
) -> None:
    """So the reach is narrower than that of five sets; where they move all alike it is not."""
    apart = [shadow_error(of_clients(rng, 0.0)) for _ in range(100)]
    pooled = [one for one in apart if one.freedom > 4]
    assert len(pooled) >= 95 - 4 * np.sqrt(100 * 0.05 * 0.95)  # an F test at 5 %
    assert min(one.freedom for one in pooled) > 15
    together = [shadow_error(of_clients(rng, 1.0)) for _ in range(20)]
    assert {one.freedom for one in together} == {4.0}


def test_errors_of_shadows_that_share_nothing_add_up() -> None:
    both = ShadowError(0.1, 4.0, 5) + ShadowError(0.2, 7.0, 8)
    assert both.variance == pytest.approx(0.3)
    assert (both.freedom, both.sets) == (4.0, 5)
