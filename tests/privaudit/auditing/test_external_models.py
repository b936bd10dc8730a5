"""Models trained elsewhere: their signals, and scores by shadows of one's own."""

import inspect

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from privaudit import Auditor, shadow_scores, signals_of_logits, tokens_of_logits
from privaudit.auditing.external_models import ShadowAttack
from privaudit.auditing.signals import max_renyi, mean_log_likelihood
from privaudit.core.errors import AttackError, ConfigError, UnknownNameError
from privaudit.models.token_table import token_statistics
from privaudit.statistics.roc import auroc
from privaudit.statistics.shadow_comparison import offline_scores, online_scores

ATTACKS: tuple[ShadowAttack, ...] = ("lira", "lira-offline", "rmia", "rmia-offline")
Simulated = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def simulate(
    rng: np.random.Generator, records: int = 400, models: int = 16, leak: float = 1.0
) -> Simulated:
    """Confidences that a record's difficulty rules, and membership raises."""
    difficulty = 3 * rng.normal(size=records)
    is_member = rng.random(records) < 0.5
    is_in = rng.random((models, records)) < 0.5
    noise = rng.normal(size=(models + 1, records))
    target = difficulty + leak * is_member + noise[-1]
    return target, difficulty + leak * is_in + noise[:-1], is_in, is_member


def test_confidence_is_the_log_odds_of_the_label() -> None:
    probabilities = torch.tensor([[0.2, 0.8], [0.9, 0.1]]).log()
    table = signals_of_logits(probabilities, torch.tensor([1, 1]))
    expected = torch.tensor([[4.0, 1 / 9]], dtype=torch.float64).log()
    torch.testing.assert_close(table.confidence, expected)
    torch.testing.assert_close(table.loss.exp(), torch.tensor([[1.25, 10.0]]).double())


def test_stacked_models_say_what_each_says_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, 4, generator=generator)
    labels = torch.tensor([0, 1, 2, 3, 0])
    together = signals_of_logits(logits, labels)
    for number, one in enumerate(logits):
        alone = signals_of_logits(one, labels)
        for name in ("confidence", "loss", "margin", "entropy", "modified_entropy"):
            torch.testing.assert_close(together[name][number], alone[name][0])


def test_every_type_of_logits_is_lifted_to_float64() -> None:
    logits, labels = torch.zeros(2, 3), torch.tensor([0, 1])
    for some in (logits, logits.double(), logits.half(), logits.bfloat16()):
        assert signals_of_logits(some, labels).log_likelihood.dtype == torch.float64


def test_records_that_a_model_is_sure_of_do_not_tie() -> None:
    """In float32 all of these losses are 0."""
    logits = torch.stack([torch.linspace(20, 90, 50), torch.zeros(50)], dim=1)
    labels = torch.zeros(50, dtype=torch.long)
    assert (cross_entropy(logits, labels, reduction="none")[1:] == 0).all()
    table = signals_of_logits(logits, labels)
    for name in ("confidence", "loss", "margin"):
        assert len(table[name].unique()) == 50
    expected = np.log1p(np.exp(-logits[:, 0].double().numpy()))
    np.testing.assert_allclose(table.loss[0].numpy(), expected, rtol=1e-12)


def test_arrays_give_what_tensors_give() -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(3, 5, 4)), np.array([0, 1, 2, 3, 0])
    arrays = signals_of_logits(logits, labels)
    tensors = signals_of_logits(torch.from_numpy(logits), torch.from_numpy(labels))
    for name in ("confidence", "loss", "margin", "entropy", "modified_entropy"):
        torch.testing.assert_close(arrays[name], tensors[name])
    words = rng.integers(4, size=(3, 5))
    tables = (
        tokens_of_logits(logits, words),
        tokens_of_logits(torch.from_numpy(logits), torch.from_numpy(words)),
    )
    one, other = (mean_log_likelihood(table, "description") for table in tables)
    torch.testing.assert_close(one, other)


