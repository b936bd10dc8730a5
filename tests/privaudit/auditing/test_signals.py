"""Signals of classifiers and of tokens, and thresholds of public records."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from privaudit.auditing.signals import (
    OF_TOKENS,
    SignalTable,
    class_signals,
    max_prob_gap,
    max_renyi,
    mean_log_likelihood,
    measure_signals,
    min_k,
    min_k_plus_plus,
    mod_renyi,
    perplexity_zlib,
    public_threshold,
)
from privaudit.auditing.token_tables import table_of as table_said
from privaudit.core.errors import AttackError, ConfigError
from privaudit.datasets.records import ANSWER, TokenSequences
from privaudit.federation.trainer import Task
from privaudit.models.token_table import (
    CLAMPED_TOKENS,
    TOKENS,
    TokenTable,
    token_signals,
)
from tests.attacks.word_world import attacked
from tests.golden import golden
from tests.toy_language import toy_language


def table_of(logits: torch.Tensor, labels: torch.Tensor) -> SignalTable:
    return class_signals(labels, logits.log_softmax(dim=-1))


def test_quantities_of_two_classes_by_hand() -> None:
    logs = torch.tensor([[[0.8, 0.2]]]).log()
    signals = SignalTable(torch.tensor([0]), logs[:, :, 0], logs)
    assert float(signals.likelihood) == pytest.approx(0.8)
    assert float(signals.confidence) == pytest.approx(np.log(4))
    assert float(signals.margin) == pytest.approx(np.log(4))
    assert float(signals.loss) == pytest.approx(-np.log(0.8))
    assert float(signals.entropy) == pytest.approx(
        -0.8 * np.log(0.8) - 0.2 * np.log(0.2)
    )
    wanted = -0.2 * np.log(0.8) - 0.2 * np.log(0.8)
    assert float(signals.modified_entropy) == pytest.approx(wanted)


def test_certainty_right_or_wrong_stays_finite() -> None:
    logits = torch.tensor([[[200.0, 0.0, 0.0], [200.0, 0.0, 0.0]]])
    signals = table_of(logits, torch.tensor([0, 1]))
    for name in ("confidence", "margin", "entropy", "modified_entropy"):
        assert torch.isfinite(signals[name]).all()
    assert float(signals.modified_entropy[0, 0]) == pytest.approx(0, abs=1e-5)
    assert float(signals.modified_entropy[0, 1]) > 100


def test_rounded_log_probabilities_still_tell_sure_records_apart() -> None:
    """What trainers answer is float32: the label's own is 0, the others' are not."""
    logits = torch.stack([torch.linspace(20, 90, 50), torch.zeros(50)], dim=1)
    logs, labels = logits.log_softmax(dim=-1), torch.zeros(50, dtype=torch.long)
    assert int((logs[:, 0] == 0).sum()) >= 49
    signals = class_signals(labels, logs[None])
    wanted = torch.log1p(torch.exp(-logits[:, 0].double()))
    torch.testing.assert_close(signals.loss[0], wanted, rtol=1e-4, atol=0)
    for quantity in (signals.confidence, signals.margin, signals.log_likelihood):
        assert len(quantity.unique()) == 50


@given(st.integers(0, 10_000))
def test_the_modified_entropy_is_its_sum(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, 3, 5, generator=generator)
    labels = torch.tensor([0, 4, 2])
    signals = table_of(logits, labels)
    p = logits.double().softmax(dim=-1)
    for model in range(2):
        for record, label in enumerate(labels.tolist()):
            own = p[model, record]
            wanted = -(1 - own[label]) * own[label].log()
            for other in set(range(5)) - {label}:
                wanted = wanted - own[other] * (1 - own[other]).log()
            found = float(signals.modified_entropy[model, record])
            assert found == pytest.approx(float(wanted), rel=1e-4)


def test_logit_confidence_is_the_golden_one() -> None:
    stored = golden("lira")
    names = sorted(name for name in stored if name.endswith("_logits"))
    assert names
    for name in names:
        case = name.removesuffix("_logits")
        logits = torch.from_numpy(stored[name]).double()  # [n, rep, aug, K]
        labels = torch.from_numpy(stored[f"{case}_labels"])
        wanted = stored[f"{case}_exact_score_per_query"]  # [n, rep, aug]
        found = table_of(logits.flatten(1, 2).transpose(0, 1), labels).confidence
        per_query = found.T.reshape(wanted.shape).numpy()
        np.testing.assert_allclose(per_query, wanted, rtol=1e-9)


def test_a_model_that_writes_has_no_classes() -> None:
    signals = SignalTable(torch.tensor([0, 1]), torch.tensor([[-1.0, -2.0]]))
    torch.testing.assert_close(signals.confidence, signals.log_likelihood)
    with pytest.raises(AttackError, match="generate text"):
        _ = signals.entropy


def test_rows_and_columns_are_picked_alike() -> None:
    signals = table_of(torch.randn(4, 6, 3), torch.arange(6) % 3)
    some = signals.models(slice(1, 3)).pick(torch.tensor([0, 5]))
    assert some.confidence.shape == (2, 2)
    torch.testing.assert_close(some.confidence, signals.confidence[1:3][:, [0, 5]])
    torch.testing.assert_close(
        SignalTable.join(
            [signals.models(slice(0, 2)), signals.models(slice(2, 4))]
        ).margin,
        signals.margin,
    )
    back = SignalTable.from_tensors(signals.to_tensors())
    torch.testing.assert_close(back.entropy, signals.entropy)


def test_a_signal_is_asked_for_by_name() -> None:
    signals = table_of(torch.randn(2, 3, 4), torch.tensor([0, 1, 3]))
    torch.testing.assert_close(signals["margin"], signals.margin)
    with pytest.raises(
        ConfigError, match="'min-k' was requested, but these models have"
    ):
        signals["min-k"]


def test_texts_have_statistics_of_their_tokens(task: Task) -> None:
    adversary, targets, _ = attacked(task, results=True)
    models = [target.reconstructed.model for target in targets[:2]]
    records = targets[0].candidates
    writing = replace(adversary.task, backbone=toy_language())
    signals = measure_signals(adversary.trainer, writing, models, records)
    for row, model in enumerate(models):
        table = table_said(adversary, records, model)
        for name, score in OF_TOKENS.items():
            told = name == "log_likelihood"
            found = signals.log_likelihood if told else signals[name]
            torch.testing.assert_close(found[row], score(table, "description").float())
    back = SignalTable.from_tensors(signals.to_tensors())
    torch.testing.assert_close(back["min-k"], signals["min-k"])
    torch.testing.assert_close(
        signals.pick(torch.tensor([3]))["min-k"], signals["min-k"][:, 3:4]
    )


def test_each_class_weighs_as_among_the_candidates() -> None:
    """Class 0 is rare in public and common among candidates: its median decides."""
    scores = np.array([0.0, 1.0, 2.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0])
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 1])
    assert public_threshold(scores, labels, torch.tensor([0, 0, 0])) == 1
    assert public_threshold(scores, labels, torch.tensor([1])) == 12
    assert public_threshold(scores, labels, torch.tensor([0, 1])) == 2


ALPHAS = (0.5, 1.0, 2.0, math.inf)
CASES = [f"c{number}" for number in range(6)]


def known(case: str, wanted: str) -> tuple[TokenTable, Mapping[str, np.ndarray]]:
    """Return a table of one record, of answers only, and what it should give."""
    numbers = golden("maxrenyi") | golden("maxrenyi", f"{case}_")
    logits = torch.from_numpy(numbers["logits"]).double()[None, None]
    ids = torch.from_numpy(numbers["target_ids"])[None]
    return answers(logits, ids, wanted), numbers


def answers(logits: Tensor, ids: Tensor, wanted: str = TOKENS) -> TokenTable:
    """Return a table of one record, of answers only."""
    words = TokenSequences(ids, torch.full_like(ids, ANSWER))
    signals = token_signals(logits, words, frozenset({wanted}))
    return TokenTable.from_signals([signals])


@pytest.mark.parametrize("case", [*CASES, "edge"])
def test_exact_max_renyi_is_the_golden_one(case: str) -> None:
    table, numbers = known(case, TOKENS)
    assert_entropies(table, numbers, "exact_max_renyi_K")


def assert_entropies(
    table: TokenTable, numbers: Mapping[str, np.ndarray], name: str
) -> None:
    """Hold MaxRenyi of all orders and shares against golden numbers of that name."""
    for row, alpha in enumerate(ALPHAS):
        for ratio, expected in zip(
            numbers["K_ratios"], numbers[name][row], strict=True
        ):
            found = max_renyi(table, "description", alpha, 100 * float(ratio))
            assert -found.item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_published_scores_are_the_golden_ones(case: str) -> None:
    table, numbers = known(case, CLAMPED_TOKENS)
    assert_entropies(table, numbers, "ref_max_renyi_K")
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
    table = answers(logits.double(), ids)
    ordered = table.entropy(2.0)[0, :100].sort(descending=True).values
    found = max_renyi(table, "description", 2.0, 29.0)
    assert -found.item() == pytest.approx(ordered[:29].mean().item())


def test_a_uniform_position_counts_nothing_in_min_k_plus_plus() -> None:
    ids = torch.zeros(1, 3, dtype=torch.int64)
    table = answers(torch.ones(1, 1, 3, 7), ids)
    assert min_k_plus_plus(table, "description").tolist() == [0]


def test_the_gap_of_probabilities_is_at_most_one() -> None:
    gaps = max_prob_gap(ragged(20, 9), "description")
    assert ((gaps > 0) & (gaps < 1)).all()


def test_texts_must_be_there_for_zlib() -> None:
    with pytest.raises(AttackError, match="12 records and 0 texts"):
        perplexity_zlib(ragged(12, 9), "description", [])
