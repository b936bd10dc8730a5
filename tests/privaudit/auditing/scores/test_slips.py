"""Slips that gave a verdict: masks as scores, wrong words, models in training mode."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from privaudit import Auditor
from privaudit.auditing.external_models import shadow_scores, signals_of_logits
from privaudit.auditing.model_outputs import as_logits
from privaudit.auditing.scores.score_table import ScoreTable
from privaudit.auditing.scores.scored_audit import Declared, audit_scores
from privaudit.auditing.scores.slips import refuse_mask
from privaudit.core.errors import ConfigError, UnknownNameError


def test_scores_of_noise_and_a_mask_are_no_leak(rng: np.random.Generator) -> None:
    """As other libraries take them, in either order, of any type; and said to be coins."""
    scores, mask = rng.normal(size=200), rng.random(200) < 0.5
    masks: list[Any] = [mask, mask.astype(int), mask.astype(float)]
    masks.append(mask.astype(float).tolist())
    for one in [*masks, torch.from_numpy(mask)]:
        for pair in ((scores, one), (one, scores)):
            with pytest.raises(ConfigError, match=r"scores\[mask\], scores\[~mask\]"):
                Auditor.from_scores(*pair, sampling="coin")
    whole = np.arange(200) % 7  # whole numbers beside truths
    with pytest.raises(ConfigError, match="looks like a mask"):
        Auditor.from_scores(whole, mask)
    right = Auditor.from_scores(scores[mask], scores[~mask], sampling="coin")
    assert right.auroc.low < 0.5 < right.auroc.high


def test_scores_that_are_0_and_1_are_scores(rng: np.random.Generator) -> None:
    """Of attacks on labels alone, also of as many members as others, and of counts."""
    members, others = rng.random((2, 150)) < np.array([[0.9], [0.6]])
    for kind in (bool, int, float, np.float32):
        ours, theirs = members.astype(kind), others.astype(kind)
        assert Auditor.from_scores(ours, theirs).auroc.low > 0.5
        assert Auditor.from_scores(ours, theirs[:100]).auroc.low > 0.5
    counts = rng.integers(0, 5, size=150)
    Auditor.from_scores(counts, others.astype(int))
    Auditor.from_scores(rng.random(150), others[:149].astype(float))  # another length
    Auditor.from_scores(rng.random(150), np.ones(150))  # saturated
    Auditor.from_scores([0.9, 0.8, 0.4], [0.7, 0.3, 0.1])


def test_scores_that_look_like_a_mask_have_a_way(rng: np.random.Generator) -> None:
    scores, others = rng.random(50), rng.integers(0, 2, 50)
    with pytest.raises(ConfigError, match="add 1"):
        refuse_mask(scores, others)
    found = Auditor.from_scores(scores + 1, others + 1)
    assert found.auroc.n == (50, 50)


def test_words_that_nobody_knows_are_refused() -> None:
    """Each was taken for the last choice, in silence or with a traceback."""
    likely = torch.softmax(torch.randn(20, 4), dim=1)
    labels = torch.zeros(20, dtype=torch.long)
    unchecked = inspect.unwrap(as_logits)  # as it runs outside of tests
    with pytest.raises(UnknownNameError, match="Did you mean 'probabilities'"):
        unchecked(likely, "probability")
    with pytest.raises(UnknownNameError, match="Known: logits, probabilities"):
        unchecked(likely, "probs")
    with pytest.raises(ConfigError, match="look like probabilities"):
        signals_of_logits(likely, labels)
    with pytest.raises(ConfigError, match="do not lie in"):
        signals_of_logits(likely.log(), labels, "probabilities")
    with pytest.raises(ConfigError, match="do not lie in"):
        signals_of_logits(100 * likely, labels, "probabilities")
    shadows, is_in = np.zeros((6, 1)), np.arange(6)[:, None] < 3
    scored = inspect.unwrap(shadow_scores)
    with pytest.raises(UnknownNameError, match="Did you mean 'log-odds'"):
        scored(np.ones(1), shadows, is_in, "rmia", "logodds")
    table = ScoreTable.of(np.arange(4.0), np.arange(4) < 2)
    said = object.__new__(Declared)
    for name, value in {**vars(Declared()), "sampling": "Coin"}.items():
        object.__setattr__(said, name, value)
    with pytest.raises(UnknownNameError, match="Did you mean 'coin'"):
        inspect.unwrap(audit_scores)(table, said)


class Custom(nn.Module):
    """What no list of layers knows: noise in training mode."""

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        return records + torch.randn(1) * self.training


def ways(model: nn.Module) -> list[Callable[[Any], float]]:
    """Return the ways in which a score asks a model."""

    def closed(record: float) -> float:
        return float(model(torch.full((1, 4), record)).detach().sum())

    def given(asked: nn.Module, record: float) -> float:
        return float(asked(torch.full((1, 4), record)).detach().sum())

    return [
        closed,
        lambda record: closed(record),
        functools.partial(given, model),
        functools.wraps(closed)(lambda record: closed(record)),
    ]


@pytest.mark.parametrize(
    "layer",
    [nn.Dropout(0.5), nn.BatchNorm1d(4), Custom(), nn.Sequential(nn.AlphaDropout())],
)
def test_a_model_in_training_mode_is_not_audited(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, 4), layer)
    for score in ways(model):
        model.train()
        with pytest.raises(ConfigError, match=r"\.eval\(\)"):
            Auditor.from_signal(score, [3.0, 4.0, 5.0], [1.0, 2.0, 4.0])
        model.eval()
        Auditor.from_signal(score, [3.0, 4.0, 5.0], [1.0, 2.0, 4.0])


def test_modes_that_change_nothing_are_audited(rng: np.random.Generator) -> None:
    """A linear model in training mode, dropout of probability 0, and chance elsewhere."""
    plain = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0)).train()
    for score in ways(plain):
        Auditor.from_signal(score, [3.0, 4.0, 5.0], [1.0, 2.0, 4.0])
    Auditor.from_signal(lambda x: x + rng.random(), [3.0, 4.0], [1.0, 2.0])
