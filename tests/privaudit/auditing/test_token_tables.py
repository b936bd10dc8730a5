from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from privaudit.attacks.token_attacks import MaxRenyi, ModRenyi
from privaudit.auditing.token_tables import table_of
from privaudit.core.errors import AttackError
from privaudit.federation.trainer import Task
from tests.attacks.word_world import attacked


def test_a_table_is_made_once_for_one_model_and_one_set_of_records(
    task: Task,
) -> None:
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


@pytest.mark.parametrize("alpha", [0.0, 3.0])
def test_orders_that_no_table_holds_are_refused(alpha: float) -> None:
    with pytest.raises(ValidationError, match=r"0\.5, 1, 2, inf"):
        MaxRenyi(alpha=alpha)


def test_the_modified_entropy_has_no_infinite_order() -> None:
    with pytest.raises(ValidationError, match="finite"):
        ModRenyi(alpha=float("inf"))


def test_a_share_is_a_percentage() -> None:
    with pytest.raises(ValidationError, match="less than or equal to 100"):
        MaxRenyi(share=101)
