"""What a model says token by token about many records.

Position i of a sequence holds what the model expects at position i + 1. A *slice* is
what a score looks at: the picture, the instruction, the description (what is answered)
or both of the latter. A position is scored if its own token and the next one belong to
the slice, so a slice of L tokens in a row is scored at its first L - 1, as published.
So a description's first token, which the last one of the instruction expects, is not
looked at. Scores that need the token that came, such as the loss, look at it all the
same unless asked not to (``all_positions=False``): of an answer of one word, nothing
else tells anything. For scores of entropies alone ``all_positions`` adds every position
of the slice that has a next token.

:mod:`privaudit.auditing.signals.token_scores` makes scores of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from privaudit.core.errors import ConfigError
from privaudit.datasets.dialogues import (
    ANSWER,
    INSTRUCTION,
    PADDING,
    PICTURE,
    TokenSequences,
)
from privaudit.models.token_statistics import (
    ALPHAS,
    IGNORED,
    TokenStatistics,
    token_statistics,
)

TOKENS, CLAMPED_TOKENS = "tokens", "clamped tokens"
"""What a trainer's ``query`` may be asked for: exact, or as it was published."""

PUBLISHED_CLAMP = 1e-10

WordSlice = Literal["instruction", "description", "instruction+description"]
Slice = Literal["image", "instruction", "description", "instruction+description"]
KINDS: Mapping[Slice, tuple[int, ...]] = {
    "image": (PICTURE,),
    "instruction": (INSTRUCTION,),
    "description": (ANSWER,),
    "instruction+description": (INSTRUCTION, ANSWER),
}

WORDS, EVERYTHING = (INSTRUCTION, ANSWER), (PICTURE, INSTRUCTION, ANSWER)


def token_signals(
    logits: Float[Tensor, "*n length vocabulary"],
    words: TokenSequences,
    want: frozenset[str] = frozenset({TOKENS}),
) -> dict[str, Tensor]:
    """Return what a trainer's ``query`` yields of a chunk of records, by name.

    Args:
        logits: Of every position, also the last and those of padding.
        words: The tokens, with leading axes that broadcast to those of the logits.
        want: ``CLAMPED_TOKENS`` among it asks for what was published.

    Returns:
        "kinds", and what :meth:`TokenStatistics.to_signals` gives, each [*n, length].
    """
    shape = logits.shape[:-1]
    kinds, following = words.kinds.expand(shape), _next(words.kinds, PADDING)
    ids = _next(words.ids, IGNORED)
    targets = torch.where(_is_any(following, WORDS), ids, IGNORED).expand(shape)
    clamp = PUBLISHED_CLAMP if CLAMPED_TOKENS in want else None
    statistics = token_statistics(logits, targets, ALPHAS, clamp)
    return {"kinds": kinds, **statistics.to_signals()}


def _next(values: Int[Tensor, "*n length"], last: int) -> Int[Tensor, "*n length"]:
    return pad(values[..., 1:], (0, 1), value=last)


def _is_any(
    values: Int[Tensor, "*n length"], wanted: tuple[int, ...]
) -> Bool[Tensor, "*n length"]:
    return torch.isin(values, torch.tensor(wanted, device=values.device))


@dataclass(frozen=True)
class TokenTable:
    """What one model says about n records, token by token.

    Attributes:
        statistics: Of each position's next-token distribution.
        kinds: What each position's own token is; see :mod:`privaudit.datasets.dialogues`.
    """

    statistics: TokenStatistics
    kinds: Int[Tensor, "n positions"]

    @classmethod
    def from_signals(
        cls, chunks: Sequence[Mapping[str, Tensor]], model: int = 0
    ) -> "TokenTable":
        """Join what ``query`` yielded, for one of its models.

        Chunks may be cut to different lengths: the shorter are padded.
        """
        length = max(chunk["kinds"].shape[-1] for chunk in chunks)
        return cls.of(
            {
                name: torch.cat(
                    [_padded(chunk[name][model], length) for chunk in chunks]
                )
                for name in chunks[0]
            }
        )

    @classmethod
    def of(cls, joined: Mapping[str, Tensor]) -> "TokenTable":
        """Return the table of joined signals, by name."""
        return cls(TokenStatistics.from_signals(joined), joined["kinds"])

    def to_signals(self) -> dict[str, Tensor]:
        """Return what :meth:`of` takes."""
        return {**self.statistics.to_signals(), "kinds": self.kinds}

    def __len__(self) -> int:
        return len(self.kinds)

    def entropy(self, alpha: float) -> Float[Tensor, "n positions"]:
        """Return the entropies of one order.

        Raises:
            ConfigError: The table has none of that order.
        """
        return _of_order(alpha, self.statistics.entropies)

    def modified(self, alpha: float) -> Float[Tensor, "n positions"]:
        """Return the modified entropies of one order."""
        return _of_order(alpha, self.statistics.modified)

    def scored(
        self, part: Slice, all_positions: bool = False, *, needs_target: bool = False
    ) -> Bool[Tensor, "n positions"]:
        """Return where a slice is scored: see the top of this module.

        Args:
            part: The slice.
            all_positions: Whether the next token may lie outside of it; if it is
                needed, whether the position itself may.
            needs_target: Whether the score is of the token that came next.

        Raises:
            ConfigError: A record has no such position.
        """
        inside, following = _is_any(self.kinds, KINDS[part]), _next(self.kinds, PADDING)
        ahead = _is_any(following, KINDS[part])
        if not all_positions:
            mask = inside & ahead
        elif needs_target:
            mask = ahead & (self.kinds != PADDING)
        else:
            mask = inside & _is_any(following, EVERYTHING)
        if not mask.any(dim=1).all():
            record = int((~mask.any(dim=1)).nonzero()[0])
            raise ConfigError(
                f"The slice {part!r} of record {record} has {int(inside[record].sum())} "
                "token(s), and not one position to be scored at. Use another "
                "slice, or leave the record out."
            )
        return mask


def _padded(values: Tensor, length: int) -> Tensor:
    return pad(values, (0, length - values.shape[-1]))


def _of_order(alpha: float, found: Mapping[float, Tensor]) -> Tensor:
    if alpha not in found:
        orders = ", ".join(f"{order:g}" for order in found)
        raise ConfigError(
            f"An entropy of order {alpha:g} was requested, but there are those of "
            f"{orders}. Take one of these."
        )
    return found[alpha]
