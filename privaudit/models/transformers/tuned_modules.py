"""Tuning: one frozen transformer as several differently tuned ones."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from privaudit.core.errors import ConfigError
from privaudit.core.streams import Stream
from privaudit.models.interfaces import Site, TunableLayer, Tuning
from privaudit.models.language.language_targets import TargetNames, linear_targets
from privaudit.models.transformers.prefix_attention import prefixed, self_attention
from privaudit.models.transformers.recomputed_layers import (
    Result,
    layers_of,
    recomputed,
    with_weights,
)
from privaudit.models.transformers.stacked_changes import changed, check_all_run


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
        context: Positions that it was made for; None if it does not say.

    Raises:
        ConfigError: A target fits no linear layer.
    """

    context: int | None = None

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

    @cached_property
    def _embedding(self) -> Any:
        return self.model.get_input_embeddings()

    def start_vectors(self, count: int, stream: Stream) -> Float[Tensor, "count width"]:
        """Return embeddings of tokens drawn from the vocabulary, with replacement."""
        table = self._embedding.weight
        rows = torch.from_numpy(stream.below(len(table), count))
        return table[rows.to(table.device)].detach().clone().float()

    def run_once(self) -> object:
        """Run the model on anything, for its layers to be found."""
        raise NotImplementedError

    def check_length(self, length: int, tuning: Tuning) -> None:
        """Refuse texts of more tokens than the context has behind what is added."""
        added = tuning.virtual_tokens + tuning.skipped_positions
        if self.context is not None and length + added > self.context:
            prompt = f" behind {added} of a prompt" if added else ""
            raise ConfigError(
                f"Texts of {length} tokens{prompt} were given to a model that was made "
                f"for {self.context}. Shorten the texts{', or the prompt' * bool(added)}."
            )

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

        ``run`` takes a model's number and what of its tuning is left; what it returns
        has a leading axis of 1.
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


def name_of(model: nn.Module, wanted: object) -> str | None:
    """Return the name of a module inside a model; None if it is not there."""
    return next((name for name, m in model.named_modules() if m is wanted), None)


def in_front(
    prompt: Float[Tensor, "k tokens width"] | None,
    embedded: Float[Tensor, "k rows length width"],
) -> Float[Tensor, "k rows longer width"]:
    """Put each model's prompt in front of its rows."""
    if prompt is None:
        return embedded
    rows = prompt.to(embedded.dtype).unsqueeze(1).expand(-1, embedded.shape[1], -1, -1)
    return torch.cat([rows, embedded], dim=2)
