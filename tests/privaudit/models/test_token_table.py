"""Token tables: statistics of next-token distributions against formulas and published values."""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.datasets.records import ANSWER, INSTRUCTION, PICTURE, TokenSequences
from privaudit.models.token_table import (
    ALPHAS,
    CLAMPED_TOKENS,
    Slice,
    TokenStatistics,
    TokenTable,
    token_signals,
    token_statistics,
)
from tests.golden import golden

ENTROPIES = {"05": 0.5, "1": 1.0, "2": 2.0, "inf": math.inf}
FINITE = (0.5, 1.0, 2.0)
CASES = [f"c{number}" for number in range(6)]


def named(logits: Any, targets: Any = None, **options: Any) -> dict[str, Tensor]:
    rows = torch.as_tensor(logits, dtype=torch.float64)
    if targets is None:
        targets = [0] * len(rows)
    return token_statistics(rows, torch.as_tensor(targets), **options)


def of(logits: Any, targets: Any = None, **options: Any) -> TokenStatistics:
    return TokenStatistics.from_signals(named(logits, targets, **options))


def found_in(logits: Tensor, targets: Tensor, **options: Any) -> TokenStatistics:
    return TokenStatistics.from_signals(token_statistics(logits, targets, **options))


def naive(row: Tensor, y: int) -> dict[str, float]:
    """Every statistic of one row, from the formulas."""
    p = row.softmax(-1).tolist()
    log = [math.log(x) for x in p]
    others = [x for j, x in enumerate(p) if j != y]
    mean = sum(x * lx for x, lx in zip(p, log, strict=True))
    square = sum(x * lx**2 for x, lx in zip(p, log, strict=True))
    first, second = sorted(p)[-1], sorted(p)[-2]
    found = {
        "entropy 1": -mean,
        "entropy inf": -math.log(first),
        "modified 1": -(1 - p[y]) * log[y] - sum(x * math.log(1 - x) for x in others),
        "log likelihood": log[y],
        "mean": mean,
        "deviation": math.sqrt(square - mean**2),
        "gap": first - second,
        "log gap": math.log(first / second),
    }
    for alpha in (0.25, 0.5, 2.0, 3.0):
        found[f"entropy {alpha:g}"] = math.log(sum(x**alpha for x in p)) / (1 - alpha)
        b = abs(alpha - 1)
        found[f"modified {alpha:g}"] = (
            (1 - p[y]) * (1 - p[y] ** b) + sum(x * (1 - (1 - x) ** b) for x in others)
        ) / b
    return found


def known(case: str) -> tuple[Mapping[str, np.ndarray], Tensor, Tensor]:
    numbers = golden("maxrenyi", f"{case}_")
    logits = torch.from_numpy(numbers["logits"]).double()[:-1]
    return numbers, logits, torch.from_numpy(numbers["target_ids"])[1:]


def compare(
    found: TokenStatistics, numbers: Mapping[str, np.ndarray], kind: str, tol: float
) -> None:
    for name, alpha in ENTROPIES.items():
        expected = numbers[f"{kind}_renyi_{name}"]
        np.testing.assert_allclose(found.entropies[alpha], expected, rtol=0, atol=tol)
    for name, alpha in (("mod_renyi_05", 0.5), ("mod_renyi_2", 2.0)):
        expected = numbers[f"{kind}_{name}"]
        np.testing.assert_allclose(found.modified[alpha], expected, rtol=0, atol=tol)
    expected = numbers[f"{kind}_target_logp"]
    np.testing.assert_allclose(found.log_likelihood, expected, rtol=0, atol=tol)
    # The published code takes the logarithm of p_y in float32.
    tol = max(tol, 1e-5) if kind == "ref" else tol
    expected = numbers[f"{kind}_mod_entropy"]
    np.testing.assert_allclose(found.modified[1.0], expected, rtol=0, atol=tol)


