"""Answer tables: how likely a model writes each record's own answer, token by token.

The probability of an answer is a product over its tokens, so one pass that reads the text
gives it, also behind each beginning that is shown, and nothing need be drawn.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from privaudit.auditing.answer_values import answer_values, log_probabilities
from privaudit.auditing.attack import Adversary
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.tensors import Tensors
from privaudit.datasets.records import ANSWER
from privaudit.federation.trainer import Records


@dataclass(frozen=True)
class SamplingScheme:
    """How the next token is drawn of logits.

    Attributes:
        temperature: Logits are divided by it, above 0.
        top_k: Only so many of the likeliest tokens can come, and those that tie with
            the last of them; 0 allows all.
    """

    temperature: float = 1.0
    top_k: int = 0

    def log_probabilities(
        self, logits: Float[Tensor, "*n vocabulary"]
    ) -> Float[Tensor, "*n vocabulary"]:
        """Return log-probabilities in float64, -inf where a token cannot come.

        Example:
            >>> logits = torch.tensor([0.0, 0.0, 5.0]).log_softmax(0)
            >>> SamplingScheme(top_k=1).log_probabilities(logits).exp()
            tensor([0., 0., 1.], dtype=torch.float64)
        """
        scaled = logits.double() / self.temperature
        if 0 < self.top_k < logits.shape[-1]:
            least = scaled.topk(self.top_k, dim=-1).values[..., -1:]
            scaled = scaled.masked_fill(scaled < least, -math.inf)
        return scaled.log_softmax(dim=-1)


@dataclass(frozen=True)
class AnswerTable:
    """What one model says of each token of each record's own answer.

    Attributes:
        log_probabilities: Under the scheme; 0 beyond an answer's end.
        likeliest: Whether nothing is likelier, so that greedy answers have it; True
            beyond an answer's end.
        sizes: Tokens of each answer, with the one that ends it; at least 1.
    """

    log_probabilities: Float[Tensor, "records tokens"]
    likeliest: Bool[Tensor, "records tokens"]
    sizes: Int[Tensor, " records"]

    def __len__(self) -> int:
        return len(self.sizes)

    def starts(self, prefix: float) -> Int[Tensor, " records"]:
        """Return the place of each suffix's first token.

        Args:
            prefix: Percent of an answer's tokens that are given, below 100; the token
                that ends it is never counted or given.
        """
        return ((self.sizes - 1) * prefix / 100).floor().long()

    def suffixes(self, prefix: float) -> Float[np.ndarray, " records"]:
        """Return log p_z of each suffix, in nats; -inf where it cannot be drawn."""
        return self._behind(prefix, self.log_probabilities, 0.0).sum(dim=1).numpy()

    def greedy(self, prefix: float) -> Bool[np.ndarray, " records"]:
        """Say which suffixes come where always the likeliest token is taken.

        Source: Carlini et al., "Quantifying memorization across neural language
        models", ICLR 2023: discoverable extraction.
        """
        return self._behind(prefix, self.likeliest, fill=True).all(dim=1).numpy()

    def _behind(self, prefix: float, values: Tensor, fill: float | bool) -> Tensor:
        positions = torch.arange(values.shape[1])
        return values.masked_fill(positions < self.starts(prefix)[:, None], fill)


def answer_table(
    adversary: Adversary, model: Tensors, records: Records, scheme: SamplingScheme
) -> AnswerTable:
    """Return what a model says of each token of records' answers; asked once.

    Raises:
        ConfigError: The model does not write, or a record has no answer.
    """

    def values(logits: Tensor, own: Tensor) -> list[Tensor]:
        logs = log_probabilities(logits, own, scheme.log_probabilities)
        return [*logs, own == logits.argmax(dim=-1)]

    def ask() -> AnswerTable:
        logs, likeliest = answer_values(adversary, model, records, values, (0.0, True))
        assert records.words is not None
        sizes = (records.words.kinds == ANSWER).sum(dim=1)
        return AnswerTable(logs, likeliest, sizes)

    return adversary.once(("answers", scheme), ask, model, records)
