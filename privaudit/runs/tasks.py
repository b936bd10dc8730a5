"""What differs between runs of one task and of the other, utility above all.

A score of a classifier is whether a class is right; one of a model that writes is
whether an answer is, or how much of a caption people wrote too. Scores stand in rows over
test records, of which many clients have the same: each is held once.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float, Int, Shaped

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Tensors, distinct
from privaudit.federation.query import as_writer, ask_each, write, write_untuned
from privaudit.federation.trainer import Records, Task, Trainer
from privaudit.models.interfaces import TaskKind
from privaudit.statistics.captions.answers import (
    F1,
    exact_matches,
    mean_short_answers,
    short_answer_scores,
)
from privaudit.statistics.captions.scores import caption_scores, mean_estimates
from privaudit.statistics.estimate import Estimate, half_width, weighted_means

Name = TypeVar("Name", bound=Hashable)

NUMBERS_AT_ONCE = 2**22  # 32 MiB of float64


@dataclass(frozen=True)
class RepeatedRows:
    """A table of which many rows are equal.

    Attributes:
        rows: The different ones, of scores or of weights.
        which: The row of each client, or of each model.
    """

    rows: Shaped[np.ndarray, "different records"]
    which: Int[np.ndarray, " clients"]

    @classmethod
    def of(
        cls, table: "RepeatedRows | Shaped[np.ndarray, 'clients records']"
    ) -> "RepeatedRows":
        """Return a table whose rows are held one by one as it is."""
        if isinstance(table, RepeatedRows):
            return table
        return cls(table, np.arange(len(table)))

    @classmethod
    def named(
        cls, names: Iterable[Name], rows: Mapping[Name, Shaped[np.ndarray, " records"]]
    ) -> "RepeatedRows":
        """Return each name's row."""
        place = {name: number for number, name in enumerate(rows)}
        which = np.array([place[name] for name in names])
        return cls(np.stack(list(rows.values())), which)

    @property
    def table(self) -> Shaped[np.ndarray, "clients records"]:
        """Every row, as often as it is there."""
        return self.rows[self.which]

    def mean(self) -> Float[np.ndarray, " records"]:
        """Return the mean over clients, added up in their order."""
        total = np.zeros((1, self.rows.shape[1]))
        for chosen in in_blocks(self.which, self.rows.shape[1]):
            total = np.concatenate([total, self.rows[chosen]]).sum(axis=0)[None]
        return total[0] / len(self.which)


