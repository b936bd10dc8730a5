"""Calibration of what an audit says, on scores that anybody can draw."""

from dataclasses import replace

import numpy as np
import pytest

from privaudit.auditing.attack_result import (
    ClientScores,
    evaluate_scores,
    knowing_shadows_of,
    paired_scores,
)
from privaudit.report.wording import ties
from privaudit.statistics.comparisons import paired_auroc_at


def client(
    name: str, scores: np.ndarray, is_member: np.ndarray, guesses: np.ndarray
) -> ClientScores:
    records = np.arange(len(scores))
    return ClientScores(name, records, records % 4, scores, guesses, is_member)


def tossed(rng: np.random.Generator, shift: float = 0.0) -> list[ClientScores]:
    clients = []
    for name in ("a", "b", "c"):
        is_member = rng.random(60) < 0.5
        scores = rng.normal(size=60) + shift * is_member
        clients.append(client(name, scores, is_member, scores > shift / 2))
    return clients


def test_scores_that_know_are_found(rng: np.random.Generator) -> None:
    leak = evaluate_scores("some", "", "", tossed(rng, shift=2.0))
    assert leak.verdict.kind == "leaks"
    assert leak.success.low > 0.6
    assert leak.advantage.low > 0.3


def test_candidates_that_tie_are_counted_within_their_client() -> None:
    is_member = np.arange(6) % 2 == 0
    alice = client("a", np.array([0.0, 0, 1, 2, 3, 0]), is_member, is_member)
    bob = client("b", np.arange(6.0), is_member, is_member)
    leak = evaluate_scores("some", "", "", [alice, bob])
    assert leak.to_dict()["tied"] == 3
    assert ties(leak).startswith("3 of 12 candidates are tied")
    assert ties(evaluate_scores("some", "", "", [bob])) == ""


def test_scales_of_clients_do_not_matter_to_the_auroc(rng: np.random.Generator) -> None:
    """Scores of two clients are not comparable, so each is ranked by itself."""
    plain = tossed(rng, shift=1.0)
    scaled = [
        client(c.client, c.scores * 10**i + i, c.is_member, c.guesses)
        for i, c in enumerate(plain)
    ]
    first, second = (evaluate_scores("", "", "", x).auroc for x in (plain, scaled))
    assert first.value == pytest.approx(second.value)


def test_a_rate_below_what_the_records_can_show_is_unresolved(
    rng: np.random.Generator,
) -> None:
    leak = evaluate_scores("none", "", "", tossed(rng))
    assert "needs 10000 non-members" in leak.tpr_at_fpr[0.001].unresolved


def test_a_client_without_members_is_left_out_and_said_so(
    rng: np.random.Generator,
) -> None:
    clients = tossed(rng)
    lone = client("d", rng.normal(size=5), np.zeros(5, bool), np.zeros(5, bool))
    leak = evaluate_scores("none", "", "", [*clients, lone])
    assert "1 left out" in leak.auroc.method
    assert "d" not in leak.by_client


def test_a_low_rate_is_unresolved_where_small_clients_are_beside_a_large_one(
    rng: np.random.Generator,
) -> None:
    """What leaks of 100 clients of 20 is below what one of 2,000 sets as threshold."""

    def drawn(name: str, size: int, shift: float) -> ClientScores:
        truth = np.arange(size) % 2 == 0
        return client(name, rng.normal(size=size) + shift * truth, truth, truth)

    small = [drawn(f"s{place}", 20, 100.0) for place in range(100)]
    rates = evaluate_scores("", "", "", [drawn("large", 2000, 0.0), *small]).tpr_at_fpr
    assert rates[0.01].unresolved == (
        "needs 100 candidates of each client, or clients of like sizes: client 2 of "
        "101 has 20, and the largest 2000"
    )
    assert not rates[0.1].unresolved
    assert not evaluate_scores("", "", "", small).tpr_at_fpr[0.01].unresolved


@pytest.mark.parametrize("sets", [(4, 0), (0, 4), (4, 8)])
def test_shadows_of_one_side_alone_or_in_other_numbers_widen_a_difference_too(
    rng: np.random.Generator, sets: tuple[int, int]
) -> None:
    """As independent ones: nothing says what the two have in common."""
    first, second = (
        [
            replace(one, left_out=one.scores + shake if count else None)
            for one in tossed(np.random.default_rng(3), 1.0)
            for shake in [3 * rng.normal(size=(count, 1)) * one.is_member]
        ]
        for count in sets
    )
    plain = paired_auroc_at(paired_scores(first, second))(0.95)
    wide = knowing_shadows_of(first, second)(plain).estimate
    assert wide.low < plain.estimate.low - 0.02
    assert wide.high > plain.estimate.high + 0.02
    assert f"over {min(filter(None, sets))} sets" in wide.method