def test_probabilities_are_no_logits() -> None:
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(3))
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    likely = logits.softmax(dim=-1)
    for some in (likely, likely.half(), likely.numpy().round(3)):
        with pytest.raises(ConfigError, match='set outputs="probabilities"'):
            signals_of_logits(some, labels)
    with pytest.raises(ConfigError, match='set outputs="probabilities"'):
        tokens_of_logits(likely[None], torch.ones(1, 6, dtype=torch.long))
    said = signals_of_logits(likely, labels, "probabilities")
    torch.testing.assert_close(
        said.confidence, signals_of_logits(logits, labels).confidence, atol=1e-5, rtol=0
    )
    with pytest.raises(ConfigError, match="do not sum to 1"):
        signals_of_logits(logits, labels, "probabilities")


def test_log_probabilities_and_shifted_logits_are_logits() -> None:
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(3)).double()
    labels, wanted = torch.tensor([0, 1, 2, 3, 0, 1]), logits.log_softmax(dim=-1)
    for some in (wanted, logits + 1):
        found = signals_of_logits(some, labels)
        torch.testing.assert_close(found.log_probabilities, wanted[None])


def test_outputs_that_overflowed_are_refused() -> None:
    logits = torch.tensor([[0.0, torch.inf], [0.0, 1.0]])
    with pytest.raises(ConfigError, match="NaN or infinity"):
        signals_of_logits(logits, torch.tensor([0, 1]))
    unchecked = inspect.unwrap(signals_of_logits)  # as it runs outside of tests
    with pytest.raises(ConfigError, match=r"Logits of shape \(3,\)"):
        unchecked(torch.zeros(3), torch.tensor([0, 1, 2]))


def test_a_table_of_scores_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"shape \(1, 5\).*such as confidence\[0\]"):
        Auditor.from_scores(np.zeros((1, 5)), np.zeros((1, 6)))
    with pytest.raises(ConfigError, match="one number for each record"):
        Auditor.from_scores(np.zeros(3), np.zeros((3, 1)))
    with pytest.raises(ConfigError, match="list was given that makes no array"):
        inspect.unwrap(Auditor.from_scores)([[1], [1, 2]], [0, 3])


def test_scores_with_a_gradient_or_in_half_precision_are_taken() -> None:
    scores = torch.linspace(0, 1, 8, requires_grad=True)
    expected = Auditor.from_scores(np.arange(4) + 4, np.arange(4)).auroc
    assert Auditor.from_scores(scores[4:], scores[:4]).auroc == expected
    narrow = scores.bfloat16()
    assert Auditor.from_scores(narrow[4:], narrow[:4]).auroc == expected


def test_a_separation_with_the_sign_turned_is_no_all_clear() -> None:
    verdict = Auditor.from_scores(np.zeros(50), np.ones(50), sampling="coin").verdict
    assert verdict.kind == "reversed"
    assert str(verdict).startswith("Separates, with the sign turned: AUROC 0.000 [")
    assert "members have the lower scores" in str(verdict)


@pytest.mark.parametrize("labels", [[0, 3], [0, -1], [0, 1, 2], []])
def test_labels_that_are_no_classes_are_refused(labels: list[int]) -> None:
    with pytest.raises(ConfigError, match="one class for each record"):
        signals_of_logits(torch.zeros(2, 3), torch.tensor(labels, dtype=torch.long))


