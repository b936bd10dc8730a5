"""Slips that would be audited in silence: a mask given as scores, a model in training.

What is refused is what hardly anybody means; whoever does is told how to say so.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped

from privaudit.core.errors import ConfigError

ASKED = 5  # records that are scored twice


def refuse_mask(
    first: Shaped[np.ndarray, "..."], second: Shaped[np.ndarray, "..."]
) -> None:
    """Refuse scores and what says who is a member, where two kinds of scores are wanted.

    A mask has as many entries as the scores, and two whole numbers among them: 0 and 1,
    1 and -1, 1 and 2. Positions are distinct whole numbers below that many. The scores
    are of another kind: fractions, or numbers beside a mask of truths. Scores of
    attacks on labels alone are two numbers, too, but then those of both arguments are;
    and counts are whole in both.
    """
    for said, scores, which in ((second, first, "second"), (first, second, "first")):
        if not (is_mask := _is_mask(said, scores)) and not _are_positions(said, scores):
            continue
        kind = "two numbers alone, one for each" if is_mask else "positions in"
        looks = "a mask of members" if is_mask else "a list of members"
        raise ConfigError(
            f"The {which} argument holds {kind} of the {len(scores)} numbers of the "
            f"other: it looks like {looks}, and members' scores and non-members' are "
            "wanted. Say from_scores(scores[mask], scores[~mask]), with a mask of "
            "truths. If both are scores, add 0.5 to all of them, which changes no "
            "result."
        )


def _is_mask(
    said: Shaped[np.ndarray, "..."], scores: Shaped[np.ndarray, "..."]
) -> bool:
    if said.shape != scores.shape or len(np.unique(said)) != 2 or _broken(said):
        return False
    if said.dtype == bool and scores.dtype != bool:
        return True
    return len(np.unique(scores)) > 2 and _broken(scores)


def _are_positions(
    said: Shaped[np.ndarray, "..."], scores: Shaped[np.ndarray, "..."]
) -> bool:
    """Say whether they are some, three or more, of as many places as there are scores."""
    if said.dtype == bool or not 3 <= said.size < scores.size or _broken(said):
        return False
    is_distinct = len(np.unique(said)) == said.size
    is_within = said.min() >= 0 and said.max() < scores.size
    return bool(is_distinct and is_within and _broken(scores))


def _broken(numbers: Shaped[np.ndarray, "..."]) -> bool:
    """Say whether there are fractions among them."""
    as_floats = np.asarray(numbers, dtype=float)
    return bool((as_floats != np.floor(as_floats)).any())


def refuse_training(score: Callable[[Any], float], records: Iterable[Any]) -> None:
    """Refuse a scoring function of a model in training mode, whose answers are drawn.

    A module in training mode without such layers answers as it always does; so it is
    asked twice, too.

    Raises:
        ConfigError: The function reaches such a module.
    """
    training = [module for module in _modules(score) if module.training]
    drawn = [name for module in training for name in _drawn(module)]
    if training and not drawn:
        few = list(islice(records, ASKED))
        twice = [[float(score(one)) for one in few] for _ in range(2)]
        drawn = ["its scores"] * (twice[0] != twice[1])
    if drawn:
        kind = type(training[0]).__name__
        raise ConfigError(
            f"The scores are of a model ({kind}) in training mode, in which {drawn[0]} "
            "differ from call to call or with the rest of the batch. Call its .eval() "
            "before the audit."
        )


def _drawn(module: torch.nn.Module) -> Iterator[str]:
    """Yield layers that answer otherwise in training, in words."""
    nn = torch.nn.modules
    for layer in module.modules():
        odds = getattr(
            layer, "p" if isinstance(layer, nn.dropout._DropoutNd) else "dropout", 0
        )
        is_normed = isinstance(layer, nn.batchnorm._BatchNorm)
        if layer.training and (is_normed or (isinstance(odds, float) and odds > 0)):
            yield f"the outputs of {type(layer).__name__}"


def _modules(score: Any, depth: int = 3) -> Iterator[torch.nn.Module]:
    """Yield modules that a function is, holds, or names, not those of its modules."""
    if isinstance(score, torch.nn.Module):
        yield score
    elif depth:
        for part in _parts(score):
            yield from _modules(part, depth - 1)


def _parts(score: Any) -> Iterator[Any]:
    if isinstance(score, functools.partial):
        yield from (score.func, *score.args, *score.keywords.values())
    yield getattr(score, "__self__", None)
    yield getattr(score, "__wrapped__", None)
    code = getattr(score, "__code__", None)
    if code is None:
        return
    for cell in score.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not yet filled
            continue
    yield from (score.__globals__.get(name) for name in code.co_names)
