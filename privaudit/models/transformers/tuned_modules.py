"""One frozen transformer as several differently tuned ones."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from privaudit.models.interfaces import Site, TunableLayer, Tuning
from privaudit.models.language.language_targets import TargetNames, linear_targets
from privaudit.models.transformers.prefix_attention import prefixed, self_attention
from privaudit.models.transformers.recomputed_layers import (
    layers_of,
    recomputed,
    with_weights,
)
from privaudit.models.transformers.stacked_changes import changed, check_all_run

Result = TypeVar("Result")


class TunedModules:
    """What all families of transformers have in common when they are tuned.

    A subclass runs its model inside :meth:`tuned`.

    Args:
        model: Of transformers; put in evaluation mode, its weights are frozen. Once
            ``sites`` was asked for, its attention is scaled dot-product attention,
            whatever it was before.
        targets: Layers that may be changed: "all-linear", or endings of names.
        part: Name of the part that is tuned, if the model has other parts.

    Attributes:
        targets: By name, in the model's order.

    Raises:
        ConfigError: A target fits no linear layer.
    """

    def __init__(
        self, model: nn.Module, targets: TargetNames = "all-linear", part: str = ""
    ) -> None:
        self.model = cast(Any, model.eval().requires_grad_(False))
        self.part = part
        self.targets: Mapping[str, TunableLayer] = linear_targets(model, targets, part)
        self._modules = {name: model.get_submodule(name) for name in self.targets}

    @cached_property
    def sites(self) -> Mapping[str, Site]:
        """The layers of self-attention that take a prefix, by name."""
        return self_attention(self.model, self.run_once)

    @cached_property
    def weights(self) -> Mapping[str, Tensor]:
        """All weights of the part that is tuned, by name."""
        start = f"{self.part}." if self.part else ""
        named = self.model.named_parameters()
        return {name: tensor for name, tensor in named if name.startswith(start)}

    def run_once(self) -> object:
        """Run the model on anything, for its layers to be found."""
        raise NotImplementedError

    @contextmanager
    def tuned(self, tuning: Tuning, models: int, *positions: int) -> Iterator[None]:
        """Tune the model as long as the context is open.

        Args:
            tuning: What each of the models adds to linear layers and attention.
            models: k; the first part of the batch is the first model's.
            *positions: That a linear layer may see, in the whole batch; none where
                each is known to see what there is model by model.
        """
        again = partial(self._added, tuning, models, positions)
        with again() as run, recomputed(self._rerun, again):
            yield
        check_all_run(tuning.changes, run)

    @contextmanager
    def _added(
        self, tuning: Tuning, models: int, positions: tuple[int, ...]
    ) -> Iterator[set[str]]:
        """Add what is tuned; give the targets that were run so far."""
        sites = {n: self.model.get_submodule(n) for n in tuning.prefix and self.sites}
        with (
            changed(self._modules, tuning.changes, models, *positions) as run,
            prefixed(sites, tuning.prefix),
        ):
            yield run

    @cached_property
    def _rerun(self) -> list[nn.Module]:
        return layers_of(self.model)

    def each_alone(
        self, tuning: Tuning, run: Callable[[int, Tuning], Tensor]
    ) -> Float[Tensor, "k ..."]:
        """Run models that have all weights of their own, one after the other.

        Args:
            tuning: With weights.
            run: From a model's number, and what of its tuning is left, to its output
                with a leading axis of 1.
        """
        count = len(next(iter(tuning.weights.values())))
        outputs = [self.one_alone(tuning, n, partial(run, n)) for n in range(count)]
        return torch.cat(outputs)

    def one_alone(
        self, tuning: Tuning, number: int, run: Callable[[Tuning], Result]
    ) -> Result:
        """Run one of several models that have all weights of their own."""
        own = {
            n: t[number].to(self.weights[n].dtype) for n, t in tuning.weights.items()
        }
        count = len(next(iter(tuning.weights.values())))
        rest = replace(tuning.alone(number, count), weights={})
        return with_weights(self.model, own, partial(run, rest))


def in_front(
    prompt: Float[Tensor, "k tokens width"] | None,
    embedded: Float[Tensor, "k rows length width"],
) -> Float[Tensor, "k rows longer width"]:
    """Put each model's prompt in front of its rows."""
    if prompt is None:
        return embedded
    rows = prompt.to(embedded.dtype).unsqueeze(1).expand(-1, embedded.shape[1], -1, -1)
    return torch.cat([rows, embedded], dim=2)