@pytest.mark.parametrize("case", [*CASES, "edge"])
def test_values_are_the_golden_ones_and_float32_comes_within_millionths(
    case: str,
) -> None:
    numbers, logits, targets = known(case)
    compare(found_in(logits, targets), numbers, "exact", 1e-9)
    found = found_in(logits.float(), targets)
    assert found.mean.dtype == torch.float32
    compare(found, numbers, "exact", 5e-6)


@pytest.mark.parametrize("case", CASES)
def test_clamped_values_are_the_published_ones(case: str) -> None:
    numbers, logits, targets = known(case)
    found = found_in(logits, targets, clamp=1e-10)
    compare(found, numbers, "ref", 1e-9)
    np.testing.assert_allclose(found.log_gap, numbers["ref_gap_prob"], atol=1e-9)


def test_a_clamped_row_of_certainty_is_not_certain() -> None:
    """One of 32,000 words with all the weight: H_0.5 is 0.555 and should be 0."""
    logits = torch.full((1, 32_000), -math.inf)
    logits[0, 7] = 3.0
    exact = found_in(logits, torch.tensor([7]))
    clamped = found_in(logits, torch.tensor([7]), clamp=1e-10)
    assert exact.entropies[0.5].item() == 0
    assert clamped.entropies[0.5].item() == pytest.approx(0.555, abs=5e-4)
    assert clamped.entropies[1.0].item() == clamped.entropies[math.inf].item() == 0


def test_by_hand_of_three_quarters_and_a_quarter() -> None:
    found = of([[math.log(3), 0.0]], [0])
    assert found.entropies[0.5].item() == pytest.approx(
        2 * math.log(math.sqrt(0.75) + 0.5)
    )
    assert found.entropies[2.0].item() == pytest.approx(-math.log(10 / 16))
    assert found.entropies[math.inf].item() == pytest.approx(-math.log(0.75))
    assert found.modified[2.0].item() == pytest.approx(0.25 * 0.25 + 0.25 * 0.25)
    assert found.log_likelihood.item() == pytest.approx(math.log(0.75))
    assert found.mean.item() == -found.entropies[1.0].item()
    assert found.deviation.item() == pytest.approx(math.sqrt(3) / 4 * math.log(3))
    assert found.gap.item() == pytest.approx(0.5)
    assert found.log_gap.item() == pytest.approx(math.log(3))


@pytest.mark.parametrize("y", [0, 3, 6])
def test_every_statistic_is_its_formula(y: int) -> None:
    logits = torch.randn(40, 7, generator=torch.Generator().manual_seed(y)).double() * 2
    alphas = (0.25, 0.5, 1.0, 2.0, 3.0, math.inf)
    targets = torch.full((40,), y)
    found = token_statistics(logits, targets, alphas)
    for row, logit in enumerate(logits):
        expected = naive(logit, y)
        assert set(expected) == set(found)
        for name, value in expected.items():
            assert found[name][row].item() == pytest.approx(value, abs=1e-12), name


