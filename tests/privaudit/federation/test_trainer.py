"""A trainer in one class of thirty lines is trained, attacked and reported."""

from pathlib import Path
from typing import Any

import pytest

from privaudit.auditing.attack import Adversary
from privaudit.core.errors import AttackError
from privaudit.core.seeds import Seeds
from privaudit.federation.threat_models import server
from privaudit.federation.trainer import TRAINERS, Task, Trainer
from tests.class_means import ClassMeans
from tests.conftest import Cli, common_cache
from tests.toy_federation import Play, Shards


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
