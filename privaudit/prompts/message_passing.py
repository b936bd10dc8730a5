"""FedAMP's attentive message passing: who is alike, pulls each other more."""

import torch
from jaxtyping import Float
from torch import Tensor


def attention(
    own: Float[Tensor, " size"],
    others: Float[Tensor, "others size"],
    alpha: float,
    sigma: float,
) -> Float[Tensor, " others"]:
    """Return xi_ij = alpha A'(|w_i - w_j|^2), with A'(x) = exp(-x / sigma) / sigma.

    Source: Huang et al., "Personalized cross-silo federated learning on non-IID data",
    AAAI 2021, algorithm 1, with A(x) = 1 - exp(-x / sigma).

    Args:
        own: w_i, flat.
        others: Every w_j but w_i itself.
        alpha: The server's step, above 0.
        sigma: Of squared distances, above 0.
    """
    squares = (others - own).square().sum(dim=1)
    return alpha * torch.exp(-squares / sigma) / sigma


def pass_messages(
    own: Float[Tensor, " size"],
    others: Float[Tensor, "others size"],
    alpha: float,
    sigma: float,
) -> Float[Tensor, " size"]:
    """Return u_i = (1 - sum_j xi_ij) w_i + sum_j xi_ij w_j, over all others j.

    A mean of prompts as long as the attention sums to at most 1, which is certain if
    alpha times the number of others is at most sigma.
    """
    weights = attention(own, others, alpha, sigma)
    return own + weights @ (others - own)
