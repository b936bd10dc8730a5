"""One call on a fitted model, of three libraries."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
)

from privaudit import Auditor
from privaudit.auditing.fitted_models import ASKED_AT_ONCE, LabelledRecords, signal_of
from privaudit.core.errors import ConfigError
from privaudit.report.attack_strength import strength_of

DRAWN = np.random.default_rng(0)
X = DRAWN.normal(size=(400, 8)).astype(np.float32)
Y = DRAWN.integers(3, size=400)  # nothing to learn: who knows a label has seen it
IS_IN = DRAWN.random(400) < 0.5
SIGMOID = torch.nn.Sequential(torch.nn.Linear(8, 1), torch.nn.Sigmoid())
PAIRS = SVC(decision_function_shape="ovo")
SEARCH = GridSearchCV(clone(PAIRS), {"C": [1.0]}, cv=2)
OF_PAIRS: list[Any] = [PAIRS, make_pipeline(StandardScaler(), clone(PAIRS)), SEARCH]
SIX: Any = {"decision_function": lambda x: np.zeros((len(x), 6))}
WIDE = SimpleNamespace(classes_=np.arange(3), **SIX)
MEMBERS, OTHERS = (X[IS_IN], Y[IS_IN]), (X[~IS_IN], Y[~IS_IN])


def logistic(x: Any, y: Any) -> LogisticRegression:
    return LogisticRegression().fit(x, y)


def test_a_model_that_memorises_is_found_out() -> None:
    model: Any = DecisionTreeClassifier(random_state=0)
    model.fit(*MEMBERS)
    audit = Auditor.from_model(model, MEMBERS, OTHERS, sampling="coin")
    assert audit.auroc.value > 0.8  # a third of wrong labels is right by chance
    assert audit.verdict.kind == "leaks"
    assert strength_of(audit).is_weak


def test_one_that_saw_nobody_gives_nothing_away() -> None:
    foreign = DRAWN.normal(size=(400, 8))
    model = logistic(foreign, DRAWN.integers(3, size=400))
    sparse = [(coo_array(x), y) for x, y in (MEMBERS, OTHERS)]
    for known, rest in ((MEMBERS, OTHERS), sparse):
        audit = Auditor.from_model(model, known, rest, logistic, sampling="coin")
        assert audit.auroc.low < 0.5 < audit.auroc.high


def test_shadow_models_find_what_confidence_does_not() -> None:
    """On digits a good model is sure of all; how much surer than others, shadows know."""
    labels = (X[:, 0] > 0).astype(int)
    flip = DRAWN.random(400) < 0.1
    labels[flip] = 1 - labels[flip]

    def fit(x: Any, y: Any) -> RandomForestClassifier:
        return RandomForestClassifier(20, max_depth=6, random_state=0).fit(x, y)

    members, others = (X[IS_IN], labels[IS_IN]), (X[~IS_IN], labels[~IS_IN])
    model = fit(*members)
    names = ("forest", "made up")
    alone = Auditor.from_model(model, members, others, sampling="coin")
    rmia = Auditor.from_model(
        model, members, others, fit, shadows=8, names=names, sampling="coin"
    )
    assert rmia.auroc.value > alone.auroc.value + 0.05
    assert not strength_of(rmia).is_weak
    assert (rmia.run.config.model, rmia.run.config.dataset) == names


def test_equal_seeds_give_equal_audits() -> None:
    model = logistic(*MEMBERS)
    audits = [
        Auditor.from_model(model, MEMBERS, OTHERS, logistic, shadows=5, seed=seed)
        for seed in (1, 1, 2)
    ]
    scores = [np.concatenate([c.scores for c in a.headline.clients]) for a in audits]
    assert (scores[0] == scores[1]).all()
    assert (scores[0] != scores[2]).any()


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    "estimator",
    [
        LogisticRegression(),
        make_pipeline(StandardScaler(), LogisticRegression()),
        RandomForestClassifier(5, random_state=0),
        KNeighborsClassifier(1),
    ],
    ids=lambda one: type(one).__name__,
)
def test_estimators_signals_are_the_labels_log_odds(
    estimator: Any, classes: int
) -> None:
    names = np.array(["a", "b", "c"])[Y % classes]
    estimator.fit(X, names)
    signal, scale = signal_of(estimator, LabelledRecords.of((X, names)))
    shares = estimator.predict_proba(X).clip(1e-7)
    shares /= shares.sum(axis=1, keepdims=True)
    right = shares[np.arange(len(X)), np.searchsorted(estimator.classes_, names)]
    np.testing.assert_allclose(signal, np.log(right / (1 - right)), atol=1e-4)
    assert scale == "log-odds"


def test_one_logit_is_that_of_the_second_class() -> None:
    net = torch.nn.Linear(8, 1)
    x = torch.as_tensor(X)
    signal, _ = signal_of(net, LabelledRecords.of((x, Y % 2)))
    logit = net(x)[:, 0].detach().numpy()
    np.testing.assert_allclose(signal, np.where(Y % 2, logit, -logit), rtol=1e-5)


def test_logits_of_some_records_may_lie_between_0_and_1() -> None:
    x = torch.cat([torch.full((ASKED_AT_ONCE, 1), 0.5), torch.tensor([[2.0]])])
    records = LabelledRecords.of((x, np.ones(len(x), int)))
    signal, _ = signal_of(torch.nn.Identity(), records)
    np.testing.assert_allclose(signal, x[:, 0], rtol=1e-6)


def test_one_against_one_of_two_classes_is_one_decision() -> None:
    records = LabelledRecords.of((X, Y % 2))
    pairs, rest = (
        signal_of(m.fit(X, Y % 2), records)[0] for m in (clone(PAIRS), SVC())
    )
    np.testing.assert_array_equal(pairs, rest)


SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 50,
}


def test_transformers_classifiers_take_their_inputs_by_name() -> None:
    torch.manual_seed(0)
    labelled: Any = {**SMALL, "num_labels": 3}
    config = BertConfig(**labelled)
    model: Any = BertForSequenceClassification(config)
    model.eval()
    tokens = torch.randint(50, (300, 6))
    batch: dict[str, Any] = {
        "input_ids": tokens,
        "attention_mask": tokens > 5,
        "labels": Y[:300],
    }
    half = {name: values[:150] for name, values in batch.items()}
    rest = {name: values[150:] for name, values in batch.items()}
    audit = Auditor.from_model(model, half, rest)
    assert audit.auroc.n == (150, 150)
    with torch.no_grad():
        logits = model(tokens[:1], tokens[:1] > 5).logits.double().log_softmax(-1)
    first = logits[0, Y[0]]
    expected = first - torch.log(-torch.expm1(first))
    assert audit.headline.clients[0].scores[0] == pytest.approx(
        float(expected), abs=1e-5
    )


def test_a_language_model_that_memorised_texts_is_found_out() -> None:
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(LlamaConfig(**SMALL))
    texts = torch.randint(50, (60, 8))
    members, others = texts[:30], texts[30:]
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.02)
    for _ in range(60):
        model(input_ids=members, labels=members).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    audit = Auditor.from_model(model.eval(), (members, members), (others, others))
    assert audit.auroc.value > 0.99


class Pair(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> Any:
        return (super().forward(x),)


NET = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("model", "members", "others", "said"),
    [
        (NET, MEMBERS, OTHERS, "training mode"),
        (Pair(8, 3), MEMBERS, OTHERS, "returned a tuple"),
        (SIGMOID, (X, Y % 2), (X, Y % 2), "800 outputs .* without its last Sigmoid"),
        (object(), MEMBERS, OTHERS, "from_signal"),
        (KNeighborsClassifier(), MEMBERS, OTHERS, "fitted classifier"),
        (torch.nn.Linear(8, 3), X, OTHERS, "Give \\(inputs, labels\\)"),
        (torch.nn.Linear(8, 3), (X, Y[:5]), OTHERS, "of \\[5, 400\\] records"),
        (torch.nn.Linear(8, 3), {"a": X, "labels": Y}, OTHERS, "the inputs \\['a'\\]"),
        (torch.nn.Linear(8, 3), (X[:, :4], Y), OTHERS, "put together"),
        (
            LogisticRegression().fit(X, Y),
            MEMBERS,
            (X[:2], np.array([0, 7])),
            "1 records have a label that the model was not fitted on",
        ),
        (WIDE, MEMBERS, OTHERS, "has 6 columns for 3 classes"),
        *((one.fit(X, Y), MEMBERS, OTHERS, "one-vs-one, and one") for one in OF_PAIRS),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_sentence(
    model: Any, members: Any, others: Any, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        Auditor.from_model(model, members, others)


TOO_FEW = r"at least 5 models .* a seed of at least 0"


@pytest.mark.parametrize(
    ("asked", "fitted", "said"),
    [
        ({"sampling": "coin"}, 16, "say the same of every record"),
        *(({"shadows": count}, 0, TOO_FEW) for count in (-1, 0, 4)),
        ({"seed": -1}, 0, TOO_FEW),
        ({}, 1, r"training mode.*\.eval\(\)"),
    ],
)
def test_shadow_models_that_are_too_few_or_ignore_their_data_are_no_all_clear(
    asked: dict[str, Any], fitted: int, said: str
) -> None:
    model = LogisticRegression().fit(X, Y)
    fit = Mock(return_value=model if asked else NET)
    with pytest.raises(ConfigError, match=said):
        Auditor.from_model(model, MEMBERS, OTHERS, fit, **asked)
    assert fit.call_count == fitted