def test_nothing_depends_on_the_blocks_or_the_leading_axes() -> None:
    logits = torch.randn(2, 3, 5, 64, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(30).view(2, 3, 5)
    whole = token_statistics(logits, targets)
    for block in (1, 64 * 7, 64 * 1000):
        flat = token_statistics(logits.view(30, 64), targets.view(30), block=block)
        for name, values in whole.items():
            assert values.shape == (2, 3, 5)
            torch.testing.assert_close(values.reshape(30), flat[name])


@pytest.mark.parametrize("lead", [20.0, 40.0, 80.0])
def test_float32_keeps_the_digits_of_a_confident_model(lead: float) -> None:
    """Where p is rounded to 1, its logarithm would be 0 for all."""
    logits = torch.zeros(1, 50)
    logits[0, 3] = lead
    found = found_in(logits, torch.tensor([3]))
    rest = 49 * math.exp(-lead)
    assert found.log_likelihood.item() == pytest.approx(-rest, rel=1e-4)
    assert found.entropies[math.inf].item() == pytest.approx(rest, rel=1e-4)
    assert found.entropies[1.0].item() == pytest.approx(rest * (1 + lead), rel=1e-4)
    if lead < 40:  # of the order rest², which float32 cannot hold any more
        modified = rest**2 + 49 * math.exp(-lead) ** 2
        assert found.modified[1.0].item() == pytest.approx(modified, rel=1e-4)


def test_words_that_cannot_come_count_nothing() -> None:
    few = named([[1.0, 2.0, 0.5]], [1])
    many = named([[1.0, 2.0, 0.5, -math.inf, -math.inf]], [1])
    torch.testing.assert_close(few, many)


def test_a_target_that_cannot_come_is_infinitely_unlikely() -> None:
    found = of([[1.0, 2.0, -math.inf]], [2])
    assert found.log_likelihood.item() == -math.inf
    assert found.modified[1.0].item() == math.inf
    assert math.isfinite(found.modified[2.0].item())


def test_a_sure_model_that_is_wrong_stays_finite() -> None:
    """In float32 all others have the probability 0 together."""
    logits = torch.zeros(1, 50)
    logits[0, 3] = 200.0
    found = found_in(logits, torch.tensor([4]))
    assert found.log_likelihood.item() == -200
    assert found.modified[1.0].item() == pytest.approx(400, abs=5)


def test_uniform_rows_and_ties_are_right() -> None:
    found = of([[5.0] * 8, [1.0, 1.0, -math.inf, -math.inf] * 2], [0, 0])
    for alpha in ALPHAS:
        expected = torch.tensor([math.log(8), math.log(4)], dtype=torch.float64)
        torch.testing.assert_close(found.entropies[alpha], expected)
    assert found.gap.tolist() == found.log_gap.tolist() == [0, 0]
    assert found.deviation.tolist() == [0, 0]


def test_positions_without_a_target_have_entropies_only() -> None:
    found = of([[1.0, 2.0], [1.0, 2.0]], [-100, 0])
    assert found.log_likelihood.isnan().tolist() == [True, False]
    for alpha in FINITE:
        assert found.modified[alpha].isnan().tolist() == [True, False]
        assert found.entropies[alpha][0] == found.entropies[alpha][1]


def test_who_watches_layers_gets_the_log_likelihood_with_its_gradient() -> None:
    logits, targets = torch.tensor([[1.0, 2.0], [0.5, 0.0]]), torch.tensor([-100, 0])
    plain = found_in(logits, targets)
    with torch.enable_grad():
        watched = logits.requires_grad_()
        said = token_statistics.__wrapped__(watched, targets)  # type: ignore[attr-defined]
        found = TokenStatistics.from_signals(said)
        found.log_likelihood[1].backward()
    torch.testing.assert_close(
        found.log_likelihood, plain.log_likelihood, equal_nan=True
    )
    chance = float(plain.log_likelihood[1].exp())
    assert found.mean.isnan().all()
    assert not found.entropies
    torch.testing.assert_close(
        watched.grad, torch.tensor([[0.0, 0.0], [1 - chance, chance - 1]])
    )


def test_statistics_are_put_together_from_signals_by_name() -> None:
    signals = named([[1.0, 2.0, 0.0]], [1])
    assert tuple(signals) == TokenStatistics.signals()
    found = TokenStatistics.from_signals({**signals, "kinds": torch.tensor([[1]])})
    assert tuple(found.entropies) == ALPHAS
    assert tuple(found.modified) == FINITE
    assert found.entropies[math.inf] is signals["entropy inf"]
    assert found.modified[0.5] is signals["modified 0.5"]
    assert found.log_gap is signals["log gap"]


def test_no_positions_give_no_statistics() -> None:
    found = found_in(torch.empty(2, 0, 9), torch.empty(2, 0).long())
    assert found.entropies[2.0].shape == (2, 0)


def test_half_precision_is_worked_out_in_float32() -> None:
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(1)).bfloat16()
    targets = torch.tensor([1, 2, 3])
    found = token_statistics(logits, targets)
    for name, values in token_statistics(logits.float(), targets).items():
        torch.testing.assert_close(found[name], values)


