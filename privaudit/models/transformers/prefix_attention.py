"""Prefix attention: keys and values in front of self-attention's, in any transformer.

transformers lets a function of one's own stand in for every model's attention. Ours
hands on to scaled dot-product attention, and in a pass with prefixes puts each model's
own keys and values in front of those of its rows first.

Source of the method: Li, Liang, "Prefix-tuning: optimizing continuous prompts for
generation", ACL 2021, section 4.2.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from privaudit.core.errors import ConfigError
from privaudit.models.hugging_face import import_transformers
from privaudit.models.interfaces import Prefix, Site

NAME = "privaudit"
_PREFIXES: ContextVar[Mapping[nn.Module, Prefix] | None] = ContextVar(
    "prefixes", default=None
)
_SEEN: ContextVar[dict[nn.Module, Site] | None] = ContextVar("seen", default=None)


@contextmanager
def prefixed(
    modules: Mapping[str, nn.Module], prefix: Mapping[str, Prefix]
) -> Iterator[None]:
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
    before = _PREFIXES.set({modules[name]: pair for name, pair in prefix.items()})
    try:
        yield
    finally:
        _PREFIXES.reset(before)


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
    token = _SEEN.set(sites)
    try:
        with torch.no_grad():
            run()
    finally:
        _SEEN.reset(token)
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
    output: tuple[Tensor, None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, **options
    )
    return output


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
