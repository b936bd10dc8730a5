"""Objectives of a tuned transformer: classes, or the tokens of answers."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import pydantic.dataclasses
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from privaudit.core.devices import in_chunks, records_at_once
from privaudit.core.seeds import Stream
from privaudit.core.tensors import Stacked, Tensors
from privaudit.datasets.records import ANSWER, TokenSequences
from privaudit.federation.batches import Batch, Gradients, accumulated, gradients_of
from privaudit.federation.trainer import ANSWERS, Records, Signals, Task, Want
from privaudit.models.interfaces import LanguageModel, Tower, Tuning
from privaudit.models.token_table import token_signals
from privaudit.tuning.optimiser import Optimised
from privaudit.tuning.prompts.learning import mean_losses

HEAD = ("head.weight", "head.bias")  # SigLIP has other parts of this name
HEAD_SPREAD = 0.02
LOGITS_AT_ONCE, TEXTS_AT_ONCE = 2**24, 32  # numbers; more texts leave the caches
ROWS_AT_ONCE = 4096  # models times records, of a classifier


@dataclass(frozen=True)
class ClassObjective:
    """One prediction a record: its class."""

    tower: Tower
    outcomes: int

    def start_head(self, stream: Stream) -> Tensors:
        """Return a small random head where the tower needs one, else nothing."""
        head = self.tower.head
        if head is None:
            return {}
        weight = stream.normal_tensor((head.classes, head.width))
        return {HEAD[0]: HEAD_SPREAD * weight, HEAD[1]: torch.zeros(head.classes)}

    def predictions(self, batch: Batch) -> Float[Tensor, " k"]:
        """Return over how many predictions each client's loss is a mean."""
        return batch.sizes.float()

    def losses(self, tuning: Tuning, batch: Batch) -> Float[Tensor, " k"]:
        """Return each client's mean cross-entropy over its records."""
        logits = self._logits(tuning, batch)
        return mean_losses(logits.float(), batch.labels, batch.mask)

    def entropies(self, tuning: Tuning, batch: Batch) -> Float[Tensor, "k n"]:
        """Return the entropy of each record's classes, in nats."""
        return _entropy(self._logits(tuning, batch))

    @torch.no_grad()
    def query(
        self, tuning: Tuning, count: int, records: Records, want: Want
    ) -> Iterator[Signals]:
        """Yield log-probabilities of classes [count, chunk, classes]."""

        def each(tensor: Tensor) -> Tensor:
            return tensor.expand(count, *tensor.shape)

        def answers(chosen: Tensor) -> Signals:
            chunk = records.pick(chosen)
            tokens = None if chunk.tokens is None else each(_pictures(chunk))
            words = None if chunk.words is None else chunk.words.repeated(count)
            logits = self.tower.logits(each(chunk.features), tokens, words, tuning)
            return {"log_probabilities": logits.log_softmax(dim=-1)}

        rows = max(1, ROWS_AT_ONCE // count)
        yield from in_chunks(len(records), rows, answers)

    def _logits(self, tuning: Tuning, batch: Batch) -> Float[Tensor, "k n classes"]:
        tokens = None if batch.tokens is None else _pictures(batch)
        return self.tower.logits(batch.features, tokens, batch.words, tuning)


@dataclass(frozen=True)
class AnswerObjective:
    """One prediction for each token of a record's answer.

    A client's tokens count alike, whichever record they are of.
    """

    language: LanguageModel

    @property
    def outcomes(self) -> int:
        """Size of the vocabulary."""
        return self.language.vocabulary

    def start_head(self, stream: Stream) -> Tensors:
        """Return nothing: a language model has its own head."""
        return {}

    def predictions(self, batch: Batch) -> Float[Tensor, " k"]:
        """Return over how many predictions each client's loss is a mean."""
        assert batch.words is not None
        return _in_answers(batch.words, batch)[..., 1:].sum(dim=(1, 2)).float()

    def losses(self, tuning: Tuning, batch: Batch) -> Float[Tensor, " k"]:
        """Return each client's mean cross-entropy over the tokens of its answers."""
        logits, weights, wanted = self._predicted(tuning, batch)
        losses = cross_entropy(logits.flatten(0, 2), wanted.flatten(), reduction="none")
        total = (losses.view(wanted.shape) * weights).sum(dim=(1, 2))
        return total / weights.sum(dim=(1, 2)).clamp(min=1)

    def entropies(self, tuning: Tuning, batch: Batch) -> Float[Tensor, "k n"]:
        """Return the mean entropy over the tokens of each record's answer, in nats."""
        logits, weights, _ = self._predicted(tuning, batch)
        total = (_entropy(logits) * weights).sum(dim=2)
        return total / weights.sum(dim=2).clamp(min=1)

    @torch.no_grad()
    def query(
        self, tuning: Tuning, count: int, records: Records, want: Want
    ) -> Iterator[Signals]:
        """Yield statistics of every token, [count, chunk of records, positions]."""
        assert records.tokens is not None
        assert records.words is not None
        pictures, words = records.tokens, records.words.trimmed()
        of_one = count * words.length * self.outcomes
        rows = max(1, min(TEXTS_AT_ONCE, LOGITS_AT_ONCE // max(1, of_one)))

        def answers(chosen: Tensor) -> Signals:
            tokens = pictures[chosen].read(records.features.device)
            tokens = tokens.expand(count, *tokens.shape)
            chunk_words = words[chosen].trimmed().repeated(count)
            logits = self.language.logits(tokens, chunk_words, tuning)
            return token_signals(logits, chunk_words, want)

        yield from in_chunks(len(records), rows, answers)

    def _predicted(
        self, tuning: Tuning, batch: Batch
    ) -> tuple[
        Float[Tensor, "k n p vocabulary"], Bool[Tensor, "k n p"], Int[Tensor, "k n p"]
    ]:
        """Return logits, which of them are of an answer's token, and that token.

        Positions at which no record has an answer are left out.
        """
        assert batch.words is not None
        words = batch.words.trimmed()
        counted = _in_answers(words, batch)
        ahead = counted[..., 1:].flatten(0, 1).any(dim=0).nonzero().flatten()
        logits = self.language.logits(_pictures(batch), words, tuning, ahead)
        # Where one row has an answer another may have a picture, whose number is no word.
        wanted = torch.where(counted, words.ids, 0)
        return logits, counted[..., ahead + 1], wanted[..., ahead + 1]


def objective_of(task: Task) -> ClassObjective | AnswerObjective:
    """Return what a task's models are trained for."""
    if task.kind == "generation":
        return AnswerObjective(task.language)
    tower = task.classifier.tower
    return ClassObjective(tower, len(task.zero_shot))


@pydantic.dataclasses.dataclass(frozen=True)
class TransformerTrainer(Optimised):
    """A trainer whose models add to a frozen transformer."""

    @abstractmethod
    def tuning(self, task: Task, models: Stacked) -> Tuning:
        """Return what each model adds to the frozen one."""

    @torch.no_grad()
    def query(
        self, task: Task, models: Stacked, records: Records, want: Want = ANSWERS
    ) -> Iterator[Signals]:
        """Yield log-probabilities of classes, or statistics of tokens."""
        count = len(next(iter(models.values())))
        tuning = self.tuning(task, models)
        yield from objective_of(task).query(tuning, count, records, want)


def gradients_in_parts(task: Task, micro_batch: int) -> Gradients:
    """Return how gradients are found: of so many records at once.

    Where 0, of as many as memory holds, if it was measured that it does not hold all.
    """
    size = micro_batch or records_at_once()
    return accumulated(size, objective_of(task).predictions) if size else gradients_of


def _pictures(held: Records | Batch) -> Float[Tensor, "*records parts width"]:
    """Return the tokens of pictures, where the features are."""
    assert held.tokens is not None
    return held.tokens.read(held.features.device)


def _in_answers(words: TokenSequences, batch: Batch) -> Bool[Tensor, "k n positions"]:
    return (words.kinds == ANSWER) & batch.mask.unsqueeze(2)


def _entropy(logits: Float[Tensor, "*n outcomes"]) -> Float[Tensor, "*n"]:
    logs = logits.float().log_softmax(dim=-1)
    return -(logs.exp() * logs).sum(dim=-1)
