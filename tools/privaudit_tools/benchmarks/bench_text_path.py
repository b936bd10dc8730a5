"""Time of the text path against open_clip's own tower, in one process.

Run by ``make bench``. It never fails for being slow, only for being wrong. It runs on
one thread, because several wait for one another whenever something else runs on the
machine, and the shorter side waits more often; BENCH_THREADS=2 is for a quiet machine.
"""

import os
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from privaudit.models.clip.promptable_clip import ClassPrompts
from privaudit.models.clip.text_tower import plain_prompt_features
from privaudit_tools.benchmarks.measuring import (
    CONTEXT_TOKENS,
    class_tokens,
    random_clip,
    spread,
)

PLAIN_PASSES = 2
FAST_PASSES_EACH = 6


class Pass(NamedTuple):
    """One forward and backward pass."""

    seconds: float
    features: Tensor
    gradient: Tensor


def test_text_path_against_open_clips_own_tower() -> None:
    whole = random_clip()
    clip, tokens = whole.clip, class_tokens(whole)
    float32 = ClassPrompts(clip, tokens)
    bfloat16 = ClassPrompts(clip, tokens, "bfloat16")

    def plain(contexts: Tensor) -> Tensor:
        return normalize(plain_prompt_features(clip, tokens, contexts), dim=-1)

    load = os.getloadavg()[0]
    timed(float32), timed(bfloat16)  # the first pass sets up memory and threads
    rows = []
    for _ in range(PLAIN_PASSES):
        slow = timed(plain)
        rows += [
            (slow, timed(float32), timed(bfloat16)) for _ in range(FAST_PASSES_EACH)
        ]
    report(load, rows)
    slow, exact, rounded = rows[-1]
    assert (exact.features - slow.features).abs().max() < 1e-5
    assert relative(exact.gradient, slow.gradient) < 1e-4
    assert (rounded.features - slow.features).abs().max() < 0.01
    assert relative(rounded.gradient, slow.gradient) < 0.05


def timed(encode: Callable[[Tensor], Tensor]) -> Pass:
    """Run forward and backward to the context, always on the same numbers."""
    generator = torch.Generator().manual_seed(0)
    contexts = 0.02 * torch.randn(1, CONTEXT_TOKENS, 512, generator=generator)
    contexts.requires_grad_()
    start = perf_counter()
    features = encode(contexts)
    weights = torch.randn(features.shape, generator=generator)
    (gradient,) = torch.autograd.grad(features, contexts, weights)
    return Pass(perf_counter() - start, features.detach(), gradient)


def report(load: float, rows: list[tuple[Pass, Pass, Pass]]) -> None:
    """Print the ratios, and how far each precision is from the plain tower."""
    plain = [slow.seconds for slow, _, _ in rows]
    classes = rows[0][0].features.shape[1]
    print(
        f"\nViT-B-16 text tower, {classes} classes, {CONTEXT_TOKENS} context tokens, "
        f"forward + backward, threads: {torch.get_num_threads()}; load of the machine "
        f"before: {load:.1f}"
    )
    print(f"open_clip, {classes} texts of 77: {spread(plain)} s")
    for column, precision in [(1, "float32"), (2, "bfloat16")]:
        ratios = [row[0].seconds / row[column].seconds for row in rows]
        seconds = [row[column].seconds for row in rows]
        slow, fast = rows[-1][0], rows[-1][column]
        cosine = (slow.features * fast.features).sum(dim=-1).min()
        print(
            f"shared prefix, {precision}: {spread(seconds)} s, {spread(ratios)} times "
            f"as fast ({min(plain) / min(seconds):.3g} fastest against fastest, which "
            "other work on the machine disturbs least); features differ by at most "
            f"{(fast.features - slow.features).abs().max():.1e} (cosine at least "
            f"{cosine:.6f}), gradient by {relative(fast.gradient, slow.gradient):.1e}"
        )


def relative(found: Tensor, expected: Tensor) -> float:
    """Norm of the difference over the norm of what is expected."""
    return float((found - expected).norm() / expected.norm())
