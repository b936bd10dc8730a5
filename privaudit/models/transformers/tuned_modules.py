"""Tuning: one frozen transformer as several differently tuned ones.

The batch axis holds k models one after the other. Only changed linear layers know, and
attention, which puts each model's own keys and values in front of those of its rows:
transformers lets a function of one's own stand in for every model's attention, and ours
hands on to scaled dot-product attention. With checkpointing layers keep their inputs
only, and run again for the gradient.

Sources: Li, Liang, "Prefix-tuning: optimizing continuous prompts for generation", ACL
2021, section 4.2; Chen, Xu, Zhang, Guestrin, "Training deep nets with sublinear memory
cost", 2016, section 3.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from privaudit.core.context import set_within
from privaudit.core.devices import is_checkpointing
from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Stream
from privaudit.core.tensors import at_least_float32
from privaudit.models.hugging_face import import_transformers
from privaudit.models.interfaces import Change, Prefix, Site, TunableLayer, Tuning
from privaudit.models.language.language_targets import TargetNames, linear_targets

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
    return torch.func.functional_call(_Calling(module), named, (run,))


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


NAME = "privaudit"
_PREFIXES: ContextVar[Mapping[nn.Module, Prefix] | None] = ContextVar(
    "prefixes", default=None
)
_SEEN: ContextVar[dict[nn.Module, Site] | None] = ContextVar("seen", default=None)


def prefixed(
    modules: Mapping[str, nn.Module], prefix: Mapping[str, Prefix]
) -> AbstractContextManager[None]:
    """Put keys and values in front of layers' own as long as the context is open.

    Modules and prefixes are by site; a site without a prefix is as it was.

    Raises:
        ConfigError: A prefix has no such site.
    """
    unknown = set(prefix) - set(modules)
    if unknown:
        raise ConfigError(
            f"A prefix is given for {sorted(unknown)[0]!r}, which is no layer of "
            f"self-attention. Those are: {', '.join(modules) or 'none'}."
        )
    return set_within(_PREFIXES, {modules[name]: pair for name, pair in prefix.items()})


def self_attention(model: Any, run: Callable[[], object]) -> dict[str, Site]:
    """Return the layers of self-attention that take prefixes, in the order of running.

    Args:
        model: Of transformers; its attention is our function from here on.
        run: Runs the model once on anything. A decoder's text must not be as long as
            its encoder's, or its attention to that one would count as well.
    """
    _register()
    try:
        model.set_attn_implementation(NAME)
    except ValueError:  # attention that nothing can stand in for
        return {}
    sites: dict[nn.Module, Site] = {}
    with set_within(_SEEN, sites), torch.no_grad():
        run()
    names = {module: name for name, module in model.named_modules()}
    return {names[module]: site for module, site in sites.items() if module in names}


def _register() -> None:
    import_transformers()
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    seen, prefixes = _SEEN.get(), _PREFIXES.get()
    if seen is not None and query.shape[2] == key.shape[2]:
        seen.setdefault(module, Site(key.shape[1], key.shape[3]))
    if prefixes and module in prefixes:
        keys, values = _expanded(prefixes[module], key)
        causal = _is_causal(module, query, options)
        attention_mask = _longer(attention_mask, query, key, keys.shape[2], causal)
        if options.get("position_bias") is not None:  # a prefix is at no distance
            options["position_bias"] = pad(options["position_bias"], (keys.shape[2], 0))
        key, value = torch.cat([keys, key], dim=2), torch.cat([values, value], dim=2)
    return sdpa_attention_forward(module, query, key, value, attention_mask, **options)


def _expanded(prefix: Prefix, key: Tensor) -> tuple[Tensor, Tensor]:
    """Give each of a model's rows, which lie together, the model's own prefix."""
    keys, values = (part.to(key.dtype) for part in prefix)
    rows = len(key) // len(keys)
    return keys.repeat_interleave(rows, dim=0), values.repeat_interleave(rows, dim=0)


def _is_causal(module: nn.Module, query: Tensor, options: dict[str, Any]) -> bool:
    """Say whether a pass without a mask hides later positions, as transformers does."""
    option = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if option is None else option
    return bool(causal) and query.shape[2] > 1


def _longer(
    mask: Tensor | None, query: Tensor, key: Tensor, added: int, causal: bool
) -> Tensor | None:
    """Let every position see the prefix; what it sees behind stays as it was."""
    if mask is None and causal:
        shape = (query.shape[2], key.shape[2])
        mask = torch.ones(shape, dtype=torch.bool, device=key.device)
        mask = mask.tril(key.shape[2] - query.shape[2])[None, None]
    if mask is None:
        return None
    return pad(mask, (added, 0), value=True if mask.dtype == torch.bool else 0.0)


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

    def _places(self, tuning: Tuning, length: int, first: int = 0) -> dict[str, Tensor]:
        """Return the positions of tokens behind a prefix; else the model knows them."""
        if not tuning.skipped_positions:
            return {}
        places = torch.arange(length, device=self._embedding.weight.device)
        return {"position_ids": (places + tuning.skipped_positions + first)[None]}

    def check_length(self, length: int, tuning: Tuning) -> None:
        """Refuse texts of more tokens than the context has behind what is added."""
        added = tuning.virtual_tokens + tuning.skipped_positions
        if self.context is not None and length + added > self.context:
            room = max(self.context - length - tuning.skipped_positions, 0)
            prompt = f" behind {added} of a prompt" if added else ""
            fewer = f", or add at most {room} vectors" if added else ""
            raise ConfigError(
                f"Texts of {length} tokens{prompt} were given to a model that was made "
                f"for {self.context}. Shorten the texts{fewer}."
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


def in_front(
    prompt: Float[Tensor, "k tokens width"] | None,
    embedded: Float[Tensor, "k rows length width"],
) -> Float[Tensor, "k rows longer width"]:
    """Put each model's prompt in front of its rows."""
    if prompt is None:
        return embedded
    rows = prompt.to(embedded.dtype).unsqueeze(1).expand(-1, embedded.shape[1], -1, -1)
    return torch.cat([rows, embedded], dim=2)