@pytest.mark.parametrize("alpha", [0.0, -1.0, 1.001, math.nan, 2.00000001])
def test_an_order_without_a_formula_or_name_is_refused(alpha: float) -> None:
    with pytest.raises(ConfigError, match=r"at least 0\.01|one name, of six digits"):
        of([[1.0, 2.0]], [0], alphas=(2.0, alpha))


@pytest.mark.parametrize("target", [2, -1])
def test_a_target_outside_of_the_vocabulary_is_refused(target: int) -> None:
    with pytest.raises(ConfigError, match=f"token {target}, and the vocabulary has 2"):
        of([[1.0, 2.0]], [target])


rows = st.lists(st.floats(-30, 30), min_size=2, max_size=12)


@settings(deadline=None)
@given(rows)
def test_entropies_decrease_in_alpha_within_their_bounds(row: list[float]) -> None:
    alphas = (0.1, 0.5, 0.9, 1.0, 1.1, 2.0, 5.0, math.inf)
    found = [of([row], alphas=alphas).entropies[alpha].item() for alpha in alphas]
    assert all(a >= b - 1e-9 for a, b in pairwise(found))
    assert found[0] <= math.log(len(row)) + 1e-9
    assert found[-1] >= 0


@given(rows, st.floats(-100, 100))
def test_a_shift_of_all_logits_changes_nothing(row: list[float], by: float) -> None:
    plain = named([row])
    shifted = named([[logit + by for logit in row]])
    for name, values in plain.items():
        torch.testing.assert_close(values, shifted[name], rtol=1e-9, atol=1e-6)


@given(rows, st.randoms(use_true_random=False))
def test_the_order_of_the_vocabulary_means_nothing(row: list[float], rng: Any) -> None:
    order = list(range(len(row)))
    rng.shuffle(order)
    plain = named([row], [order[0]])
    mixed = named([[row[i] for i in order]], [0])
    for name, values in plain.items():
        torch.testing.assert_close(values, mixed[name], rtol=1e-9, atol=1e-6)


VOCABULARY = 9
# A word, a picture of three parts, a question of two words, an answer of three.
KINDS = [2, 1, 1, 1, 2, 2, 3, 3, 3, 0]
IDS = [4, 0, 0, 0, 5, 6, 7, 8, 1, 0]


def words(*kinds: list[int]) -> TokenSequences:
    length = max(map(len, kinds))
    padded = torch.tensor([row + [0] * (length - len(row)) for row in kinds])
    ids = torch.tensor(IDS + [0] * length)[:length]
    return TokenSequences(ids.expand(len(kinds), -1), padded)


def table(*kinds: list[int], seed: int = 0) -> TokenTable:
    some = words(*kinds)
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, *some.ids.shape, VOCABULARY, generator=generator)
    return TokenTable.from_signals([token_signals(logits.double(), some)])


def places(found: Tensor) -> list[int]:
    return found[0].nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("part", "published", "all_positions"),
    [
        ("image", [1, 2], [1, 2, 3]),
        ("instruction", [4], [0, 4, 5]),
        ("description", [6, 7], [6, 7]),
        ("instruction+description", [4, 5, 6, 7], [0, 4, 5, 6, 7]),
    ],
)
def test_slices_line_up_with_tokens(
    part: Slice, published: list[int], all_positions: list[int]
) -> None:
    """A slice is scored where it expects its own next token; or any token at all."""
    found = table(KINDS)
    assert places(found.scored(part)) == published
    assert places(found.scored(part, all_positions=True)) == all_positions


@pytest.mark.parametrize(
    ("part", "places_of_all"),
    [
        ("instruction", [3, 4]),
        ("description", [5, 6, 7]),
        ("instruction+description", [3, 4, 5, 6, 7]),
    ],
)
def test_every_word_of_a_slice_is_a_target(
    part: Slice, places_of_all: list[int]
) -> None:
    """Its first one too, which is expected at a position outside of the slice."""
    found = table(KINDS).scored(part, True, needs_target=True)
    assert places(found) == places_of_all


