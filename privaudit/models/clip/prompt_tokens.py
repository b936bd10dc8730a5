"""Prompts as token ids: where the context goes, and whether the text fits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from privaudit.core.errors import ConfigError


@runtime_checkable
class Tokenizer(Protocol):
    """Anything that turns texts into rows of token ids, as open_clip's do."""

    def __call__(self, texts: list[str], context_length: int) -> Tensor:
        """Return int64 ids [texts, context_length]: start, text, end, padding."""
        ...


@dataclass(frozen=True)
class PromptTokens:
    """Texts as token ids with room for a context.

    Attributes:
        ids: [start] [placeholders] [text] [end] [padding]; the placeholders are to be
            replaced by context vectors.
        context_start: Position of the first placeholder: 1, or 0 for a tokenizer
            that has no start token.
        context_tokens: How many placeholders.
    """

    ids: Int[Tensor, "texts length"]
    context_start: int
    context_tokens: int

    def to(self, device: torch.device) -> "PromptTokens":
        """Return the same on another device."""
        return replace(self, ids=self.ids.to(device))


def prompt_tokens(
    tokenizer: Tokenizer, texts: Sequence[str], context_tokens: int, length: int
) -> PromptTokens:
    """Tokenise ``texts`` and leave room for a context after the start token.

    Args:
        tokenizer: The text tower's.
        texts: At least one; none may be empty.
        context_tokens: Context vectors to make room for; 0 for a plain text.
        length: Positions the text tower has.

    Raises:
        ConfigError: A text is empty or does not fit beside the context.
    """
    if not texts or context_tokens < 0:
        raise ConfigError(
            f"Prompts need a class and a context of 0 or more tokens; there are "
            f"{len(texts)} classes and {context_tokens} context tokens."
        )
    # Asked for more room than there is, so that what is too long is seen, not cut.
    rows = tokenizer(list(texts), context_length=4 * length)
    # Tokenizers name start and padding differently; two texts of one token tell them.
    first, second = tokenizer(["a", "e"], context_length=length)
    start, padding = int(first[0] == second[0]), int(first[-1])
    # An end token that is padding, too, is not counted by its row's length.
    hidden_end = tokenizer(["a e"], context_length=start + 2)[0, -1] == padding
    lengths = [length + int(hidden_end) for length in _lengths(rows, padding)]
    _check_fit(texts, lengths, context_tokens, length)
    # Any token of the text will do, but not padding, which some towers mask.
    placeholders = rows[:, start : start + 1].expand(-1, context_tokens)
    ids = torch.cat([rows[:, :start], placeholders, rows[:, start:]], dim=1)
    return PromptTokens(ids[:, :length].contiguous(), start, context_tokens)


def _lengths(rows: Tensor, padding: int) -> list[int]:
    positions = torch.arange(1, rows.shape[1] + 1)
    return [int(((row != padding) * positions).max()) for row in rows]


def _check_fit(
    texts: Sequence[str], lengths: list[int], context_tokens: int, length: int
) -> None:
    for text, taken in zip(texts, lengths, strict=True):
        if not text.strip(" ."):
            raise ConfigError(f"A prompt needs a class name, and one is {text!r}.")
        if taken + context_tokens > length:
            raise ConfigError(
                f"The text {text!r} takes {taken} tokens with start and end, and "
                f"{context_tokens} context tokens leave {length - context_tokens} of "
                f"the text tower's {length}. Shorten it, or use fewer context tokens."
            )
