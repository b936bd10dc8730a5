"""Token tables: statistics of next-token distributions, of many records.

One pass over the logits gives every statistic of every position. The rows are taken a
few at a time, so that memory does not grow with their number, and what is worked on
stays in the processor's cache. The likeliest token is set apart, and what the others
have together, ``rest``, is summed without it. That keeps what a confident model says
exact: -log p has no digits left once p is rounded to 1, but -log1p(-rest) has all.

Sources: Renyi entropies of tokens, and the modified ones: Li et al., "Membership
inference attacks against large vision-language models", NeurIPS 2024. Mean
and deviation of log p: Zhang et al., "Min-K%++", ICLR 2025.

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

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from jaxtyping import Bool, Float, Int

from privaudit.core.errors import ConfigError
from privaudit.core.lazy_torch import Tensor, functional, torch
from privaudit.datasets.files.mapped_tensors import join_rows
from privaudit.datasets.records import (
    ANSWER,
    INSTRUCTION,
    PADDING,
    PICTURE,
    TokenSequences,
)

FLOOR = -1e4  # log-odds against the likeliest token; exp gives 0 in every precision
WIDTHS = (256, 128, 64, 32)

Rows = Float[Tensor, " rows"]


class NextTokens:
    """The distributions p of a few positions, and what can be read off them.

    Attributes:
        likeliest: Index of the likeliest token, the first of several.
        top: Probability of ``likeliest``, in [0, 1].
        log_top: The logarithm, in full precision also where ``top`` is rounded to 1.
        rest: What all others have together, 1 - top.
    """

    def __init__(
        self,
        logits: Float[Tensor, "rows vocabulary"],
        space: Float[Tensor, "3 rows vocabulary"],
    ) -> None:
        """Take the logits, which stay as they are, and space to work in."""
        highest, self.likeliest = _largest(logits)
        self._logits, self._highest = logits, highest[:, 0]
        self._odds = torch.sub(logits, highest, out=space[0]).clamp_(min=FLOOR)
        self._others = torch.softmax(self._odds, -1, out=space[1])
        self._work = space[2]
        self.top = self._others.gather(1, self.likeliest)[:, 0]
        self._others.scatter_(1, self.likeliest, 0)
        self._odds.scatter_(1, self.likeliest, FLOOR)
        self._second = self._odds.amax(-1)
        self.rest = self._others.sum(-1)
        exact = self.rest < 0.5
        self.log_top = torch.where(exact, torch.log1p(-self.rest), self.top.log())

    def renyi(self, alpha: float) -> Rows:
        """Return H_alpha, for an alpha other than 1."""
        if alpha == math.inf:
            return -self.log_top
        if alpha == 2:
            others = torch.linalg.vector_norm(self._others, dim=-1) / self.top
            powers = others.square_()
        elif alpha == 0.5:
            others = torch.sqrt(self._others, out=self._work).sum(-1)
            powers = others / self.top.sqrt()
        else:
            powers = torch.mul(self._odds, alpha, out=self._work).exp_().sum(-1)
        return (alpha * self.log_top + powers.log1p()) / (1 - alpha)

    def moments(self) -> tuple[Rows, Rows]:
        """Return mean and standard deviation of log p under p."""
        weighted = torch.mul(self._others, self._odds, out=self._work)
        mean = weighted.sum(-1)
        variance = weighted.mul_(self._odds).sum(-1) - mean.square()
        return self.log_top + mean, variance.clamp_(min=0).sqrt_()

    def gaps(self) -> tuple[Rows, Rows]:
        """Return by how much the likeliest leads: in probability, in its logarithm."""
        return -self.top * self._second.expm1(), -self._second

    def log_likelihood(self, tokens: Int[Tensor, " rows"]) -> Rows:
        """Return log p of a token of each row; -inf where it cannot come."""
        chosen = self._logits.gather(1, tokens[:, None])[:, 0]
        return chosen - self._highest + self.log_top

    def modified(
        self, tokens: Int[Tensor, " rows"], alphas: Sequence[float]
    ) -> Iterator[Rows]:
        """Yield the modified entropy of each alpha, for a token y of each row.

        With b = |alpha - 1| and s(x) = (1 - x^b) / b, which is -log x for b = 0, it is
        (1 - p_y) s(p_y) + sum_{j != y} p_j s(1 - p_j).
        """
        known, log_likelihood = tokens[:, None], self.log_likelihood(tokens)
        is_top = self.likeliest[:, 0] == tokens
        missed = torch.where(is_top, self.rest, -log_likelihood.expm1())
        log_rest = torch.where(
            self.rest > 0, self.rest.log(), self.log_top + self._second
        )
        share = self._others.gather(1, known)
        self._others.scatter_(1, known, 0)
        for alpha in alphas:
            power = abs(alpha - 1)
            of_known = missed * _surprise(log_likelihood, power)
            of_top = self.top * _surprise(log_rest, power)
            yield of_known + of_top.masked_fill(is_top, 0) + self._of_others(power)
        self._others.scatter_(1, known, share)

    def _of_others(self, power: float) -> Rows:
        """Return the sum of p s(1 - p) over all but the likeliest and the known."""
        others, work = self._others, self._work
        if power == 1:
            return torch.linalg.vector_norm(others, dim=-1).square_()
        if power == 0:
            logs = torch.neg(others, out=work).log1p_()
            return -logs.mul_(others).sum(-1)
        missed = torch.sub(1, others, out=work)
        missed = missed.sqrt_() if power == 0.5 else missed.pow_(power)
        weighted = missed.mul_(others).sum(-1)
        return (others.sum(-1) - weighted).clamp_(min=0) / power


def _surprise(log: Rows, power: float) -> Rows:
    """Return (1 - x^power) / power from log x; -log x for 0."""
    return -(power * log).expm1() / power if power else -log


def _largest(
    rows: Float[Tensor, "rows vocabulary"],
) -> tuple[Float[Tensor, "rows 1"], Int[Tensor, "rows 1"]]:
    """Return each row's largest value and where it stands first.

    A maximum is found several times faster than its place: the place is looked for
    in the best of many pieces only.
    """
    count, length = rows.shape
    width = next((width for width in WIDTHS if length % width == 0), length)
    pieces = rows.view(count, length // width, width)
    best = pieces.amax(-1).argmax(-1)
    value, place = pieces[torch.arange(count, device=rows.device), best].max(-1)
    return value[:, None], (best * width + place)[:, None]


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

    @classmethod
    def from_signals(cls, signals: Mapping[str, Tensor]) -> "TokenStatistics":
        """Put together what :func:`token_statistics` gives; leave other names."""
        return cls(
            _by_alpha("entropy", signals),
            _by_alpha("modified", signals),
            **{name.replace(" ", "_"): signals[name] for name in PLAIN},
        )

    @classmethod
    def signals(cls, alphas: Sequence[float] = ALPHAS) -> tuple[str, ...]:
        """Return the names of all: "entropy 0.5", "modified 1", "log gap" and so on."""
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
) -> dict[str, Float[Tensor, "*n positions"]]:
    """Return the statistics of every position, in one pass and without gradients.

    They are by name: see :meth:`TokenStatistics.signals`.

    In float64 for float64 logits, else in float32. Where layers are watched, through
    which gradients flow, the log-likelihood alone: the others are NaN, and no entropies.

    Args:
        logits: Of the next token; -inf where a token cannot come, but not everywhere.
        targets: The tokens that came; ``IGNORED`` where none is to be scored.
        alphas: Orders of the entropies, at least 0.01; 1 or at least 0.01 off it; six
            digits name them, by which they have to differ.
        clamp: 1e-10 gives what was published, see
            :class:`ClampedTokens`; None is exact.
        block: Entries of the logits worked on at once, and at least one row; None fits
            the machine. Three blocks are held beside the logits.

    Raises:
        ConfigError: An alpha that has no usable formula, two of one name, or a target
            that is no token.
    """
    alphas = tuple(map(float, alphas))
    _check(alphas, targets, logits.shape[-1])
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    if block is None:
        block = CPU_BLOCK if logits.device.type == "cpu" else DEVICE_BLOCK
    flat, known = logits.data.reshape(-1, logits.shape[-1]), targets.reshape(-1)
    if torch.is_grad_enabled() and logits.requires_grad:
        shaped = {
            name: torch.full_like(targets, math.nan, dtype=dtype) for name in PLAIN
        }
        is_known = targets != IGNORED
        logs = logits[is_known].to(dtype).log_softmax(dim=-1)
        likely = logs.gather(1, targets[is_known].unsqueeze(1))[:, 0]
        shaped["log likelihood"] = shaped["mean"].masked_scatter(is_known, likely)
        return shaped
    statistics = {
        name: flat.new_empty(len(flat), dtype=dtype)
        for name in TokenStatistics.signals(alphas)
    }
    rows = min(len(flat), max(1, block // flat.shape[1]))
    space = flat.new_empty((3, rows, flat.shape[1]), dtype=dtype)  # used again
    for first in range(0, len(flat), rows or 1):
        chunk = slice(first, first + rows)
        part, tokens = flat[chunk].to(dtype), known[chunk].clamp(min=0)
        signals = _exact(NextTokens(part, space[:, : len(part)]), tokens, alphas)
        if clamp is not None:
            signals |= _clamped(ClampedTokens(flat[chunk], clamp), tokens, alphas)
        for name, values in signals.items():
            statistics[name][chunk] = values
    for name in statistics:
        if name.startswith(OF_TARGETS):
            statistics[name][known == IGNORED] = math.nan
    return {name: values.view(targets.shape) for name, values in statistics.items()}


def _check(alphas: Sequence[float], targets: Tensor, vocabulary: int) -> None:
    for alpha in alphas:
        if not (alpha == 1 or (alpha >= 0.01 and abs(alpha - 1) >= 0.01)):
            raise ConfigError(
                f"A Renyi entropy of order {alpha:g} was requested. Use 1, or an "
                "order of at least 0.01 that is at least 0.01 away from 1."
            )
    if len({f"{alpha:g}" for alpha in alphas}) < len(set(alphas)):
        raise ConfigError(f"Two of the orders {alphas} have one name, of six digits.")
    wrong = (targets != IGNORED) & ((targets < 0) | (targets >= vocabulary))
    if wrong.any():
        raise ConfigError(
            f"A target is token {int(targets[wrong][0])}, and the vocabulary has "
            f"{vocabulary}, counted from 0. Write {IGNORED} where there is no target."
        )


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


TOKENS, CLAMPED_TOKENS = "tokens", "clamped tokens"
NO_STATISTICS = frozenset({TOKENS, "no statistics"})
"""What ``query`` may be asked for: exact, as published, or a run to watch layers in."""

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
        "kinds", and what :func:`token_statistics` gives, each [*n, length].
    """
    shape = logits.shape[:-1]
    kinds, following = words.kinds.expand(shape), _next(words.kinds, PADDING)
    if want == NO_STATISTICS:
        return {"kinds": kinds}
    ids = _next(words.ids, IGNORED)
    targets = torch.where(_is_any(following, WORDS), ids, IGNORED).expand(shape)
    clamp = PUBLISHED_CLAMP if CLAMPED_TOKENS in want else None
    return {"kinds": kinds, **token_statistics(logits, targets, ALPHAS, clamp)}


