"""Stacked changes of linear layers: several models on the batch axis of one forward pass.

The batch axis holds k models one after the other, and only the changed layers know.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from privaudit.core.errors import ConfigError
from privaudit.core.tensors import at_least_float32
from privaudit.models.interfaces import Change
from privaudit.models.transformers.recomputed_layers import keeping_inputs

# Which pass a layer is in: hooks of another pass, in another thread or around this
# one, see that it is not theirs.
_PASS: ContextVar[object | None] = ContextVar("pass", default=None)


@contextmanager
def changed(
    modules: Mapping[str, nn.Module],
    changes: Mapping[str, Change],
    models: int,
    *positions: int,
) -> Iterator[set[str]]:
    """Add changes to what linear layers give, as long as the context is open.

    Args:
        modules: The linear layers, by target.
        changes: By target; a target without one is as it was.
        models: k; the first part of the batch is the first model's.
        *positions: In the whole batch, so k * rows * length; several where parts of
            the model see texts of different lengths. None: any number, model by model.

    Yields:
        The targets that were run so far.

    Raises:
        ConfigError: A change has no such target, or its layer is not run on every
            position: then there is no telling whose rows it sees.
    """
    unknown = set(changes) - set(modules)
    if unknown:
        raise ConfigError(
            f"A change is given for {sorted(unknown)[0]!r}, which is no target. "
            f"Targets are: {', '.join(modules)}."
        )
    this_pass, seen = object(), set[str]()
    with ExitStack() as hooks:
        for name, change in changes.items():
            hook = _adding(name, change, this_pass, seen, models, positions)
            hooks.callback(modules[name].register_forward_hook(hook).remove)
        before = _PASS.set(this_pass)
        hooks.callback(_PASS.reset, before)
        yield seen


def check_all_run(changes: Mapping[str, Change], run: Set[str]) -> None:
    """Refuse changes of layers that were not run."""
    if unused := set(changes) - run:
        raise ConfigError(
            f"{sorted(unused)[0]!r} was to be changed, and the model does not run it "
            "as a layer. Leave it out of the targets."
        )


def _adding(
    name: str,
    change: Change,
    this_pass: object,
    seen: set[str],
    models: int,
    positions: tuple[int, ...],
) -> Callable[[nn.Module, tuple[Any, ...], Tensor], Tensor | None]:
    def hook(
        module: nn.Module, arguments: tuple[Any, ...], output: Tensor
    ) -> Tensor | None:
        if _PASS.get() is not this_pass:
            return None
        seen.add(name)
        inputs: Tensor = arguments[0]
        rows = inputs.flatten(0, -2)
        if positions and len(rows) not in positions:
            raise ConfigError(
                f"{name!r} sees {len(rows)} of {positions[0]} positions: it serves "
                "some of them only, as an expert does. Leave it out of the targets."
            )
        added = _in_float32(change, rows.unflatten(0, (models, -1)))
        return (output + added.reshape(output.shape)).to(output.dtype)

    return hook


def _in_float32(change: Change, rows: Tensor) -> Tensor:
    """Return a change of rows, computed in float32 and kept for no gradient.

    As peft does: small changes are lost in a half-precision product. Their copies in
    float32 would take most of a step's memory, so they are made again for the gradient.
    """
    if rows.dtype.itemsize < 4 and torch.is_grad_enabled():
        return keeping_inputs(lambda part: change(at_least_float32(part)), rows)
    return change(at_least_float32(rows))
