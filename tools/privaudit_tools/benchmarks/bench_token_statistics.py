"""Time and memory of the token statistics against a loop over tokens and orders.

Run by ``make bench``, on the logits of 576 tokens (a picture as LLaVA reads it) and
32,000 words. The loop is the published way: each token's distribution is made in
float64, as clamping at 1 - 1e-10 needs, and each order of each statistic is taken by
itself. The same loop in float32 says what the precision is worth. Time is compared in
one process; memory in one of its own, by the largest resident size that Linux counted.
"""

import math
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from privaudit.models.token_table import ALPHAS, token_statistics
from privaudit_tools.benchmarks.measuring import Timed, machine, spread, timed

TOKENS, VOCABULARY = 576, 32_000
PASSES, ENOUGH = 5, 144  # the loop reads this many of the tokens, and is scaled up
TARGET, MEMORY_TARGET = 15, 2
CLAMP = 1e-10

MEMORY = """
from pathlib import Path
import torch
from privaudit.models.token_table import token_statistics
torch.set_num_threads(1)
def largest():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(l.split()[1]) for l in lines if l.startswith("VmHWM")) * 1024
token_statistics(torch.randn(2, {vocabulary}), torch.zeros(2, dtype=torch.int64))
before = largest()
logits = torch.randn({tokens}, {vocabulary}, dtype=torch.{dtype})
with_logits = largest()
token_statistics(logits, torch.zeros({tokens}, dtype=torch.int64))
print(logits.nbytes, with_logits - before, largest() - before)
"""


def test_statistics_against_a_loop_over_tokens() -> None:
    header = machine()
    logits, targets = draw()
    token_statistics(logits[:64], targets[:64])  # the first pass sets up memory
    rows = []
    for _ in range(PASSES):
        fast = timed(partial(token_statistics, logits, targets))
        rows.append((fast, *[looped(logits, targets, d) for d in DTYPES]))
    print(f"\n{header}\n{TOKENS} tokens, {VOCABULARY:,} words, float32 logits")
    print(f"one pass over blocks: {spread([row[0].seconds for row in rows])} s")
    for column, name in enumerate(("float64, as published", "float32"), start=1):
        seconds = [row[column].seconds for row in rows]
        ratios = [row[column].seconds / row[0].seconds for row in rows]
        best = min(seconds) / min(row[0].seconds for row in rows)
        met = "reached" if best >= TARGET else "not reached"
        print(
            f"loop in {name}: {spread(seconds)} s, {spread(ratios)} times as long "
            f"({best:.3g} fastest against fastest); target {TARGET}: {met}"
        )
    assert_equal(rows[0][0].result, rows[0][1].result)


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="Linux counts the memory"
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_peak_memory(dtype: str) -> None:
    code = MEMORY.format(tokens=TOKENS, vocabulary=VOCABULARY, dtype=dtype)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    own, held, peak = map(int, done.stdout.split())
    print(
        f"\n{dtype}: logits {own / 2**20:.1f} MiB (resident {held / 2**20:.1f}); peak "
        f"with the statistics {peak / 2**20:.1f} MiB, {peak / own:.2f} times the "
        f"logits' own; target below {MEMORY_TARGET}"
    )
    assert peak < MEMORY_TARGET * own


def draw() -> tuple[Tensor, Tensor]:
    """Draw logits with the spread that language models have."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(TOKENS, VOCABULARY, generator=generator)
    return logits, torch.randint(0, VOCABULARY, (TOKENS,), generator=generator)


DTYPES = (torch.float64, torch.float32)


def looped(logits: Tensor, targets: Tensor, dtype: torch.dtype) -> Timed:
    """Time the loop over the first tokens, and scale to all."""
    found = timed(partial(loop, logits[:ENOUGH], targets[:ENOUGH], dtype))
    return Timed(found.seconds * TOKENS / ENOUGH, found.result)


def loop(logits: Tensor, targets: Tensor, dtype: torch.dtype) -> list[dict[str, float]]:
    """Take every token by itself."""
    return [
        of_token(row.to(dtype), int(y)) for row, y in zip(logits, targets, strict=True)
    ]


def of_token(row: Tensor, y: int) -> dict[str, float]:
    """Take every order of every statistic of one token by itself."""
    shares, logs = row.softmax(-1), row.log_softmax(-1)
    safe = shares.clamp(CLAMP, 1 - CLAMP)
    largest = logs.max()
    second = logs[logs != largest].max()
    mean = (shares * logs).sum()
    found = {
        "log likelihood": logs[y].item(),
        "mean": mean.item(),
        "deviation": ((shares * logs.square()).sum() - mean.square()).sqrt().item(),
        "log gap": (largest - second).item(),
        "gap": (largest.exp() - second.exp()).item(),
    }
    others = torch.cat([safe[:y], safe[y + 1 :]])
    for alpha in ALPHAS:
        found[f"entropy {alpha:g}"] = renyi(shares, logs, safe, alpha)
        if math.isfinite(alpha):
            found[f"modified {alpha:g}"] = modified(safe[y].item(), others, alpha)
    return found


def renyi(shares: Tensor, logs: Tensor, safe: Tensor, alpha: float) -> float:
    """Return one entropy of one token."""
    if alpha == 1:
        return -(shares * logs).sum().item()
    if alpha == math.inf:
        return -logs.max().item()
    return safe.pow(alpha).sum().log().item() / (1 - alpha)


def modified(known: float, others: Tensor, alpha: float) -> float:
    """Return one modified entropy of one token."""
    if alpha == 1:
        logs = (others * (1 - others).log()).sum().item()
        return -(1 - known) * math.log(known) - logs
    b = abs(alpha - 1)
    rest = (others * (1 - others).pow(b)).sum().item() - others.sum().item()
    return -((1 - known) * known**b - (1 - known) + rest) / b


def assert_equal(found: dict[str, Tensor], expected: list[dict[str, float]]) -> None:
    """Compare with the loop in float64, whose clamp moves them by a few millionths."""
    for name, values in found.items():
        right = torch.tensor([row[name] for row in expected])
        torch.testing.assert_close(values[:ENOUGH], right, rtol=1e-4, atol=1e-4)
