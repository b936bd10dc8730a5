"""Scores of records made of token statistics: higher is more likely a member.

All take a :class:`~privaudit.models.token_table.TokenTable` and a slice of it, see there for
the positions it is scored at, and return one score for each record in float64.

``share`` is K in percent: of n positions, max(1, floor(K n / 100)) count, so that 0 takes the
largest alone and 100 the mean of all. ``all_positions`` says, for scores of words, whether the
slice's first token counts, too; for entropies and gaps, whether the next token may lie outside
of the slice.
"""

import zlib
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from privaudit.core.errors import AttackError
from privaudit.models.token_table import Slice, TokenTable, WordSlice

RecordScores = Float[Tensor, " n"]


def max_renyi(
    table: TokenTable,
    part: Slice,
    alpha: float,
    share: float = 10.0,
    *,
    all_positions: bool = False,
) -> RecordScores:
    """Return MaxRenyi-K%: minus the mean of the largest entropies of an order."""
    mask = table.scored(part, all_positions)
    return -_mean_of_largest(table.entropy(alpha), mask, share)


def mod_renyi(
    table: TokenTable, part: WordSlice, alpha: float, *, all_positions: bool = True
) -> RecordScores:
    """Return minus the mean modified entropy, of a finite order."""
    mask = table.scored(part, all_positions, needs_target=True)
    return -_mean(table.modified(alpha), mask)


def mean_log_likelihood(
    table: TokenTable, part: WordSlice, *, all_positions: bool = True
) -> RecordScores:
    """Return the mean log-probability of the tokens that came: minus the loss."""
    mask = table.scored(part, all_positions, needs_target=True)
    return _mean(table.statistics.log_likelihood, mask)


def perplexity_zlib(
    table: TokenTable,
    part: WordSlice,
    texts: Sequence[str],
    *,
    all_positions: bool = True,
) -> RecordScores:
    """Return minus the log-perplexity over the zlib size in bytes of each slice's text.

    Raises:
        AttackError: There is not one text for each record.
    """
    if len(texts) != len(table):
        raise AttackError(
            f"There are {len(table)} records and {len(texts)} texts, and perplexity by "
            "zlib needs the text of each. Give the records their dialogues."
        )
    sizes = torch.tensor([len(zlib.compress(text.encode())) for text in texts])
    return mean_log_likelihood(table, part, all_positions=all_positions) / sizes


def min_k(
    table: TokenTable,
    part: WordSlice,
    share: float = 20.0,
    *,
    all_positions: bool = True,
) -> RecordScores:
    """Return Min-K%: the mean of the smallest log-probabilities of what came."""
    mask = table.scored(part, all_positions, needs_target=True)
    return -_mean_of_largest(-table.statistics.log_likelihood, mask, share)


def min_k_plus_plus(
    table: TokenTable,
    part: WordSlice,
    share: float = 20.0,
    *,
    all_positions: bool = True,
) -> RecordScores:
    """Return Min-K%++: the same, each as deviations from the mean under p.

    A position whose distribution is uniform on what it allows counts 0.
    """
    mask = table.scored(part, all_positions, needs_target=True)
    statistics = table.statistics
    ratio = (statistics.log_likelihood - statistics.mean) / statistics.deviation
    ratio = ratio.masked_fill(statistics.deviation == 0, 0.0)
    return -_mean_of_largest(-ratio, mask, share)


def max_prob_gap(
    table: TokenTable,
    part: Slice,
    *,
    of_logarithms: bool = False,
    all_positions: bool = False,
) -> RecordScores:
    """Return the mean gap between the two largest probabilities, or their logarithms."""
    statistics = table.statistics
    gap = statistics.log_gap if of_logarithms else statistics.gap
    return _mean(gap, table.scored(part, all_positions))


def _mean(
    values: Float[Tensor, "n positions"], mask: Bool[Tensor, "n positions"]
) -> RecordScores:
    return values.double().masked_fill(~mask, 0).sum(1) / mask.sum(1)


def _mean_of_largest(
    values: Float[Tensor, "n positions"],
    mask: Bool[Tensor, "n positions"],
    share: float,
) -> RecordScores:
    count = (mask.sum(1).double() * share / 100).floor().clamp(min=1)
    ordered = values.double().masked_fill(~mask, -torch.inf)
    ordered = ordered.sort(dim=1, descending=True).values
    chosen = torch.arange(values.shape[1]) < count[:, None]
    return ordered.masked_fill(~chosen, 0).sum(1) / count
