"""Attacks on token distributions: scores of what a model says word by word."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from jaxtyping import Float
from pydantic.dataclasses import dataclass

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.signals import (
    FARTHEST,
    PUBLIC_MEDIAN,
    max_prob_gap,
    max_renyi,
    mean_log_likelihood,
    min_k,
    min_k_plus_plus,
    mod_renyi,
    perplexity_zlib,
    score_beside_public,
)
from privaudit.auditing.token_tables import FiniteOrder, Order, Percent, table_of
from privaudit.core.lazy_torch import Tensor
from privaudit.datasets.records import Dialogue
from privaudit.federation.trainer import Records
from privaudit.models.token_table import Slice, TokenTable, WordSlice


class TokenAttack:
    """Score records by one function of a token table.

    It has no fields: those of a base come first in ``repr``, which audits store.

    Attributes:
        slice: Which tokens of a record are scored; a field of each.
        all_positions: A field of each. For scores of words: whether the slice's first
            token counts, too; published is that it does not. For those of entropies and
            gaps: whether the next token may lie outside of the slice; published is that
            it may not.
    """

    threshold: ClassVar[str] = PUBLIC_MEDIAN
    trains_shadows: ClassVar[bool] = False
    task: ClassVar[AnyTask] = "generation"

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates; 0 is the most, but for gaps.

        Raises:
            AttackError: The models do not answer in words.
            ConfigError: A record has no position to be scored at.
        """
        clamped: bool = getattr(self, "published", False)

        def score(target: Target, records: Records) -> Float[np.ndarray, " records"]:
            model = target.reconstructed.model
            table = table_of(adversary, records, model, clamped=clamped)
            return self._score(table, records).clamp(-FARTHEST, FARTHEST).numpy()

        return score_beside_public(adversary, targets, score)

    def _score(self, table: TokenTable, records: Records) -> Tensor:
        raise NotImplementedError


@ATTACKS.register("token-loss")
@dataclass(frozen=True)
class TokenLoss(TokenAttack):
    """Score a candidate by the mean log-probability of its tokens.

    Its perplexity, exp of minus that, puts candidates in the same order.

    Source: Yeom et al., "Privacy risk in machine learning: analyzing the connection to
    overfitting", CSF 2018, adversary 1; token by token as Carlini et al., "Extracting
    training data from large language models", USENIX Security 2021.
    """

    slice: WordSlice = "description"
    all_positions: bool = True

    def _score(self, table: TokenTable, records: Records) -> Tensor:
        return mean_log_likelihood(table, self.slice, all_positions=self.all_positions)


@ATTACKS.register("min-k")
@dataclass(frozen=True)
class MinK(TokenAttack):
    """Score a candidate by the mean log-probability of its least likely tokens.

    Source: Shi et al., "Detecting pretraining data from large language models", ICLR
    2024, equation 1, with K 20 as there.

    Attributes:
        share: K in percent: 0 is the lowest alone, 100 the mean of all.
    """

    share: Percent = 20.0
    slice: WordSlice = "description"
    all_positions: bool = True

    def _score(self, table: TokenTable, records: Records) -> Tensor:
        return min_k(table, self.slice, self.share, all_positions=self.all_positions)


@ATTACKS.register("min-k-plus-plus")
@dataclass(frozen=True)
class MinKPlusPlus(TokenAttack):
    """Score a candidate by its tokens' lowest standardised log-probabilities.

    From a token's log-probability the mean under the model is taken, and the rest is
    divided by the deviation: training makes what came a mode.

    Source: Zhang et al., "Min-K%++: improved baseline for detecting pre-training data
    from large language models", ICLR 2025, with K 20 as Min-K%.

    Attributes:
        share: K in percent: 0 is the lowest alone, 100 the mean of all.
    """

    share: Percent = 20.0
    slice: WordSlice = "description"
    all_positions: bool = True

    def _score(self, table: TokenTable, records: Records) -> Tensor:
        return min_k_plus_plus(
            table, self.slice, self.share, all_positions=self.all_positions
        )