def joined_signals(
    chunks: Sequence[Mapping[str, Tensor]], model: int = 0
) -> dict[str, Tensor]:
    """Join what ``query`` yielded, for one of its models.

    Chunks may be cut to different lengths: the shorter are padded.
    """
    return join_rows([{n: t[model] for n, t in chunk.items()} for chunk in chunks])


def _next(values: Int[Tensor, "*n length"], last: int) -> Int[Tensor, "*n length"]:
    return functional.pad(values[..., 1:], (0, 1), value=last)


def _is_any(
    values: Int[Tensor, "*n length"], wanted: tuple[int, ...]
) -> Bool[Tensor, "*n length"]:
    return torch.isin(values, torch.tensor(wanted, device=values.device))


@dataclass(frozen=True)
class TokenTable:
    """What one model says about n records, token by token.

    Attributes:
        statistics: Of each position's next-token distribution.
        kinds: What each position's own token is; see :mod:`privaudit.datasets.records`.
    """

    statistics: TokenStatistics
    kinds: Int[Tensor, "n positions"]

    @classmethod
    def from_signals(
        cls, chunks: Sequence[Mapping[str, Tensor]], model: int = 0
    ) -> "TokenTable":
        """Return the table of what ``query`` yielded, for one of its models."""
        return cls.of(joined_signals(chunks, model))

    @classmethod
    def of(cls, joined: Mapping[str, Tensor]) -> "TokenTable":
        """Return the table of joined signals, by name."""
        return cls(TokenStatistics.from_signals(joined), joined["kinds"])

    def __len__(self) -> int:
        return len(self.kinds)

    def entropy(self, alpha: float) -> Float[Tensor, "n positions"]:
        """Return the entropies of one order."""
        return _of_order(alpha, self.statistics.entropies)

    def modified(self, alpha: float) -> Float[Tensor, "n positions"]:
        """Return the modified entropies of one order."""
        return _of_order(alpha, self.statistics.modified)

    def scored(
        self, part: Slice, all_positions: bool = False, *, needs_target: bool = False
    ) -> Bool[Tensor, "n positions"]:
        """Return where a slice is scored: see the top of this module.

        Args:
            part: Which positions of a record are meant.
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


def _of_order(alpha: float, found: Mapping[float, Tensor]) -> Tensor:
    if alpha not in found:
        orders = ", ".join(f"{order:g}" for order in found)
        raise ConfigError(
            f"An entropy of order {alpha:g} was requested, but there are those of "
            f"{orders}. Take one of these."
        )
    return found[alpha]
