from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privaudit.auditing.signals.signals import (
    OF_TOKENS,
    SignalTable,
    class_signals,
    measure_signals,
)
from privaudit.auditing.signals.token_attack import table_of as table_said
from privaudit.core.errors import AttackError, ConfigError
from privaudit.federated.trainer import Task
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
    for quantity in (
        signals.confidence,
        signals.margin,
        signals.entropy,
        signals.modified_entropy,
    ):
        assert torch.isfinite(quantity).all()
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
            found = (
                signals.log_likelihood if name == "log_likelihood" else signals[name]
            )
            torch.testing.assert_close(found[row], score(table, "description").float())
    back = SignalTable.from_tensors(signals.to_tensors())
    torch.testing.assert_close(back["min-k"], signals["min-k"])
    torch.testing.assert_close(
        signals.pick(torch.tensor([3]))["min-k"], signals["min-k"][:, 3:4]
    )
