"""A trainer in one class of thirty lines is trained, attacked and reported."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from pydantic.dataclasses import dataclass
from torch.nn.functional import normalize, one_hot

from privaudit.auditing.attack import Adversary
from privaudit.core.errors import AttackError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors
from privaudit.federated.base_trainer import BaseTrainer
from privaudit.federated.federation import Federation, give_away, run_round
from privaudit.federated.threat_models import server
from privaudit.federated.trainer import (
    TRAINERS,
    Cohort,
    LocalResult,
    Records,
    Round,
    Signal,
    Signals,
    Task,
    Trainer,
)
from privaudit.federated.weighted_mean import weighted_upload
from tests.conftest import Cli, common_cache

ASKED: frozenset[Signal] = frozenset({"log_probabilities"})


@dataclass(frozen=True)
class ClassMeans(BaseTrainer):
    """Nearest class mean: clients send their means, the server averages them."""

    scale: float = 10.0

    def start(self, task: Task, seeds: Seeds) -> Tensors:
        return {"means": task.zero_shot}

    def local_update(
        self,
        task: Task,
        cohort: Cohort,
        received: Stacked,
        kept: Stacked,
        at: Round,
    ) -> LocalResult:
        classes = one_hot(cohort.labels, len(task.zero_shot)) * cohort.mask[..., None]
        sums = torch.einsum("kbc,kbd->kcd", classes.float(), cohort.features)
        means = {"means": sums / cohort.sizes.clamp(min=1).view(-1, 1, 1)}
        return LocalResult(weighted_upload(cohort, means), {}, torch.zeros(len(cohort)))

    def query(
        self,
        task: Task,
        models: Stacked,
        records: Records,
        want: frozenset[Signal] = ASKED,
    ) -> Iterator[Signals]:
        means = normalize(models["means"], dim=-1)
        near = self.scale * torch.einsum("nd,kcd->knc", records.features, means)
        yield {"log_probabilities": near.log_softmax(dim=-1)}


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


def test_the_protocol_alone_is_enough_to_train_but_not_to_be_attacked(
    task: Task, shards: dict[str, Records]
) -> None:
    asked = ("aggregation", "task", "usual_rounds", "image_tokens", "scale")
    methods = ("start", "broadcast", "local_update", "aggregate", "release", "query")
    parts = {name: getattr(ClassMeans, name) for name in (*asked, *methods)}
    trainer = type("Bare", (), parts)()
    assert isinstance(trainer, Trainer)
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    (record,) = run_round(trainer, task, [federation], 0)
    models, _ = give_away(trainer, task, federation, 1)
    assert models.keys() == shards.keys()
    adversary = Adversary(trainer, task, server, server(record.messages), Seeds(1))
    with pytest.raises(AttackError, match="Bare was attacked"):
        adversary.reconstruct("client-0")
