"""How models of one's own are trained: AdamW step by step, and the time it takes."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from privaudit.core.errors import ConfigError, TrainingError

LARGEST_LOGIT_SCALE = 100.0
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
    def warmup(self) -> int:
        """Steps of linear rise to it; then it falls as a cosine to 0."""
        ...

    @property
    def weight_decay(self) -> float:
        """Of AdamW, on matrices and kernels only."""
        ...


def descend(
    model: nn.Module,
    settings: DescentSettings,
    next_loss: Callable[[], Float[Tensor, ""]],
    betas: tuple[float, float] = (0.9, 0.98),
    cosine: Callable[[float], float] = math.cos,
) -> Iterator[tuple[int, float]]:
    """Train with AdamW, gradients clipped to norm 1.

    Yields:
        Every step's number, from 1, and loss.
    """
    groups = _groups(model, settings)
    optimizer = torch.optim.AdamW(groups, settings.learning_rate, betas)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: _rate_share(step, settings, cosine)
    )
    for step in range(1, settings.steps + 1):
        optimizer.zero_grad()
        loss = next_loss()
        if not loss.isfinite():
            raise TrainingError(
                f"The loss of step {step} is {loss.item()}. Lower learning_rate, "
                f"which is {settings.learning_rate:g}."
            )
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        yield step, loss.item()


def _rate_share(
    step: int, settings: DescentSettings, cosine: Callable[[float], float]
) -> float:
    if step < settings.warmup:
        return (step + 1) / settings.warmup
    share = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    return 0.5 * (1 + cosine(math.pi * share))


@torch.no_grad()
def bound_logit_scale(scale: Tensor) -> None:
    """Clamp the logarithm of a temperature's inverse, as CLIP's training does."""
    scale.clamp_(0, math.log(LARGEST_LOGIT_SCALE))


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
            f"Pretraining for {minutes:g} minutes is impossible. Give more than 0, or "
            "a number of steps."
        )


def seconds_a_step(training: Iterator[object]) -> float:
    """Measure a training of :data:`TRIAL_STEPS` steps, without the slower first."""
    next(training)
    started = time.monotonic()
    deque(training, maxlen=0)
    return (time.monotonic() - started) / (TRIAL_STEPS - 1)
