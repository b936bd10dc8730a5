"""Perplexity by zlib: a text foreseen better than its plainness explains."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.signals.thresholds import PUBLIC_MEDIAN
from privaudit.auditing.signals.token_attack import score_targets
from privaudit.auditing.signals.token_scores import perplexity_zlib
from privaudit.datasets.dialogues import Dialogue
from privaudit.federated.trainer import Records
from privaudit.models.token_table import TokenTable, WordSlice


@ATTACKS.register("perplexity-zlib")
@dataclass(frozen=True)
class PerplexityZlib:
    """Score a candidate by minus its log-perplexity over its size when compressed.

    Source: Carlini et al., "Extracting training data from large language models",
    USENIX Security 2021: the ratio of log-perplexity and zlib entropy. The size is that
    of the slice as text: the question, the first answer, or both with a blank between.

    Attributes:
        slice: Which tokens of a record are scored.
        all_positions: Whether the slice's first token counts, too; published is that
            it does not.
    """

    threshold: ClassVar[str] = PUBLIC_MEDIAN
    trains_shadows: ClassVar[bool] = False
    task: ClassVar[AnyTask] = "generation"
    reads_texts: ClassVar[bool] = True

    slice: WordSlice = "description"
    all_positions: bool = True

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates, at most 0."""
        return score_targets(adversary, targets, self._score)

    def _score(self, table: TokenTable, records: Records) -> Tensor:
        texts = [_text(dialogue, self.slice) for dialogue in records.dialogues]
        return perplexity_zlib(
            table, self.slice, texts, all_positions=self.all_positions
        )


def _text(dialogue: Dialogue, part: WordSlice) -> str:
    question, answer = dialogue.question, dialogue.answers[0]
    both = {"instruction": question, "description": answer}
    return both.get(part, f"{question} {answer}")
