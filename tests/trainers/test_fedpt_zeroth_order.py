import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from privaudit import train
from privaudit.core.seeds import Seeds
from privaudit.federated.federation import Federation, run_round
from privaudit.federated.trainer import Records, Task, Trainer
from privaudit.trainers.fedpt import FedPT
from privaudit.trainers.fedpt_zeroth_order import FedPTZerothOrder
from tests.conftest import call


def sent_by(
    trainer: Trainer, task: Task, shards: dict[str, Records]
) -> list[dict[str, torch.Tensor]]:
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    (record,) = run_round(trainer, task, [federation], 0)
    return [dict(m.tensors) for m in record.messages if m.kind == "update"]


def test_without_directions_it_is_fedpt(task: Task, shards: dict[str, Records]) -> None:
    exact = sent_by(FedPTZerothOrder(directions=0), task, shards)
    for one, other in zip(exact, sent_by(FedPT(), task, shards), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in other)


def test_many_directions_lead_where_the_gradient_does(
    task: Task, shards: dict[str, Records]
) -> None:
    usual: dict[str, Any] = {
        "optimizer": "sgd",
        "epochs": 1,
        "learning_rate": 0.1,
        "virtual_tokens": 1,
    }
    server = Federation.begin(FedPT(**usual), task, shards, Seeds(0)).server
    (name,) = server
    look = FedPTZerothOrder(**usual, directions=400, models_at_once=10_000)
    for one, other in zip(
        sent_by(look, task, shards), sent_by(FedPT(**usual), task, shards), strict=True
    ):
        found, true = (
            (sent[name] / sent["weight"] - server[name]).flatten()
            for sent in (one, other)
        )
        assert torch.cosine_similarity(found, true, dim=0) > 0.95


def test_a_query_is_a_record_answered_by_one_model() -> None:
    assert FedPTZerothOrder(epochs=3, directions=4).model_queries(10) == 3 * 10 * 8
    assert FedPTZerothOrder(epochs=3, directions=0).model_queries(10) == 30


@pytest.mark.slow
def test_on_digits_it_improves_over_its_start_and_queries_are_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = {"directions": 4, "epochs": 2}
    trainer = "fedpt-zeroth-order"
    run = train(trainer, folder=tmp_path, rounds=6, seed=0, settings=settings)
    local = [line["local_accuracy"] for line in run.metrics]
    loss = [line["training_loss"] for line in run.metrics]
    assert loss[-1] < 0.85 * loss[0]
    assert local[-1] > local[0]
    words = ["--set", "directions=4", "--set", "epochs=2", "--rounds", "6"]
    words += ["--trainer", trainer, "--seed", "0", "--runs", str(tmp_path), "--json"]
    code, out, _ = call("train", *words, monkeypatch=monkeypatch, capsys=capsys)
    told = json.loads(out.splitlines()[-1])
    asked = sum(line["model_queries"] for line in run.metrics)
    members = asked / 6 / (2 * 8)
    assert code == 0
    assert re.search(rf"\b{asked}\b", json.dumps(told))
    assert members == sum(run.ledger.members_of(i).size for i in range(10))