@ATTACKS.register("max-renyi")
@dataclass(frozen=True)
class MaxRenyi(TokenAttack):
    """Score a candidate by minus the mean of its largest token-wise Renyi entropies.

    It needs no target tokens, so a picture's can be scored too. Scores lie in
    [-log vocabulary, 0].

    Source: Li et al., "Membership inference attacks against large vision-language
    models", NeurIPS 2024; on reconstructed models as in FedRand, equation 11.
    Neither fixes alpha for all models. The default 2, of 0.5, 1, 2 and infinity,
    neither follows the many words that are never said, as 0.5 does, nor looks at the
    likeliest alone, as infinity does.

    Attributes:
        alpha: Order of the entropy: 0.5, 1, 2 or infinity.
        share: K in percent: 0 is the largest entropy alone, 100 the mean of all.
        published: Clamp probabilities as the published code does.
    """

    alpha: Order = 2.0
    share: Percent = 10.0
    slice: Slice = "description"
    all_positions: bool = False
    published: bool = False

    def _score(self, table: TokenTable, records: Records) -> Tensor:
        return max_renyi(
            table, self.slice, self.alpha, self.share, all_positions=self.all_positions
        )


@ATTACKS.register("mod-renyi")
@dataclass(frozen=True)
class ModRenyi(TokenAttack):
    """Score a candidate by minus the mean modified Renyi entropy of its tokens.

    Source: Li et al., "Membership inference attacks against large vision-language
    models", NeurIPS 2024; for alpha 1 the modified entropy of Song and Mittal,
    "Systematic evaluation of privacy risks of machine learning models", USENIX
    Security 2021.

    Attributes:
        alpha: Order of the entropy: 0.5, 1 or 2.
        published: Clamp probabilities as the published code does.
    """

    alpha: FiniteOrder = 2.0
    slice: WordSlice = "description"
    all_positions: bool = True
    published: bool = False

    def _score(self, table: TokenTable, records: Records) -> Tensor:
        return mod_renyi(
            table, self.slice, self.alpha, all_positions=self.all_positions
        )


@ATTACKS.register("max-prob-gap")
@dataclass(frozen=True)
class MaxProbGap(TokenAttack):
    """Score a candidate by the mean gap of the most likely token to the second.

    It needs no target tokens, so a picture's can be scored too. Scores lie in [0, 1];
    as published they are at least 0.

    Source: Li et al., "Membership inference attacks against large vision-language
    models", NeurIPS 2024, where it is a baseline.

    Attributes:
        published: Take the lead in log-probability, over the second distinct value, as
            the published code does.
    """

    slice: Slice = "description"
    all_positions: bool = False
    published: bool = False

    def _score(self, table: TokenTable, records: Records) -> Tensor:
        return max_prob_gap(
            table,
            self.slice,
            of_logarithms=self.published,
            all_positions=self.all_positions,
        )


@ATTACKS.register("perplexity-zlib")
@dataclass(frozen=True)
class PerplexityZlib(TokenAttack):
    """Score a candidate by minus its log-perplexity over its size when compressed.

    Source: Carlini et al., "Extracting training data from large language models",
    USENIX Security 2021: the ratio of log-perplexity and zlib entropy. The size is that
    of the slice as text: the question, the first answer, or both with a blank between.
    """

    reads_texts: ClassVar[bool] = True

    slice: WordSlice = "description"
    all_positions: bool = True

    def _score(self, table: TokenTable, records: Records) -> Tensor:
        texts = [_text(dialogue, self.slice) for dialogue in records.dialogues]
        return perplexity_zlib(
            table, self.slice, texts, all_positions=self.all_positions
        )


def _text(dialogue: Dialogue, part: WordSlice) -> str:
    question, answer = dialogue.question, dialogue.answers[0]
    both = {"instruction": question, "description": answer}
    return both.get(part, f"{question} {answer}")
