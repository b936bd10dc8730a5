"""How the embedded models are trained: AdamW step by step, and the time it takes."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from privaudit.core.errors import ConfigError, TrainingError

TRIAL_STEPS = 6
"""Of a training for :func:`seconds_a_step`, the slower first one among them."""


@runtime_checkable
class DescentSettings(Protocol):
    """What of a model's settings the steps depend on."""

    @property
    def steps(self) -> int:
        """Number of batches."""
        ...

    @property
    def learning_rate(self) -> float:
        """Largest learning rate."""
        ...

    @property
    def weight_decay(self) -> float:
        """Of AdamW, on matrices and kernels only."""
        ...


def descend(
    model: nn.Module,
    settings: DescentSettings,
    rate_share: Callable[[int], float],
    next_loss: Callable[[], Float[Tensor, ""]],
) -> Iterator[tuple[int, float]]:
    """Train with AdamW, gradients clipped to norm 1.

    Args:
        model: In training mode.
        settings: How to train.
        rate_share: From a step, from 0, to its share of the largest learning rate.
        next_loss: Draws a batch and says the model's loss on it.

    Yields:
        Every step's number, from 1, and loss.

    Raises:
        TrainingError: When the loss is not finite.
    """
    groups = _groups(model, settings)
    optimizer = torch.optim.AdamW(groups, settings.learning_rate, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_share)
    for step in range(1, settings.steps + 1):
        optimizer.zero_grad()
        loss = next_loss()
        if not loss.isfinite():
            raise TrainingError(
                f"The loss of step {step} is {loss.item()}; the last checkpoint is "
                f"kept. Lower learning_rate, which is {settings.learning_rate}."
            )
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        yield step, loss.item()


def _groups(model: nn.Module, settings: DescentSettings) -> list[dict[str, object]]:
    """Split the parameters into those that decay and those that do not."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    return [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]


def require_time(minutes: float) -> None:
    """Refuse to train for no time.

    Raises:
        ConfigError: When the time is not above 0.
    """
    if not 0 < minutes <= 10**6:
        raise ConfigError(
            f"Pretraining for {minutes} minutes is impossible. Give more than 0, or "
            "a number of steps."
        )


def seconds_a_step(training: Iterator[object]) -> float:
    """Measure a training of :data:`TRIAL_STEPS` steps, without the slower first."""
    next(training)
    started = time.monotonic()
    deque(training, maxlen=0)
    return (time.monotonic() - started) / (TRIAL_STEPS - 1)
