"""A trainer in one class of thirty lines is trained, attacked and reported."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.auditor import refuse_unsteady
from privaudit.core.errors import AttackError, PluginError
from privaudit.core.seeds import Seeds
from privaudit.federation.threat_models import server
from privaudit.federation.trainer import (
    TRAINERS,
    Reconstruction,
    Signals,
    Task,
    Trainer,
)
from tests.class_means import ClassMeans
from tests.conftest import Cli, common_cache
from tests.toy_federation import Play, Shards, joined


def test_a_trainer_of_three_functions_is_trained_attacked_and_reported(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    cli: Cli,
) -> None:
    def said(*words: str) -> str:
        code, out, _ = cli(*words)
        assert code == 0
        return out

    monkeypatch.setitem(TRAINERS._entries, "class-means", ClassMeans)
    run = str(tmp_path / "one")
    words = ["--trainer", "class-means", "--rounds", "2", "--set", "scale=20"]
    words += ["--clients", "3"]
    with common_cache(tmp_path_factory):
        said("train", *words, "--runs", str(tmp_path), "--name", "one")
        assert "AUROC" in said("attack", run, "--clients", "1", "--shadows", "0")
        said("report", run)
    assert (
        "class-means" in Path(run, "audits/server-reconstruct/report.html").read_text()
    )


@pytest.mark.parametrize("name", TRAINERS.names())
def test_a_trainers_file_shows_each_step_or_says_where_it_stands(name: str) -> None:
    kind: Any = TRAINERS.find(name)
    for step in ("start", "local_update", "aggregate"):
        owner = next(part for part in kind.__mro__ if step in vars(part))
        file = owner.__module__.removeprefix("privaudit.").replace(".", "/")
        said = f"``{owner.__name__}.{step}``" in kind.__doc__
        assert owner is kind or (said and f"{file}.py" in kind.__doc__)


def test_the_protocol_alone_is_enough_to_train_but_not_to_be_attacked(
    play: Play, task: Task, shards: Shards
) -> None:
    asked = ("aggregation", "task", "usual_rounds", "image_tokens", "scale")
    methods = ("start", "broadcast", "local_update", "aggregate", "release", "query")
    parts = {name: getattr(ClassMeans, name) for name in (*asked, *methods)}
    trainer = type("Bare", (), parts)()
    assert isinstance(trainer, Trainer)
    played = play(trainer, rounds=1)
    assert played.models.keys() == shards.keys()
    adversary = Adversary(trainer, task, server, server(played.messages), Seeds(1))
    with pytest.raises(AttackError, match="Bare was attacked"):
        adversary.reconstruct("client-0")


def altered(change: Callable[[Tensor], Tensor]) -> Trainer:
    """Return a trainer of another package whose answers are altered."""

    class Altered(ClassMeans):
        def query(self, *asked: Any, **rest: Any) -> Iterator[Signals]:
            for said in super().query(*asked, **rest):
                yield {"log_probabilities": change(said["log_probabilities"])}

    return Altered()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda logs: logs, ""),
        (lambda logs: (logs + torch.randn_like(logs)).log_softmax(-1), "differently"),
        (lambda logs: (logs - logs.mean(1, keepdim=True)).log_softmax(-1), "a batch"),
        (torch.exp, "no log-probabilities"),
        (lambda logs: logs * torch.nan, "no log-probabilities"),
        (lambda logs: logs[:, :3], "of the shapes"),
    ],
)
def test_models_of_another_package_are_asked_as_an_owners_are(
    change: Callable[[Tensor], Tensor], why: str, task: Task, shards: Shards
) -> None:
    client, records = next(iter(shards.items()))
    model = {"means": task.zero_shot + 0.1 * torch.randn_like(task.zero_shot)}
    target = Target(client, Reconstruction(model), joined(records, task.public))
    if not why:
        return refuse_unsteady(altered(change), task, target)
    with pytest.raises((AttackError, PluginError), match=why):
        refuse_unsteady(altered(change), task, target)
    return None