def test_an_answer_of_one_letter_is_scored_at_that_letter() -> None:
    kinds = [PICTURE, INSTRUCTION, INSTRUCTION, ANSWER, ANSWER]
    found = table(kinds)
    assert places(found.scored("description", True, needs_target=True)) == [2, 3]
    assert places(found.scored("description")) == [3]


def test_position_i_is_scored_against_token_i_plus_one() -> None:
    """A model that knows the order of the answer is right at every position."""
    some = words(KINDS)
    logits = torch.zeros(1, 1, len(KINDS), VOCABULARY)
    for place, following in enumerate(IDS[1:]):
        logits[0, 0, place, following] = 50.0
    found = TokenTable.from_signals([token_signals(logits, some)])
    likely = found.statistics.log_likelihood
    assert (likely[found.scored("instruction+description")] > -1e-9).all()
    assert likely[0, :3].isnan().all()  # the next token is part of a picture
    assert likely[0, 8:].isnan().all()  # the last word, and padding
    assert not found.statistics.mean.isnan().any()


def test_a_pictures_numbers_are_never_looked_at() -> None:
    some = words(KINDS)
    wild = torch.where(some.kinds == 1, 10_000, some.ids)
    logits = torch.randn(1, 1, len(KINDS), VOCABULARY)
    token_signals(logits, TokenSequences(wild, some.kinds))


def test_chunks_of_other_lengths_are_joined() -> None:
    """Nothing is scored in what was added."""
    whole = table(KINDS, [2, 2, 3, 3])
    generator = torch.Generator().manual_seed(0)
    shape = (1, 2, len(KINDS), VOCABULARY)
    logits = torch.randn(shape, generator=generator).double()
    some = words(KINDS, [2, 2, 3, 3])
    chunks = [
        token_signals(logits[:, :1], some[:1]),
        token_signals(
            logits[:, 1:, :4], TokenSequences(some.ids[1:, :4], some.kinds[1:, :4])
        ),
    ]
    joined = TokenTable.from_signals(chunks)
    assert joined.kinds.tolist() == whole.kinds.tolist()
    mask = whole.scored("description")
    assert joined.scored("description").tolist() == mask.tolist()
    torch.testing.assert_close(joined.entropy(2.0)[mask], whole.entropy(2.0)[mask])


def test_each_model_has_its_own_table() -> None:
    logits = torch.randn(2, 1, len(KINDS), VOCABULARY)
    signals = token_signals(logits, words(KINDS))
    assert signals["kinds"].shape == (2, 1, len(KINDS))
    second = TokenTable.from_signals([signals], model=1)
    torch.testing.assert_close(second.entropy(1.0), signals["entropy 1"][1])


def test_clamped_signals_are_another_thing() -> None:
    logits = torch.full((1, 1, len(KINDS), VOCABULARY), -30.0)
    logits[..., 0] = 30.0
    clamped = token_signals(logits, words(KINDS), frozenset({CLAMPED_TOKENS}))
    assert clamped["entropy 0.5"].min() > 1e-4
    assert token_signals(logits, words(KINDS))["entropy 0.5"].max() < 1e-9


def test_a_slice_of_one_token_or_none_beside_another_is_refused_by_name() -> None:
    found = table(KINDS, [1, 1, 2, 2, 3])
    with pytest.raises(ConfigError, match=r"'description' of record 1 has 1 token"):
        found.scored("description")
    with pytest.raises(ConfigError, match=r"'instruction' of record 0 has 2 token"):
        table([2, 1, 2, 3, 3]).scored("instruction")


def test_an_order_that_was_not_computed_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"those of 0\.5, 1, 2, inf"):
        table(KINDS).entropy(3.0)
    with pytest.raises(ConfigError, match=r"those of 0\.5, 1, 2\. "):
        table(KINDS).modified(math.inf)
