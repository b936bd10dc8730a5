"""What exposed records have in common."""

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from privaudit.auditing.per_record.properties import (
    ISOLATED,
    LONG,
    RARE,
    compare_properties,
    numbers_of,
    properties_of,
)
from privaudit.datasets.dialogues import ANSWER, INSTRUCTION, PADDING, TokenSequences
from privaudit.datasets.records import Records


def test_properties_by_hand() -> None:
    labels = np.array([0, 0, 0, 0, 1, 1, 2])
    has = properties_of(labels, {ISOLATED: np.arange(7.0)})
    assert has["class 1"].tolist() == [False] * 4 + [True] * 2 + [False]
    assert has[RARE].tolist() == [False] * 4 + [True] * 3
    assert has[ISOLATED].tolist() == [False] * 4 + [True] * 3
    assert set(properties_of(np.zeros(5, np.int64), {})) == set()


def test_a_record_far_from_all_others_is_isolated() -> None:
    features = normalize(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]), dim=-1)
    records = Records(features, torch.zeros(3, dtype=torch.long))
    assert numbers_of(records)[ISOLATED].argmax() == 2
    assert not numbers_of(records.pick(torch.tensor([0])))


def test_answers_are_counted_and_not_what_was_asked() -> None:
    kinds = torch.tensor(
        [
            [INSTRUCTION, INSTRUCTION, ANSWER, PADDING],
            [INSTRUCTION, ANSWER, ANSWER, ANSWER],
        ]
    )
    words = TokenSequences(torch.zeros_like(kinds), kinds)
    labels = torch.zeros(2, dtype=torch.long)
    records = Records(torch.zeros(2, 3), labels, words=words)
    assert {n: v.tolist() for n, v in numbers_of(records).items()} == {LONG: [1.0, 3.0]}


def test_a_property_that_goes_with_exposure_is_found_and_corrected() -> None:
    rng = np.random.default_rng(0)
    clients = []
    for _ in range(3):
        labels = rng.integers(0, 4, 80)
        clients.append(
            (rng.normal(size=80) + 2.0 * (labels == 3), properties_of(labels, {}))
        )
    found = {one.name: one for one in compare_properties(clients, ["a", "b", "c", "d"])}
    assert found["class d"].p_value < 0.001
    assert found["class d"].auroc is not None
    assert found["class d"].auroc.low > 0.5
    assert sum(found["class d"].n) == 240


def test_where_nothing_goes_with_exposure_properties_are_seldom_named() -> None:
    """Families of nine tests, of which Holm lets at most one in twenty name any."""
    rng = np.random.default_rng(1)
    alarms = 0
    for _ in range(100):
        labels = rng.integers(0, 8, 160)
        has = properties_of(labels, {ISOLATED: rng.normal(size=160)})
        found = compare_properties([(rng.normal(size=160), has)])
        alarms += any(one.p_value <= 0.05 for one in found)
    assert alarms <= 100 * 0.05 + 3 * np.sqrt(100 * 0.05)


def test_few_records_are_not_judged() -> None:
    labels = np.array([0] * 5 + [1] * 50)
    found = compare_properties([(np.arange(55.0), properties_of(labels, {}))])
    assert {one.name: one.auroc for one in found}["class 0"] is None
    assert all(one.p_value == pytest.approx(1) for one in found if one.auroc is None)
