"""The card attack: it must work on exact numbers by client, and not on cards."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from privaudit import Run
from privaudit.auditing.attack_result import ClientScores
from privaudit.auditing.storage.load import read_audit
from privaudit.privacy.noised_auroc import RankQuery
from privaudit.report.export.reader import (
    CardNumber,
    card_numbers,
    read_numbers,
)
from privaudit.statistics.roc import auroc

Sizes = tuple[int, ...]


def by_client(
    attacks: Sequence[Sequence[ClientScores]],
) -> tuple[list[CardNumber], np.ndarray, list[np.ndarray], np.ndarray]:
    """Return what cards once held: each attack's exact AUROC by client, with its n."""
    everybody = [c.records for clients in attacks for c in clients]
    records = np.unique(np.concatenate(everybody))
    numbers, rules, places = [], [], {}
    for clients in attacks:
        rules.append(np.zeros(len(records)))
        for client in clients:
            where = np.searchsorted(records, client.records)
            row = np.zeros(len(records))
            row[where] = RankQuery.of([client.records], [client.scores]).ranks
            members = int(client.is_member.sum())
            pairs = members * (len(where) - members)
            found = 2 * pairs * (auroc(*client.groups).value - 0.5) if pairs else 0.0
            numbers.append(CardNumber(row, found))
            rules[-1] += row
            places[client.client] = where
    return numbers, records, list(places.values()), np.stack(rules)


def made_up(
    sizes: Sizes, attacks: int, rng: np.random.Generator
) -> list[list[ClientScores]]:
    """Return scores that tell nothing of coins, of several attacks."""
    coins = [rng.random(size) < 0.5 for size in sizes]
    begins = np.cumsum([0, *sizes])
    return [
        [
            ClientScores(
                f"client-{k}",
                np.arange(begins[k], begins[k + 1]),
                np.zeros(size, int),
                rng.normal(size=size),
                np.zeros(size, bool),
                coins[k],
            )
            for k, size in enumerate(sizes)
        ]
        for _ in range(attacks)
    ]


def truth_of(clients: Sequence[ClientScores]) -> np.ndarray:
    return np.concatenate([client.is_member for client in clients])


def test_exact_numbers_by_client_give_every_member_away(
    rng: np.random.Generator,
) -> None:
    """It must work: as many numbers of each client as it has candidates."""
    attacks = made_up((46, 44, 42), 46, rng)
    numbers, _, places, rules = by_client(attacks)
    truth = truth_of(attacks[0])
    for reading in read_numbers(numbers, places).values():
        assert reading.right(truth) == 132
        assert reading.is_beyond_chance(truth, rules)


def test_few_exact_numbers_give_small_clients_away_to_the_search_alone(
    rng: np.random.Generator,
) -> None:
    """Three clients of 30 and 5 numbers each: 2^30 memberships, of which few fit."""
    attacks = made_up((30, 30, 30), 5, rng)
    numbers, _, places, rules = by_client(attacks)
    truth = truth_of(attacks[0])
    readings = read_numbers(numbers, places)
    assert readings["least squares"].right(truth) < 75
    assert readings["search"].right(truth) >= 85
    assert readings["search"].is_beyond_chance(truth, rules)


def test_an_audit_as_cards_once_held_it_tells_more_than_any_of_its_attacks(
    run: Run,
) -> None:
    """A real one: its exact AUROCs by client, with those on the server's own model."""
    stored = read_audit(run, "server-reconstruct")
    attacks = [stored.clients(attack) for attack in stored.attacks]
    numbers, records, places, rules = by_client(attacks)
    truth = run.truth.is_member[records]
    reading = read_numbers(numbers, places)["least squares"]
    best = max(auroc(rule[truth], rule[~truth]).value for rule in rules)
    assert auroc(reading.belief[truth], reading.belief[~truth]).value > best


@pytest.mark.parametrize("leak", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("sizes", [(12,), (46, 44, 42), (9,) * 30])
def test_a_ledger_s_budget_of_cards_stays_within_chance(
    sizes: Sizes, leak: float, rng: np.random.Generator
) -> None:
    """Three noised numbers of each of 12 ledgers, whatever the scores tell by themselves.

    Where they tell nothing, the mean AUROC of the reader is at most what three numbers
    allow of two coins, a member's and another's: Phi(0.289 sqrt(3)) = 0.69.
    """
    aurocs = []
    for _ in range(12):
        attacks = made_up(sizes, 3, rng)
        truth = truth_of(attacks[0])
        queries = [
            RankQuery.of(
                [c.records for c in clients],
                [c.scores + leak * c.is_member for c in clients],
            )
            for clients in attacks
        ]
        noised = [
            one.exact(truth) * one.fine + round(rng.normal() * one.scale)
            for one in queries
        ]
        numbers, _, places = card_numbers(queries, noised)
        rules = np.stack([one.coefficients for one in numbers])
        for reading in read_numbers(numbers, places).values():
            assert not reading.is_beyond_chance(truth, rules)
        if 0 < truth.sum() < len(truth):
            belief = reading.belief
            aurocs.append(auroc(belief[truth], belief[~truth]).value)
    error = 1 / math.sqrt(3 * len(aurocs) * sum(sizes))
    if not leak:
        assert np.mean(aurocs) < 0.69 + 4 * error


def test_without_noise_pooled_numbers_add_up_to_a_gain(
    rng: np.random.Generator,
) -> None:
    """It must work: 100 exact pooled numbers of 540 candidates."""
    attacks = made_up((54,) * 10, 100, rng)
    truth = truth_of(attacks[0])
    queries = [
        RankQuery.of([c.records for c in one], [c.scores for c in one])
        for one in attacks
    ]
    rules = np.stack([one.ranks for one in queries]).astype(float)
    exact = [CardNumber(row, float(row[truth].sum())) for row in rules]
    reading = read_numbers(exact, [])["least squares"]
    gained = auroc(reading.belief[truth], reading.belief[~truth]).value
    assert gained > 0.65
    assert reading.is_beyond_chance(truth, rules)
