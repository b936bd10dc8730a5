"""How much of the processor's speed at matrix products the text path reaches.

Run by ``make bench``, on ViT-B-16's text tower with 100 classes. The peak is the best
of square products of several sizes, taken anew around each pass, in the same process.
Counted are the products of linear layers, by torch, and the count is checked by hand;
those of fused attention are not.
"""

from functools import partial
from statistics import median

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from privaudit.models.clip.shared_prefix import SharedPrefixText
from privaudit.models.clip.text_tower import text_tower
from privaudit_tools.benchmarks.measuring import (
    CONTEXT_TOKENS,
    class_tokens,
    machine,
    random_clip,
    spread,
    timed,
)

PROMPTS = 10
PASSES = 4
SIZES = (512, 1024, 1536, 2048)
TARGET = 0.7


def test_share_of_the_matrix_product_peak() -> None:
    header = machine()
    clip = random_clip()
    tower, tokens = text_tower(clip.clip), class_tokens(clip)
    encode = SharedPrefixText(tower, tokens)
    rows, classes = len(encode._packing.whose), len(tokens.ids)
    with FlopCounterMode(display=False) as counter:
        one_pass(encode)  # and the first pass sets up memory
    counted = counter.get_total_flops()
    assert counted == products_by_hand(rows, classes, clip.width, clip.dim)
    print(f"\n{header}\nViT-B-16 text tower, {PROMPTS} contexts, {classes} classes")
    print(f"linear layers of a forward and backward pass: {counted / 1e9:.1f} GFLOP")
    report(encode, counted)


def report(encode: SharedPrefixText, counted: int) -> None:
    peaks, speeds, shares = [], [], []
    for _ in range(PASSES):
        before, seconds, after = (
            peak(),
            timed(partial(one_pass, encode)).seconds,
            peak(),
        )
        peaks += [before, after]
        speeds.append(counted / seconds)
        shares.append(speeds[-1] / max(before, after))
    met = "reached" if median(shares) >= TARGET else "not reached"
    print(
        "\n| square products, GFLOP/s | text path, GFLOP/s | share | "
        f"target {TARGET:g} |\n|---|---|---|---|\n"
        f"| {spread([p / 1e9 for p in peaks])} | {spread([s / 1e9 for s in speeds])} "
        f"| {spread(shares)} | {met} |"
    )


def one_pass(encode: SharedPrefixText) -> Tensor:
    """Run forward, and backward to the contexts."""
    generator = torch.Generator().manual_seed(0)
    shape = (PROMPTS, CONTEXT_TOKENS, encode.tower.width)
    contexts = (0.02 * torch.randn(shape, generator=generator)).requires_grad_()
    features = encode(contexts)
    behind = torch.randn(features.shape, generator=generator)
    return torch.autograd.grad(features, contexts, behind)[0]


def peak() -> float:
    """Return the speed of the fastest square product, in products and sums a second."""
    best = 0.0
    for size in SIZES:
        left, right = torch.randn(2, size, size)
        for _ in range(3):
            seconds = timed(partial(torch.mm, left, right)).seconds
            best = max(best, 2 * size**3 / seconds)
    return best


def products_by_hand(
    rows: int, classes: int, width: int, dim: int, layers: int = 12
) -> int:
    """Count what linear layers multiply and add in a pass, from the shapes alone.

    A row costs 2 · inputs · outputs, and the same again backward, as frozen weights
    have no gradient.
    """
    linear = 2 * width**2
    projections = 12 * rows * linear  # 3 + 1 + 4 + 4 widths by width
    last = (2 * rows + 10 * classes) * linear  # keys, values of all tokens
    forward = (layers - 1) * projections + last + 2 * classes * width * dim
    return PROMPTS * 2 * forward
