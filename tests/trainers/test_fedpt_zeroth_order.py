import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from privaudit import train
from privaudit.trainers.fedpt import FedPT
from privaudit.trainers.fedpt_zeroth_order import FedPTZerothOrder
from tests.conftest import Cli
from tests.toy_federation import Play


def test_without_directions_it_is_fedpt(play: Play) -> None:
    exact, plain = (
        play(trainer, rounds=1).uploads()
        for trainer in (FedPTZerothOrder(directions=0), FedPT())
    )
    for client, other in plain.items():
        assert all(torch.equal(exact[client][name], other[name]) for name in other)


def test_many_directions_lead_where_the_gradient_does(play: Play) -> None:
    usual: dict[str, Any] = {
        "optimizer": "sgd",
        "epochs": 1,
        "learning_rate": 0.1,
        "virtual_tokens": 1,
    }
    ((name, start),) = play(FedPT(**usual), rounds=0).server.items()
    look = FedPTZerothOrder(**usual, directions=400, models_at_once=10_000)
    one, other = (
        play(trainer, rounds=1).uploads() for trainer in (look, FedPT(**usual))
    )
    for client in other:
        found, true = (
            (sent[client][name] / sent[client]["weight"] - start).flatten()
            for sent in (one, other)
        )
        assert torch.cosine_similarity(found, true, dim=0) > 0.95


def test_a_query_is_a_record_answered_by_one_model() -> None:
    assert FedPTZerothOrder(epochs=3, directions=4).model_queries(10) == 3 * 10 * 8
    assert FedPTZerothOrder(epochs=3, directions=0).model_queries(10) == 30


@pytest.mark.slow
def test_on_digits_it_improves_over_its_start_and_queries_are_reported(
    tmp_path: Path, cli: Cli
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
    code, out, _ = cli("train", "--seed", 0, *words)
    metrics = json.loads(out.splitlines()[-1])
    asked = sum(line["model_queries"] for line in run.metrics)
    members = asked / 6 / (2 * 8)
    assert code == 0
    assert re.search(rf"\b{asked}\b", json.dumps(metrics))
    assert members == sum(run.ledger.members_of(i).size for i in range(10))
