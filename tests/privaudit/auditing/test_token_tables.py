from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from privaudit.attacks.token_attacks import MaxRenyi, ModRenyi
from privaudit.auditing.token_tables import table_of
from privaudit.core.errors import AttackError
from privaudit.federation.trainer import Task
from tests.attacks.word_world import attacked


def test_a_table_is_made_once_for_one_model_and_one_set_of_records(task: Task) -> None:
    adversary, targets, _ = attacked(task, results=True)
    model, records = targets[0].reconstructed.model, targets[0].candidates
    first = table_of(adversary, records, model)
    assert len(first) == len(records)
    assert table_of(adversary, records, model) is first
    other = {"bank": model["bank"].flip(0)}
    for found in (
        table_of(adversary, records, other),
        table_of(adversary, records.pick(torch.arange(3)), model),
        table_of(adversary, records, model, clamped=True),
    ):
        assert found is not first


def test_records_without_words_are_refused(task: Task) -> None:
    adversary, targets, _ = attacked(task, results=True)
    blank = replace(targets[0].candidates, words=None)
    with pytest.raises(AttackError, match="hold no words"):
        MaxRenyi()(adversary, [replace(targets[0], candidates=blank)])


@pytest.mark.parametrize(
    ("attack", "setting", "says"),
    [
        (MaxRenyi, {"alpha": 0.0}, r"0\.5, 1, 2, inf"),
        (MaxRenyi, {"alpha": 3.0}, r"0\.5, 1, 2, inf"),
        (ModRenyi, {"alpha": float("inf")}, "finite"),
        (MaxRenyi, {"share": 101}, "less than or equal to 100"),
    ],
)
def test_orders_and_shares_that_no_table_holds_are_refused(
    attack: Callable[..., object], setting: dict[str, float], says: str
) -> None:
    with pytest.raises(ValidationError, match=says):
        attack(**setting)
