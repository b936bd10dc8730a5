"""What next-token distributions give away: Renyi entropies and their relatives.

One pass over the logits gives every statistic of every position. The rows are taken a
few at a time, so that memory does not grow with their number, and what is worked on
stays in the processor's cache.

Sources: Renyi entropies of tokens, and the modified ones: Li et al., "Membership
inference attacks against large vision-language models", NeurIPS 2024. Mean
and deviation of log p: Zhang et al., "Min-K%++", ICLR 2025.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.models.next_tokens import NextTokens, Rows


class ClampedTokens:
    """Next-token distributions whose probabilities are held in [clamp, 1 - clamp].

    In float64: in float32 the upper end would be 1. What is clamped sums to more than
    1, so a row with all its weight on one of 32,000 tokens has H_0.5 = 0.555, not 0.
    Shannon's and the min-entropy were published without.

    Source: the code beside Li et al., NeurIPS 2024.
    """

    def __init__(self, logits: Float[Tensor, "rows vocabulary"], clamp: float) -> None:
        self._logits = logits.double()
        shares = self._logits.softmax(-1)
        self._shares = shares.clamp_(clamp, 1 - clamp)

    def renyi(self, alpha: float) -> Rows:
        """Return H_alpha, for a finite alpha other than 1."""
        return self._shares.pow(alpha).sum(-1).log() / (1 - alpha)

    def modified(self, tokens: Int[Tensor, " rows"], alpha: float) -> Rows:
        """Return the modified entropy of a finite alpha, for a token of each row."""
        power, known = abs(alpha - 1), tokens[:, None]
        share = self._shares.gather(1, known)
        missed = 1 - self._shares
        terms = -missed.log() if power == 0 else (1 - missed.pow(power)) / power
        others = (self._shares * terms).scatter(1, known, 0).sum(-1)
        of_known = -share.log() if power == 0 else (1 - share.pow(power)) / power
        return ((1 - share) * of_known)[:, 0] + others

    def log_gap(self) -> Rows:
        """Return the lead over the second *distinct* log-probability; 0 without one."""
        top = self._logits.amax(-1, keepdim=True)
        below = self._logits.masked_fill(self._logits == top, -math.inf).amax(-1)
        return torch.where(below > -math.inf, top[:, 0] - below, 0.0)


ALPHAS = (0.5, 1.0, 2.0, math.inf)
IGNORED = -100  # the target where none is to be scored
CPU_BLOCK, DEVICE_BLOCK = 2**19, 2**24  # entries: what fits caches, or fills a device
PLAIN = ("log likelihood", "mean", "deviation", "gap", "log gap")
OF_TARGETS = ("log likelihood", "modified")


@dataclass(frozen=True)
class TokenStatistics:
    """Statistics of the next-token distribution p at every position; natural logs.

    What needs the target y is NaN where there is none.

    Attributes:
        entropies: By alpha, log(sum p^alpha) / (1 - alpha), in [0, log vocabulary]: 1
            is Shannon's, infinity -log max p.
        modified: By finite alpha: low where y is likely. With b = |alpha - 1| it is
            ((1 - p_y)(1 - p_y^b) + sum_{j != y} p_j (1 - (1 - p_j)^b)) / b, and for
            1 its limit -(1 - p_y) log p_y - sum_{j != y} p_j log(1 - p_j).
        log_likelihood: log p_y, in [-inf, 0].
        mean: Of log p under p: minus Shannon's entropy.
        deviation: Of log p under p; 0 where p is uniform on the tokens that can come.
        gap: Largest minus second largest probability, in [0, 1].
        log_gap: The same of their logarithms, at most 10,000.
    """

    entropies: Mapping[float, Float[Tensor, "*n positions"]]
    modified: Mapping[float, Float[Tensor, "*n positions"]]
    log_likelihood: Float[Tensor, "*n positions"]
    mean: Float[Tensor, "*n positions"]
    deviation: Float[Tensor, "*n positions"]
    gap: Float[Tensor, "*n positions"]
    log_gap: Float[Tensor, "*n positions"]

    def to_signals(self) -> dict[str, Tensor]:
        """Return the same by name: "entropy 0.5", "modified 1", "log gap" and so on."""
        return {
            **{
                f"entropy {alpha:g}": values for alpha, values in self.entropies.items()
            },
            **{
                f"modified {alpha:g}": values for alpha, values in self.modified.items()
            },
            **{name: getattr(self, name.replace(" ", "_")) for name in PLAIN},
        }

    @classmethod
    def from_signals(cls, signals: Mapping[str, Tensor]) -> "TokenStatistics":
        """Put together what ``to_signals`` took apart; other names are left alone."""
        return cls(
            _by_alpha("entropy", signals),
            _by_alpha("modified", signals),
            **{name.replace(" ", "_"): signals[name] for name in PLAIN},
        )

    @classmethod
    def signals(cls, alphas: Sequence[float] = ALPHAS) -> tuple[str, ...]:
        """Return the names that ``to_signals`` gives."""
        return (
            *(f"entropy {alpha:g}" for alpha in alphas),
            *(f"modified {alpha:g}" for alpha in alphas if math.isfinite(alpha)),
            *PLAIN,
        )


def _by_alpha(name: str, signals: Mapping[str, Tensor]) -> dict[float, Tensor]:
    pairs = ((key.partition(" "), tensor) for key, tensor in signals.items())
    return {float(alpha): tensor for (head, _, alpha), tensor in pairs if head == name}


@torch.no_grad()
def token_statistics(
    logits: Float[Tensor, "*n positions vocabulary"],
    targets: Int[Tensor, "*n positions"],
    alphas: Sequence[float] = ALPHAS,
    clamp: float | None = None,
    block: int | None = None,
) -> TokenStatistics:
    """Return the statistics of every position, in one pass and without gradients.

    In float64 for float64 logits, else in float32.

    Args:
        logits: Of the next token; -inf where a token cannot come, but not everywhere.
        targets: The tokens that came; ``IGNORED`` where none is to be scored.
        alphas: Orders of the entropies, at least 0.01; 1 or at least 0.01 off it.
        clamp: 1e-10 gives what was published, see
            :class:`privaudit.models.token_statistics.ClampedTokens`; None is exact.
        block: Entries of the logits worked on at once, and at least one row; None fits
            the machine. Three blocks are held beside the logits.

    Raises:
        ConfigError: An alpha that has no usable formula, or a target that is no token.
    """
    alphas = tuple(map(float, alphas))
    _check(alphas, targets, logits.shape[-1])
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    if block is None:
        block = CPU_BLOCK if logits.device.type == "cpu" else DEVICE_BLOCK
    flat, known = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
    statistics = {
        name: logits.new_empty(len(flat), dtype=dtype)
        for name in TokenStatistics.signals(alphas)
    }
    for chunk, signals in _blocks(flat, known, alphas, dtype, block):
        if clamp is not None:
            tokens = known[chunk].clamp(min=0)
            signals |= _clamped(ClampedTokens(flat[chunk], clamp), tokens, alphas)
        for name, values in signals.items():
            statistics[name][chunk] = values
    for name in statistics:
        if name.startswith(OF_TARGETS):
            statistics[name][known == IGNORED] = math.nan
    shaped = {name: values.view(targets.shape) for name, values in statistics.items()}
    return TokenStatistics.from_signals(shaped)


def _check(alphas: Sequence[float], targets: Tensor, vocabulary: int) -> None:
    for alpha in alphas:
        if not (alpha == 1 or (alpha >= 0.01 and abs(alpha - 1) >= 0.01)):
            raise ConfigError(
                f"A Renyi entropy of order {alpha:g} was requested. Use 1, or an "
                "order of at least 0.01 that is at least 0.01 away from 1."
            )
    wrong = (targets != IGNORED) & ((targets < 0) | (targets >= vocabulary))
    if wrong.any():
        raise ConfigError(
            f"A target is token {int(targets[wrong][0])}, and the vocabulary has "
            f"{vocabulary}, counted from 0. Write {IGNORED} where there is no target."
        )


def _blocks(
    logits: Tensor,
    targets: Tensor,
    alphas: Sequence[float],
    dtype: torch.dtype,
    block: int,
) -> Iterator[tuple[slice, dict[str, Tensor]]]:
    """Yield which rows, and their statistics; the space to work in is used again."""
    rows = min(len(logits), max(1, block // logits.shape[1]))
    space = logits.new_empty((3, rows, logits.shape[1]), dtype=dtype)
    for first in range(0, len(logits), rows or 1):
        chunk = slice(first, first + rows)
        part = logits[chunk].to(dtype)
        tokens = targets[chunk].clamp(min=0)
        yield chunk, _exact(NextTokens(part, space[:, : len(part)]), tokens, alphas)


def _exact(p: NextTokens, tokens: Tensor, alphas: Sequence[float]) -> dict[str, Tensor]:
    finite = [alpha for alpha in alphas if math.isfinite(alpha)]
    modified = zip(finite, p.modified(tokens, finite), strict=True)
    mean, deviation = p.moments()
    gap, log_gap = p.gaps()
    return {
        **{f"entropy {a:g}": -mean if a == 1 else p.renyi(a) for a in alphas},
        **{f"modified {alpha:g}": values for alpha, values in modified},
        "log likelihood": p.log_likelihood(tokens),
        "mean": mean,
        "deviation": deviation,
        "gap": gap,
        "log gap": log_gap,
    }


def _clamped(
    p: ClampedTokens, tokens: Tensor, alphas: Sequence[float]
) -> dict[str, Tensor]:
    finite = [alpha for alpha in alphas if math.isfinite(alpha)]
    return {
        **{f"entropy {alpha:g}": p.renyi(alpha) for alpha in finite if alpha != 1},
        **{f"modified {alpha:g}": p.modified(tokens, alpha) for alpha in finite},
        "log gap": p.log_gap(),
    }
