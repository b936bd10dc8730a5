"""What a model that writes is good for: exact answers, or captions like people's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Tensors
from privaudit.datasets.dialogues import Dialogue
from privaudit.federated.trainer import Records, Task, Trainer
from privaudit.federated.writing import write, write_untuned
from privaudit.statistics.captions.exact_match import exact_matches
from privaudit.statistics.captions.scores import caption_scores, mean_estimates
from privaudit.statistics.captions.token_f1 import (
    F1,
    mean_short_answers,
    short_answer_scores,
)
from privaudit.statistics.estimate import Estimate

EXACT, LIKENESS = "exact match", "ROUGE-L"


@dataclass(frozen=True)
class Written:
    """Scores of what several models wrote of the same records.

    Attributes:
        metric: What the scores are: ``EXACT`` where questions have choices, ``F1``
            where answers are short, else ``LIKENESS``.
        scores: From 0 to 1.
        captions: Each metric of captions, or of short answers, over all records and
            averaged over models; none where questions have choices.
    """

    metric: str
    scores: Float[np.ndarray, "models records"]
    captions: Mapping[str, Estimate]


def measure_writing(
    trainer: Trainer, task: Task, models: Sequence[Tensors], records: Records
) -> Written:
    """Let models write of records, and compare that with what people wrote."""
    return score_writing(write(trainer, task, models, records), records)


def score_writing(said: Sequence[Sequence[str]], records: Records) -> Written:
    """Compare what each model wrote of each record with what people wrote."""
    dialogues = records.dialogues
    references = [dialogue.answers for dialogue in dialogues]
    if _has_choices(dialogues):
        choices = [dialogue.choices for dialogue in dialogues]
        rows = [exact_matches(texts, references, choices) for texts in said]
        return Written(EXACT, np.stack(rows).astype(float), {})
    if dialogues and all(dialogue.short for dialogue in dialogues):
        return _score_short(said, references)
    scores = [caption_scores(texts, references) for texts in said]
    likeness = np.stack([score.per_image[LIKENESS] for score in scores])
    captions = mean_estimates(scores, Seeds(0).stream("captions").numpy())
    return Written(LIKENESS, likeness, captions)


def _score_short(
    said: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
) -> Written:
    """Compare short answers by their words, as SQuAD does."""
    scores = np.stack([short_answer_scores(texts, references) for texts in said])
    rng = Seeds(0).stream("short answers").numpy()
    return Written(F1, scores[:, 0], mean_short_answers(scores, (F1, EXACT), rng))


def untuned_scores(task: Task, records: Records) -> Float[np.ndarray, " records"]:
    """Return the scores of the model as it comes."""
    return score_writing(write_untuned(task, records), records).scores[0]


def _has_choices(dialogues: Sequence[Dialogue]) -> bool:
    return bool(dialogues) and all(dialogue.choices for dialogue in dialogues)
