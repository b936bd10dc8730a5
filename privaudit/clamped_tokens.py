"""Token statistics as they were published: on clamped probabilities."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

Rows = Float[Tensor, " rows"]


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