def test_token_loss_is_that_of_transformers() -> None:
    """Prompt, answer and padding, with the shift that a causal model's loss makes."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 6, 9, generator=generator)
    labels = torch.tensor(
        [
            [-100, -100, 3, 4, 5, -100],
            [1, 2, 3, 4, 5, 6],
            [-100, 7, -100, 8, -100, -100],
        ]
    )
    table = tokens_of_logits(logits, labels)
    scores = mean_log_likelihood(table, "description")
    for score, text_logits, known in zip(scores, logits, labels, strict=True):
        expected = cross_entropy(text_logits[:-1].double(), known[1:])
        assert -score.item() == pytest.approx(expected.item(), abs=1e-6)


def test_entropies_are_those_inside_the_answer() -> None:
    """Of prompt, three answer tokens and padding two positions are scored."""
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(1, 6, 9, generator=generator)
    labels = torch.tensor([[-100, -100, 3, 4, 5, -100]])
    found = max_renyi(tokens_of_logits(logits, labels), "description", 2.0, share=100.0)
    entropy = token_statistics(logits, labels.clamp(min=0))["entropy 2"]
    assert found.item() == pytest.approx(-entropy[0, 2:4].mean().item(), abs=1e-6)


def test_texts_without_anything_to_score_are_refused() -> None:
    labels = torch.tensor([[1, 2, 3], [4, -100, -100], [-100, -100, -100]])
    with pytest.raises(ConfigError, match="Of 3 texts, 2 have no label"):
        tokens_of_logits(torch.zeros(3, 3, 5), labels)
    with pytest.raises(ConfigError, match=r"shape \(3, 2, 5\)"):
        tokens_of_logits(torch.zeros(3, 2, 5), labels)


def test_lira_is_the_attack_of_that_name(rng: np.random.Generator) -> None:
    target, shadows, is_in, _ = simulate(rng)
    online = online_scores(target, shadows, is_in, ~is_in, "global")
    offline = offline_scores(target, shadows, ~is_in, "global")
    np.testing.assert_array_equal(shadow_scores(target, shadows, is_in), online)
    found = shadow_scores(target, shadows, is_in, "lira-offline")
    np.testing.assert_array_equal(found, offline)


def test_rmia_ranks_by_the_ratio() -> None:
    """Probabilities 0.5 and 0.25 against means of (0.3 + 0.1) / 2 and 0.5."""
    is_in = np.array([[True, True]] * 3 + [[False, False]] * 3)
    shadows = np.log(np.where(is_in, [0.3, 0.5], [0.1, 0.5]))
    target = np.log(np.array([0.5, 0.25]))
    scores = shadow_scores(target, shadows, is_in, "rmia", "log-likelihood")
    np.testing.assert_array_equal(scores, [0.5, 0.0])


def test_rmia_offline_guesses_the_mean_from_shadows_without_the_record() -> None:
    """(1.3 * 0.1 + 0.7) / 2 = 0.415 and (1.3 * 0.5 + 0.7) / 2 = 0.675; of one model."""
    shadows = np.log(np.array([[0.1, 0.5]]))
    out = np.zeros((1, 2), bool)
    for target, first in (([0.5, 0.75], 0.5), ([0.4, 0.75], 0.0)):
        signals = np.log(np.array(target))
        scores = shadow_scores(signals, shadows, out, "rmia-offline", "log-likelihood")
        assert scores[0] == first  # 0.5 / 0.415 > 0.75 / 0.675 > 0.4 / 0.415


@pytest.mark.parametrize("models", [1, 2, 4])
def test_few_reference_models_help(rng: np.random.Generator, models: int) -> None:
    target, shadows, is_in, is_member = simulate(rng, 600, models, leak=2.0)
    shadows, never = shadows - 2.0 * is_in, np.zeros((models, 600), bool)
    scores = shadow_scores(target, shadows, never, "rmia-offline")
    assert auroc(scores[is_member], scores[~is_member]).low > 0.6
    with pytest.raises(ConfigError, match="5 are the least for lira-offline"):
        shadow_scores(target, shadows, never, "lira-offline")


def test_log_odds_and_log_likelihoods_of_one_model_score_alike(
    rng: np.random.Generator,
) -> None:
    target, shadows, is_in, _ = simulate(rng)
    odds = shadow_scores(target, shadows, is_in, "rmia")
    logs = [-np.logaddexp(0, -x) for x in (target, shadows)]
    likely = shadow_scores(logs[0], logs[1], is_in, "rmia", "log-likelihood")
    np.testing.assert_allclose(odds, likely, atol=1 / 400)


@pytest.mark.parametrize("attack", ATTACKS)
def test_shadows_see_through_difficulty(
    rng: np.random.Generator, attack: ShadowAttack
) -> None:
    target, shadows, is_in, is_member = simulate(rng, leak=2.0)
    plain = Auditor.from_scores(target[is_member], target[~is_member]).auroc
    found = Auditor.from_shadows(target, shadows, is_in, is_member, attack).auroc
    assert found.low > plain.high


@pytest.mark.usefixtures("fewer_permutations")
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_model_without_a_leak_gives_none(
    rng: np.random.Generator, attack: ShadowAttack
) -> None:
    """Of 200 intervals at 95 %, 10 miss 0.5 on average; more than 22 with 0.03 %."""
    missed = 0
    for _ in range(200):
        target, shadows, is_in, is_member = simulate(rng, 200, 8, leak=0.0)
        found = Auditor.from_shadows(target, shadows, is_in, is_member, attack)
        missed += found.auroc.excludes(0.5)
    assert missed <= 22


@pytest.mark.parametrize("attack", ATTACKS)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_scores_follow_their_records(attack: ShadowAttack, seed: int) -> None:
    rng = np.random.default_rng(seed)
    target, shadows, is_in, _ = simulate(rng, 30, 6)
    order = rng.permutation(30)
    scores = shadow_scores(target, shadows, is_in, attack)
    moved = shadow_scores(target[order], shadows[:, order], is_in[:, order], attack)
    np.testing.assert_allclose(moved, scores[order], atol=1e-12)


@pytest.mark.parametrize("attack", ATTACKS)
def test_tensors_and_arrays_give_the_same(
    rng: np.random.Generator, attack: ShadowAttack
) -> None:
    target, shadows, is_in, is_member = simulate(rng, 50)
    from_arrays = Auditor.from_shadows(target, shadows, is_in, is_member, attack)
    ours, others, held, truth = map(
        torch.from_numpy, (target, shadows, is_in, is_member)
    )
    from_tensors = Auditor.from_shadows(ours, others, held, truth, attack)
    assert from_arrays.to_dict() == from_tensors.to_dict()


def test_a_record_that_all_shadows_have_scores_nothing(
    rng: np.random.Generator,
) -> None:
    target, shadows, is_in, _ = simulate(rng, 20)
    is_in[:, 3] = True
    scores = shadow_scores(target, shadows, is_in)
    assert scores[3] == 0
    assert np.count_nonzero(scores) == 19


def test_what_no_attack_could_use_is_refused(rng: np.random.Generator) -> None:
    target, shadows, is_in, is_member = simulate(rng, 20, 6)
    with pytest.raises(ConfigError, match="4 shadow models"):
        shadow_scores(target, shadows[:4], is_in[:4])
    with pytest.raises(AttackError, match="none of 20 records has both"):
        shadow_scores(target, shadows, is_in & False)
    with pytest.raises(AttackError, match="all were trained on all"):
        shadow_scores(target, shadows, is_in | True, "lira-offline")
    with pytest.raises(ConfigError, match="20 signals 1 are not finite"):
        shadow_scores(np.where(np.arange(20) == 2, np.inf, target), shadows, is_in)
    with pytest.raises(ConfigError, match="Give \\[records\\]"):
        shadow_scores(target[:19], shadows, is_in)
    deeper = (one[..., None] for one in (target, shadows, is_in))
    with pytest.raises(ConfigError, match="Give \\[records\\]"):
        inspect.unwrap(shadow_scores)(*deeper)
    with pytest.raises(ConfigError, match="the truth is of shape"):
        Auditor.from_shadows(target, shadows, is_in, is_member[:19])


def test_an_unknown_attack_is_refused_with_those_there_are(
    rng: np.random.Generator,
) -> None:
    target, shadows, is_in, _ = simulate(rng, 20, 6)
    unchecked = inspect.unwrap(shadow_scores)  # as it runs outside of tests
    with pytest.raises(UnknownNameError, match="Did you mean 'lira'"):
        unchecked(target, shadows, is_in, "lyra")