def in_blocks(
    values: Int[np.ndarray, " clients"], records: int
) -> Iterable[Int[np.ndarray, " some"]]:
    """Yield some clients' values at a time, so that their rows fit into memory."""
    size = max(1, NUMBERS_AT_ONCE // max(1, records))
    return (values[first : first + size] for first in range(0, len(values), size))


def client_means(
    scores: RepeatedRows, weights: RepeatedRows
) -> tuple[Float[np.ndarray, " clients"], Float[np.ndarray, " records"]]:
    """Return each client's weighted mean, and each record's influence on their mean.

    Clients with the same scores and weights are computed once.
    """
    records, different = scores.rows.shape[1], len(weights.rows)
    means, total = [], np.zeros((1, records))
    for block in in_blocks(scores.which * different + weights.which, records):
        pairs, place = np.unique(block, return_inverse=True)
        of_pairs, influence = weighted_means(
            scores.rows[pairs // different], weights.rows[pairs % different]
        )
        means.append(of_pairs[place])
        total = np.concatenate([total, influence[place]]).sum(axis=0)[None]
    return np.concatenate(means), total[0] / len(scores.which)


EXACT, LIKENESS = "exact match", "ROUGE-L"
MACRO_F1 = "macro F1 averaged over models, linearised over test records"


@dataclass(frozen=True)
class TaskScores:
    """How several models do on the same records; equal ones are asked once.

    Attributes:
        metric: What the scores are: "accuracy"; of models that write, ``EXACT`` where
            questions have choices, ``F1`` where answers are short, else ``LIKENESS``.
        rows: Scores from 0 to 1 of the different models, and which each one is.
        captions: Each metric of captions, or of short answers, over all records and
            averaged over models; none for classes, or where questions have choices.
        macro_f1: Of classes, averaged over models.
    """

    metric: str
    rows: RepeatedRows
    captions: Mapping[str, Estimate] = field(default_factory=dict)
    macro_f1: Estimate | None = None

    @property
    def scores(self) -> Float[np.ndarray, "models records"]:
        """From 0 to 1, of every model."""
        return self.rows.table


@dataclass(frozen=True)
class RunTask:
    """What differs between runs of one task and of the other.

    Attributes:
        untrained: Scores of the model as it comes, on records.
        own_model: The server's own model, from its state; None where nobody asks.
        defaults: Fields of a run that are not those of :class:`RunFields`.
        libraries: Whose versions a run records beside the common ones.
    """

    measure: Callable[[Trainer, Task, Sequence[Tensors], Records], TaskScores]
    untrained: Callable[[Task, Records], Float[np.ndarray, " records"]]
    own_model: Callable[[Trainer, Tensors], Tensors | None]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    libraries: tuple[str, ...] = ()


def _measure_classes(
    trainer: Trainer, task: Task, models: Sequence[Tensors], records: Records
) -> TaskScores:
    positions, places = distinct(models)
    different, which = [models[i] for i in positions], np.array(places)
    predicted = ask_each(trainer, task, different, records).argmax(dim=-1).numpy()
    labels = records.labels.numpy()
    right = RepeatedRows((predicted == labels).astype(float), which)
    return TaskScores("accuracy", right, macro_f1=macro_f1(predicted, labels, which))


def _zero_shot_scores(task: Task, records: Records) -> Float[np.ndarray, " records"]:
    blind = (records.features @ task.zero_shot.T.cpu()).argmax(dim=-1)
    return (blind == records.labels).numpy().astype(float)


def measure_writing(
    trainer: Trainer, task: Task, models: Sequence[Tensors], records: Records
) -> TaskScores:
    """Let models write of records, and compare that with what people wrote."""
    positions, places = distinct(models)
    said = write(trainer, task, [models[i] for i in positions], records)
    return score_writing(said, records, np.array(places))


def score_writing(
    said: Sequence[Sequence[str]],
    records: Records,
    which: Int[np.ndarray, " models"] | None = None,
) -> TaskScores:
    """Compare what each model wrote of each record with what people wrote.

    ``said`` is by the different models, and ``which`` of these each model is; None
    where all differ.
    """
    which = np.arange(len(said)) if which is None else which
    dialogues = records.dialogues
    references = [dialogue.answers for dialogue in dialogues]
    if dialogues and all(dialogue.choices for dialogue in dialogues):
        choices = [dialogue.choices for dialogue in dialogues]
        rows = [exact_matches(texts, references, choices) for texts in said]
        return TaskScores(EXACT, RepeatedRows(np.stack(rows).astype(float), which))
    if dialogues and all(dialogue.short for dialogue in dialogues):
        return _score_short(said, references, which)
    scores = [caption_scores(texts, references) for texts in said]
    likeness = np.stack([score.per_image[LIKENESS] for score in scores])
    everyone = [scores[place] for place in which]
    captions = mean_estimates(everyone, Seeds(0).stream("captions").numpy())
    return TaskScores(LIKENESS, RepeatedRows(likeness, which), captions)


def _score_short(
    said: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    which: Int[np.ndarray, " models"],
) -> TaskScores:
    """Compare short answers by their words, as SQuAD does."""
    scores = np.stack([short_answer_scores(texts, references) for texts in said])
    rng = Seeds(0).stream("short answers").numpy()
    answers = mean_short_answers(scores[which], (F1, EXACT), rng)
    return TaskScores(F1, RepeatedRows(scores[:, 0], which), answers)


def untuned_scores(task: Task, records: Records) -> Float[np.ndarray, " records"]:
    """Return the scores of the model as it comes."""
    return score_writing(write_untuned(task, records), records).scores[0]


RUN_TASKS: Mapping[TaskKind, RunTask] = {
    "classification": RunTask(
        _measure_classes, _zero_shot_scores, lambda trainer, server: None
    ),
    "generation": RunTask(
        measure_writing,
        untuned_scores,
        lambda trainer, server: as_writer(trainer).own_model(server),
        defaults={
            "dataset": "scenes",
            "model": "tiny-llava",
            "clients": 12,
            "participation": 1 / 3,
            "alpha": 0.5,
            "test_share": 0.15,
            "public_share": 0.15,
            "measured_rounds": 1,
            "tested": 240,
        },
        libraries=("transformers", "tokenizers"),
    ),
}
"""The defaults of generation are FedRand's federation, and utility is measured once,
since writing takes its time."""


def macro_f1(
    predicted: Int[np.ndarray, "different records"],
    labels: Int[np.ndarray, " records"],
    which: Int[np.ndarray, " models"] | None = None,
) -> Estimate:
    """Return the mean over models of the mean over classes of F1.

    F1 of a class is 2 T / (P + A): T records are rightly predicted to be of it, P are
    predicted to be, and A are. Classes without a test record do not count; predicting
    one is wrong for the class that it is. All models are asked about the same records,
    so the replicate is the record: the variance is the sum of squared influences, and a
    record's on F1 is (2 T' - F1 (P' + A')) / (P + A) with its own part of each count.
    The interval says how the number would move with other test records.

    Args:
        predicted: Class indices that each different model predicts.
        labels: Class index of each record, [records].
        which: Which of these each model is; None where all differ.

    Raises:
        ConfigError: There is no record, or no model.

    Example:
        >>> print(macro_f1(np.array([[0, 0, 1, 1]]), np.array([0, 0, 0, 1])))
        0.733 [0.217, 1.000], n = 4
    """
    if not predicted.size:
        raise ConfigError(
            f"There are {predicted.shape[0]} models and {predicted.shape[1]} test "
            "records, so that there is no F1. Give at least one of each."
        )
    which = np.arange(len(predicted)) if which is None else which
    per_model = [_one(row, labels) for row in predicted]
    value = float(np.array([one for one, _ in per_model])[which].mean())
    influence = RepeatedRows(np.stack([each for _, each in per_model]), which).mean()
    records = len(labels)
    half = half_width(influence, records, 0.95)
    low, high = max(value - half, 0.0), min(value + half, 1.0)
    return Estimate(value, float(low), float(high), (records,), MACRO_F1)


def _one(
    predicted: Int[np.ndarray, " records"], labels: Int[np.ndarray, " records"]
) -> tuple[float, Float[np.ndarray, " records"]]:
    """Return one model's macro F1, and the influence of each record on it."""
    classes = int(max(predicted.max(), labels.max())) + 1
    right = predicted == labels
    there = np.bincount(labels, minlength=classes)
    counted = there + np.bincount(predicted, minlength=classes)
    weight = (there > 0) / np.maximum(counted, 1)
    f1 = 2 * np.bincount(labels[right], minlength=classes) * weight
    share = (there > 0).sum()
    lost = f1 * weight
    influence = 2 * right * weight[labels] - lost[labels] - lost[predicted]
    return float(f1.sum() / share), influence / share
