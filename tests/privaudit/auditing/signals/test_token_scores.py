import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from privaudit.auditing.signals.token_scores import (
    max_prob_gap,
    max_renyi,
    mean_log_likelihood,
    min_k,
    min_k_plus_plus,
    mod_renyi,
    perplexity_zlib,
)
from privaudit.core.errors import AttackError
from privaudit.datasets.dialogues import ANSWER, TokenSequences
from privaudit.models.token_table import (
    CLAMPED_TOKENS,
    TOKENS,
    TokenTable,
    token_signals,
)
from tests.golden import golden

ALPHAS = (0.5, 1.0, 2.0, math.inf)
CASES = [f"c{number}" for number in range(6)]


def known(case: str, wanted: str) -> tuple[TokenTable, Mapping[str, np.ndarray]]:
    """Return a table of one record, of answers only, and what it should give."""
    numbers = golden("maxrenyi") | golden("maxrenyi", f"{case}_")
    logits = torch.from_numpy(numbers["logits"]).double()[None, None]
    ids = torch.from_numpy(numbers["target_ids"])[None]
    words = TokenSequences(ids, torch.full_like(ids, ANSWER))
    signals = token_signals(logits, words, frozenset({wanted}))
    return TokenTable.from_signals([signals]), numbers


@pytest.mark.parametrize("case", [*CASES, "edge"])
def test_exact_max_renyi_is_the_golden_one(case: str) -> None:
    table, numbers = known(case, TOKENS)
    for row, alpha in enumerate(ALPHAS):
        for ratio, expected in zip(
            numbers["K_ratios"], numbers["exact_max_renyi_K"][row], strict=True
        ):
            found = max_renyi(table, "description", alpha, 100 * float(ratio))
            assert -found.item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_published_scores_are_the_golden_ones(case: str) -> None:
    table, numbers = known(case, CLAMPED_TOKENS)
    for row, alpha in enumerate(ALPHAS):
        for ratio, expected in zip(
            numbers["K_ratios"], numbers["ref_max_renyi_K"][row], strict=True
        ):
            score = max_renyi(table, "description", alpha, 100 * float(ratio))
            assert -score.item() == pytest.approx(expected, abs=1e-9)
    for ratio, expected in zip(
        numbers["K_ratios_mink"], numbers["ref_mink_prob"], strict=True
    ):
        score = min_k(table, "description", 100 * float(ratio))
        assert -score.item() == pytest.approx(expected, abs=1e-9)
    text = [str(numbers["text"])]
    found = {
        "loss": mean_log_likelihood(table, "description"),
        "mean_mod_renyi_05": mod_renyi(table, "description", 0.5),
        "mean_mod_renyi_2": mod_renyi(table, "description", 2.0),
        "ppl_zlib": perplexity_zlib(table, "description", text),
        "max_prob_gap": max_prob_gap(table, "description", of_logarithms=True),
    }
    for name, score in found.items():
        expected = numbers[f"ref_{name}"]
        assert -score.item() == pytest.approx(float(expected), abs=1e-9), name
    score = mod_renyi(table, "description", 1.0)
    assert -score.item() == pytest.approx(numbers["ref_mean_mod_entropy"], abs=1e-5)
    perplexity = (-mean_log_likelihood(table, "description")).exp()
    assert perplexity.item() == pytest.approx(float(numbers["ref_ppl"]), rel=1e-9)


def ragged(count: int, longest: int) -> TokenTable:
    """Return a table of answers of 2 to ``longest`` tokens."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, count, longest, 13, generator=generator).double() * 2
    ids = torch.randint(0, 13, (count, longest), generator=generator)
    sizes = torch.randint(2, longest + 1, (count, 1), generator=generator)
    kinds = torch.where(torch.arange(longest) < sizes, ANSWER, 0)
    return TokenTable.from_signals([token_signals(logits, TokenSequences(ids, kinds))])


def rows(table: TokenTable, values: Tensor) -> list[list[float]]:
    mask = table.scored("description")
    return [row[chosen].tolist() for row, chosen in zip(values, mask, strict=True)]


@pytest.mark.parametrize("share", [0.0, 10.0, 37.5, 100.0])
def test_ragged_records_score_as_each_alone(share: float) -> None:
    """Against a loop over records and sorted lists."""
    table = ragged(40, 23)
    found = table.statistics
    z = (found.log_likelihood - found.mean) / found.deviation
    for values, scores, sign in (
        (table.entropy(0.5), max_renyi(table, "description", 0.5, share), -1),
        (found.log_likelihood, min_k(table, "description", share), 1),
        (z, min_k_plus_plus(table, "description", share), 1),
    ):
        expected = []
        for row in rows(table, sign * values):
            k = max(1, math.floor(len(row) * share / 100))
            expected.append(sum(sorted(row)[:k]) / k)
        torch.testing.assert_close(scores.tolist(), expected)


def test_ten_percent_of_thirty_positions_are_three() -> None:
    """0.1 · 30 is a little more than 3 and 0.29 · 100 a little less than 29."""
    ids = torch.zeros(1, 101, dtype=torch.int64)
    logits = torch.randn(1, 1, 101, 5, generator=torch.Generator().manual_seed(0))
    words = TokenSequences(ids, torch.full_like(ids, ANSWER))
    table = TokenTable.from_signals([token_signals(logits.double(), words)])
    ordered = table.entropy(2.0)[0, :100].sort(descending=True).values
    found = max_renyi(table, "description", 2.0, 29.0)
    assert -found.item() == pytest.approx(ordered[:29].mean().item())


def test_no_share_is_the_maximum_and_all_of_it_the_mean() -> None:
    table = ragged(12, 9)
    values = rows(table, table.entropy(2.0))
    largest = [-max(row) for row in values]
    mean = [-sum(row) / len(row) for row in values]
    assert max_renyi(table, "description", 2.0, 0.0).tolist() == pytest.approx(largest)
    assert max_renyi(table, "description", 2.0, 100.0).tolist() == pytest.approx(mean)


def test_a_uniform_position_counts_nothing_in_min_k_plus_plus() -> None:
    ids = torch.zeros(1, 3, dtype=torch.int64)
    words = TokenSequences(ids, torch.full_like(ids, ANSWER))
    table = TokenTable.from_signals([token_signals(torch.ones(1, 1, 3, 7), words)])
    assert min_k_plus_plus(table, "description").tolist() == [0]


def test_the_gap_of_probabilities_is_at_most_one() -> None:
    gaps = max_prob_gap(ragged(20, 9), "description")
    assert ((gaps > 0) & (gaps < 1)).all()


def test_texts_must_be_there_for_zlib() -> None:
    with pytest.raises(AttackError, match="12 records and 0 texts"):
        perplexity_zlib(ragged(12, 9), "description", [])
