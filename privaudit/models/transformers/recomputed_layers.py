"""Layers that keep their inputs only, and run again for the gradient.

Source of the method: Chen, Xu, Zhang, Guestrin, "Training deep nets with sublinear
memory cost", 2016, section 3.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from privaudit.core.errors import ConfigError
from privaudit.core.memory import is_checkpointing
from privaudit.models.hugging_face import import_transformers

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

    For one pass at a time: the layers themselves are changed while it is open.

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
    contexts = partial(_contexts, added)
    with ExitStack() as restored:
        for layer in layers:
            forward = partial(keeping_inputs, layer.forward, context_fn=contexts)
            before = layer.__dict__.get("forward")
            object.__setattr__(layer, "forward", forward)
            restored.callback(_restore, layer, before)
        yield


def _contexts(
    added: Callable[[], AbstractContextManager[object]],
) -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    return nullcontext(), added()


def _restore(layer: nn.Module, before: Callable[..., Tensor] | None) -> None:
    if before is None:
        object.__delattr__(layer, "forward")
    else:
        object.__setattr__(layer, "forward", before)
