"""Greedy decoding with a cache of keys and values, for many prompts at once."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

_PROMPTS_AT_ONCE = 256  # of all models together; bounds the cache


@dataclass(frozen=True)
class PromptGroup:
    """Prompts of one length, as many for each model.

    Attributes:
        length: Tokens of each.
        source: Which prompt, counted through all rows of all models.
        real: False where a model has fewer such prompts than another, and one that it
            need not answer stands in.
    """

    length: int
    source: Int[Tensor, "k m"]
    real: Bool[Tensor, "k m"]

    def owners(self, rows: int) -> Iterator[tuple[int, int, int]]:
        """Yield (place in the group, model, row) of each prompt that is real."""
        for place in self.real.flatten().nonzero()[:, 0].tolist():
            yield place, *divmod(int(self.source.flatten()[place]), rows)


def prompt_groups(lengths: Int[Tensor, "k rows"]) -> Iterator[PromptGroup]:
    """Yield groups in which each prompt is once; prompts without tokens are in none."""
    models, rows = lengths.shape
    numbers = torch.arange(models * rows, device=lengths.device).view(models, rows)
    at_once = max(1, _PROMPTS_AT_ONCE // models)
    for length in sorted(set(lengths[lengths > 0].tolist())):
        by_model = [numbers[i][lengths[i] == length] for i in range(models)]
        stand_in = torch.cat(by_model)[0]
        width = max(map(len, by_model))
        source = stand_in.repeat(models, width)
        real = torch.zeros_like(source, dtype=torch.bool)
        for i, prompts in enumerate(by_model):
            source[i, : len(prompts)], real[i, : len(prompts)] = prompts, True
        for chunk, which in zip(
            source.split(at_once, 1), real.split(at_once, 1), strict=True
        ):
            yield PromptGroup(length, chunk, which)


def greedy(
    run: Callable[[Tensor, Any], Any],
    embed: Callable[[Tensor], Tensor],
    prompts: Float[Tensor, "n length width"] | Int[Tensor, "n length"],
    ends: Collection[int],
    longest: int,
) -> list[list[int]]:
    """Return the likeliest token after each prompt, and after that, until the end.

    Args:
        run: From embedded tokens and the cache of those before them to the model's
            output. A model that returns no cache gets all tokens anew.
        embed: From token numbers to embedded tokens.
        prompts: Embedded, or as numbers where ``run`` embeds, of one length and so
            without padding.
        ends: Tokens that end an answer; the first one is part of it.
        longest: Tokens at most.
    """
    fresh, cache, said = prompts, None, []
    stops = torch.tensor(sorted(ends), device=prompts.device)
    done = torch.zeros(len(prompts), dtype=torch.bool, device=prompts.device)
    for _ in range(longest):
        output = run(fresh, cache)
        cache = output.past_key_values
        likeliest = output.logits[:, -1].argmax(dim=-1)
        said.append(likeliest)
        done = done | torch.isin(likeliest, stops)
        if done.all():
            break
        following = embed(likeliest[:, None])
        fresh = following if cache is not None else torch.cat([fresh, following], 1)
    rows = torch.stack(said, dim=1).tolist()
    lasts = [
        next((n for n, i in enumerate(row) if i in ends), len(row)) for row in rows
    ]
    return [row[: last + 1] for row, last in zip(rows, lasts, strict=True)]
