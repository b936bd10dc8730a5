"""Asking models: what each of many says about each of many records, or writes."""

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int

from privaudit.core.devices import in_chunks
from privaudit.core.errors import ConfigError, PluginError
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.tensors import Stacked, Tensors, stack, stacks
from privaudit.datasets.records import ANSWER, PADDING, TokenSequences
from privaudit.federation.trainer import Records, Task, Trainer
from privaudit.models.interfaces import Tuning

MODELS_AT_ONCE = 128
SEQUENCES_AT_ONCE = 1024
ROWS_AT_ONCE = 32
TOGETHER = 256  # on a CPU, of few models: where one writes alone, ended answers leave
UNTUNED = "untuned"
"""The one tensor of a model that changes nothing; what it holds says nothing."""


def ask(
    trainer: Trainer, task: Task, models: Stacked, records: Records
) -> Float[Tensor, "models records classes"]:
    """Return every model's log-probabilities for every record."""
    chunks = [
        signals["log_probabilities"] for signals in trainer.query(task, models, records)
    ]
    wanted = len([*models.values(), *chunks][0])
    shapes = [tuple(chunk.shape) for chunk in chunks]
    if all(len(one) == 3 and one[0] == wanted for one in shapes) and (
        sum(one[1] for one in shapes) == len(records)
    ):
        return torch.cat(chunks, dim=1)
    raise PluginError(
        f"{type(trainer).__name__}.query gave log_probabilities of the shapes {shapes} "
        f"for {wanted} models and {len(records)} records. Give [models, records, "
        "classes], of all records in order, in one part or several."
    )


def ask_each(
    trainer: Trainer, task: Task, models: Sequence[Tensors], records: Records
) -> Float[Tensor, "models records classes"]:
    """Return the same for models of any shapes: those alike are asked together."""
    answers: dict[int, Tensor] = {}
    for positions, stacked in stacks(models, MODELS_AT_ONCE):
        stacked_answers = ask(trainer, task, stacked, records)
        answers.update(zip(positions, stacked_answers, strict=True))
    return torch.stack([answers[i] for i in range(len(models))])


@runtime_checkable
class WritingTrainer(Trainer, Protocol):
    """A trainer whose models are a frozen language model and what they add to it."""

    def own_model(self, server: Tensors) -> Tensors:
        """Return the server's own model from its state."""

    def tuning(self, task: Task, models: Stacked) -> Tuning:
        """Return what each model adds to the frozen one."""

    def weight_changes(self, task: Task, model: Tensors) -> Iterable[Tensor]:
        """Yield one model's change of each layer's weights [outputs, inputs]."""


def as_writer(trainer: Trainer) -> WritingTrainer:
    """Return the trainer as one whose models write.

    Raises:
        ConfigError: Its models classify.
    """
    if isinstance(trainer, WritingTrainer):
        return trainer
    raise ConfigError(
        f"{type(trainer).__name__} trains classifiers, and one that generates "
        "text was requested. Use a trainer such as lora-fedavg."
    )


@torch.no_grad()
def write(
    trainer: Trainer, task: Task, models: Sequence[Tensors], records: Records
) -> list[list[str]]:
    """Return what each model answers to each record's question, greedily.

    Answers may be a quarter longer than the longest public one, or where nothing is
    public than the longest that people gave.
    """
    writer, longest = as_writer(trainer), _longest(task, records)
    said: dict[int, list[str]] = {}
    at_once = TOGETHER if task.language.device.type == "cpu" else SEQUENCES_AT_ONCE
    for positions, stacked in stacks(models, max(1, at_once // max(1, len(records)))):
        tuning = writer.tuning(task, stacked)
        texts = _write(task, tuning, len(positions), records, longest)
        said.update(zip(positions, texts, strict=True))
    return [said[i] for i in range(len(models))]


@torch.no_grad()
def write_untuned(task: Task, records: Records) -> list[list[str]]:
    """Return what the model as it comes answers: one row."""
    return _write(task, Tuning(), 1, records, _longest(task, records))


def _write(
    task: Task, tuning: Tuning, count: int, records: Records, longest: int
) -> list[list[str]]:
    assert records.tokens is not None
    assert records.words is not None
    prompts, device = questions(records.words), task.language.device
    pictures = records.tokens
    said: list[list[str]] = [[] for _ in range(count)]

    def answers(chosen: Tensor) -> list[list[str]]:
        tokens = pictures[chosen].read(device)
        words = prompts[chosen].repeated(count)
        return task.language.generate(
            tokens.expand(count, *tokens.shape), words.to(device), tuning, longest
        )

    rows = max(1, SEQUENCES_AT_ONCE // count)
    for texts in in_chunks(len(records), rows, answers):
        for model, model_texts in zip(said, texts, strict=True):
            model.extend(model_texts)
    return said


@torch.no_grad()
def favourite_tokens(
    trainer: Trainer, task: Task, models: Sequence[Tensors], records: Records
) -> Int[Tensor, "models answered"]:
    """Return each model's likeliest tokens in people's answers, of long texts first."""
    writer, device = as_writer(trainer), task.language.device
    tunings, said = [writer.tuning(task, stack([model])) for model in models], []
    assert records.tokens is not None
    assert records.words is not None
    for chosen in records.by_length.split(ROWS_AT_ONCE):
        words, pictures = records.words[chosen].trimmed(), records.tokens[chosen][None]
        answered = words.kinds[:, 1:] == ANSWER
        ahead = answered.any(dim=0).nonzero().flatten()
        asked = pictures.read(device), words.repeated(1).to(device)
        logits = (task.language.logits(*asked, t, ahead.to(device)) for t in tunings)
        likeliest = torch.cat([of_one.argmax(dim=-1).cpu() for of_one in logits])
        said.append(likeliest[:, answered[:, ahead]])
    return torch.cat(said, dim=1)


def questions(words: TokenSequences) -> TokenSequences:
    """Return the sequences up to where an answer would begin."""
    is_prompt = words.kinds != ANSWER
    ids = torch.where(is_prompt, words.ids, torch.zeros_like(words.ids))
    kinds = torch.where(is_prompt, words.kinds, torch.full_like(words.kinds, PADDING))
    return TokenSequences(ids, kinds).trimmed()


def _longest(task: Task, records: Records) -> int:
    words = (task.public if len(task.public) else records).words
    assert words is not None
    return round(1.25 * int((words.kinds == ANSWER).sum(dim=1).max()))
