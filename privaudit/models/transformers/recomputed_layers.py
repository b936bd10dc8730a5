"""Gradient checkpointing: layers keep their inputs only, and run again for the gradient.

Source of the method: Chen, Xu, Zhang, Guestrin, "Training deep nets with sublinear
memory cost", 2016, section 3.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from privaudit.core.errors import ConfigError
from privaudit.core.memory import is_checkpointing
from privaudit.models.hugging_face import import_transformers

Result = TypeVar("Result")
keeping_inputs = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
"""Calls a function of which only the inputs are kept: it runs again for the gradient."""


def rerun(run: Callable[..., Any], *arguments: Any) -> Any:
    """Return what ``run`` returns, and keep only what it takes if that was chosen."""
    if is_checkpointing():
        return keeping_inputs(run, *arguments)
    return run(*arguments)


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Return the layers that transformers would checkpoint, in the model's order."""
    import_transformers()
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]


@contextmanager
def recomputed(
    layers: Sequence[nn.Module], added: Callable[[], AbstractContextManager[object]]
) -> Iterator[None]:
    """Let layers run again for the gradient, if that was chosen.

    For one pass at a time: the layers themselves are changed while it is open. Weights
    that a layer has for this pass only, those that get a gradient, it has then, too.

    Args:
        layers: As :func:`layers_of` finds them.
        added: What stands around the model as it runs, which will be gone by then.

    Raises:
        ConfigError: There is no such layer.
    """
    if not is_checkpointing():
        yield
        return
    if not layers:
        raise ConfigError(
            "Checkpointing was requested, and this model has no layers that can run "
            "again. Leave out --checkpointing; --memory still bounds what is stacked."
        )

    def contexts() -> tuple[AbstractContextManager[object], ...]:
        return nullcontext(), added()

    with ExitStack() as restored:
        for layer in layers:
            forward = partial(_run_again, layer, layer.forward, contexts)
            before = layer.__dict__.get("forward")
            object.__setattr__(layer, "forward", forward)
            restored.callback(_restore, layer, before)
        yield


def with_weights(
    module: nn.Module, weights: Mapping[str, Tensor], run: Callable[[], Result]
) -> Result:
    """Return what ``run`` returns while a module has other weights, by name."""
    named = {f"module.{name}": weight for name, weight in weights.items()}
    called: Result = torch.func.functional_call(_Calling(module), named, (run,))
    return called


class _Calling(nn.Module):
    """Lets any code run while a module has other weights."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, run: Callable[[], Any]) -> Any:
        return run()


def _run_again(
    layer: nn.Module,
    forward: Callable[..., Any],
    contexts: Callable[[], Any],
    *arguments: Any,
    **named: Any,
) -> Any:
    own = {name: w for name, w in layer.named_parameters() if w.requires_grad}

    def run(*arguments: Any, **named: Any) -> Any:
        return with_weights(layer, own, partial(forward, *arguments, **named))

    again = run if own else forward
    return keeping_inputs(again, *arguments, context_fn=contexts, **named)


def _restore(layer: nn.Module, before: Callable[..., Tensor] | None) -> None:
    if before is None:
        object.__delattr__(layer, "forward")
    else:
        object.__setattr__(layer, "forward", before)
