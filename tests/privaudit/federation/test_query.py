from dataclasses import replace

import pytest
import torch

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.datasets.records import ANSWER
from privaudit.federation.query import (
    UNTUNED,
    as_writer,
    favourite_tokens,
    write,
    write_untuned,
)
from privaudit.federation.trainer import Task
from privaudit.runs.tasks import measure_writing, score_writing
from privaudit.trainers.lora_fedavg import LoraFedAvg
from privaudit.trainers.promptfl import PromptFL
from privaudit.trainers.zero_shot import ZeroShot
from tests.toy_language import toy_dialogues, toy_writing_task


@pytest.fixture
def task() -> Task:
    return toy_writing_task()


def test_several_models_write_what_each_writes_alone(task: Task) -> None:
    trainer, records = LoraFedAvg(), toy_dialogues(5, seed=3)
    generator = torch.Generator().manual_seed(0)
    models = [
        {n: torch.randn(t.shape, generator=generator) for n, t in start.items()}
        for start in [trainer.start(task, Seeds(0))] * 3
    ]
    together = write(trainer, task, models, records)
    assert together == [write(trainer, task, [model], records)[0] for model in models]
    assert together[0] != together[1]


def test_adapters_that_change_nothing_write_as_the_model_does(task: Task) -> None:
    trainer, records = LoraFedAvg(), toy_dialogues(5, seed=3)
    plain = write_untuned(task, records)
    assert write(trainer, task, [trainer.start(task, Seeds(0))], records) == plain
    assert write(ZeroShot(), task, [{UNTUNED: torch.zeros(())}], records) == plain


def test_without_public_records_answers_are_as_long_as_known_ones(task: Task) -> None:
    records = toy_dialogues(5, seed=3)
    none = replace(task, public=task.public.pick(torch.arange(0)))
    alike = replace(task, public=records)
    assert write_untuned(none, records) == write_untuned(alike, records)
    assert records.words is not None
    lengths = (records.words.kinds == ANSWER).sum(dim=1)  # in tokens
    shortest = records.pick(lengths.argmin()[None])
    short = write_untuned(replace(task, public=shortest), records)
    assert short != write_untuned(none, records)


def test_favourites_are_of_the_answers_tokens(task: Task) -> None:
    trainer, records = LoraFedAvg(), toy_dialogues(5, seed=3)
    assert records.words is not None
    models = [trainer.start(task, Seeds(0))] * 2
    found = favourite_tokens(trainer, task, models, records)
    assert found.shape == (2, int((records.words.kinds == ANSWER).sum()))
    assert torch.equal(found[0], found[1])


def test_a_trainer_of_classifiers_does_not_write() -> None:
    with pytest.raises(ConfigError, match="PromptFL trains classifiers"):
        as_writer(PromptFL())


def test_the_references_themselves_score_one(task: Task) -> None:
    """A model that says what people said has a likeness of 1 for every record."""
    records = toy_dialogues(12, seed=3)
    said = [[dialogue.answers[0] for dialogue in records.dialogues]]
    written = score_writing(said, records)
    assert written.scores.min() == pytest.approx(1.0)
    other = measure_writing(ZeroShot(), task, [{UNTUNED: torch.zeros(())}], records)
    assert other.scores.mean() < 0.9
    assert set(other.captions) >= {"BLEU-4", "ROUGE-L", "CIDEr-D"}
