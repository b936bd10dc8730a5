"""Noise that DP-FPL's paper asks for."""

import math

from privaudit.core.parameters import above_zero, at_least_one, probability


def noise_std_published(
    epsilon: float,
    delta: float,
    rounds: int,
    clip_norm: float,
    batch_size: int,
    clients: int,
) -> tuple[float, float]:
    """Return the standard deviations of DP-FPL's local and global noise, as published.

    sigma_L = sqrt(T ln(1/delta)) / epsilon * C / B, on the gradients of a batch mean;
    sigma_G = sigma_L / N, on their mean over clients. This is the paper's formula with
    its constant c = 1. It is no proof that training is private with that epsilon: an
    accountant says what is (:mod:`privaudit.privacy.certificate`).

    Source: Tran et al., "Privacy-preserving personalized federated prompt learning for
    multimodal large language models", ICLR 2025, theorem 3.3.

    Args:
        epsilon: The claim, above 0.
        delta: In (0, 1).
        rounds: T, how many rounds of one step, at least 1.
        clip_norm: C, above 0.
        batch_size: B, at least 1.
        clients: N, at least 1.

    Example:
        >>> local, over_clients = noise_std_published(0.4, 1e-5, 100, 10.0, 32, 10)
        >>> print(f"{local:.2f} {over_clients:.3f}")
        26.51 2.651
    """
    above_zero("epsilon", epsilon)
    probability("delta", delta)
    at_least_one("number of rounds", rounds)
    above_zero("clip norm", clip_norm)
    at_least_one("batch size", batch_size)
    at_least_one("number of clients", clients)
    local = math.sqrt(rounds * math.log(1 / delta)) / epsilon * clip_norm / batch_size
    return local, local / clients
