"""Kernels and bytes of a step of prompt learning, counted without computing it.

Counted on fake tensors, which have sizes and no content: what is called but for views,
and what these calls read and write. A GPU's libraries may split a call into several
kernels.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from privaudit.core.step_graphs import one_step
from privaudit.models.clip import shared_prefix
from privaudit.models.clip.shared_prefix import SharedPrefixText
from privaudit.models.clip.text_tower import prompt_tokens, text_tower
from privaudit.models.hugging_face import import_open_clip
from privaudit_tools.benchmarks.measuring import CLASS_NAMES, CONTEXT_TOKENS, POSITIONS

KERNELS = 280
"""A step's, of ViT-B-16's text tower on a device, for any number of classes and clients."""
BYTES: Mapping[tuple[int, int], float] = {(10, 10): 0.7e9, (100, 10): 4e9}
"""A step's in bfloat16 by (classes, clients), as on a device."""


class Launches(TorchDispatchMode):
    """Counts what is called while it is entered.

    Attributes:
        kernels: Calls that are no views and do more than to take memory.
        bytes: What they read and write; what is read repeatedly by its strides, once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels, self.bytes = 0, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation, and count it."""
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        moves_nothing = func.is_view or "empty" in name or name == "_unsafe_view"
        if torch.is_tensor(tree_leaves(result)[0]) and not moves_nothing:
            self.kernels += 1
            parts = tree_leaves((args, kwargs, result))
            self.bytes += sum(_bytes(part) for part in parts if torch.is_tensor(part))
        return result


def _bytes(tensor: Tensor) -> int:
    return min(tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes())


@contextmanager
def as_on_devices() -> Iterator[None]:
    """Let prompts that are made on the CPU be packed, and attend, as on a device."""
    with patch.multiple(shared_prefix, RECTANGLE=2**30, _fuses=lambda queries: True):
        yield


def empty_text_tower() -> nn.Module:
    """Return ViT-B-16's text tower, of no particular weights."""
    open_clip: Any = import_open_clip()
    options = open_clip.get_model_config("ViT-B-16")
    options["vision_cfg"] |= {"layers": 1}
    with torch.device("meta"):
        clip: Any = open_clip.CLIP(**options)
    mask = torch.full((POSITIONS, POSITIONS), float("-inf")).triu(1)
    clip = clip.to_empty(device="cpu").eval().requires_grad_(False)
    clip.attn_mask = mask
    return clip


def bound_text(
    clip: nn.Module, classes: int, dtype: torch.dtype | None = None
) -> SharedPrefixText:
    """Bind a text tower to some of CIFAR-100's class names."""
    tokenizer = import_open_clip().get_tokenizer("ViT-B-16")
    texts = [f"{name}." for name in CLASS_NAMES[:classes]]
    tokens = prompt_tokens(tokenizer, texts, CONTEXT_TOKENS, POSITIONS)
    tower = text_tower(clip)
    return SharedPrefixText(tower, tokens.to(tower.positional_embedding.device), dtype)


def contexts_of(clients: int, width: int = 512) -> Tensor:
    """Return every client's context."""
    generator = torch.Generator().manual_seed(0)
    return 0.02 * torch.randn(clients, CONTEXT_TOKENS, width, generator=generator)


def one_gradient(
    text: Callable[[Tensor], Tensor], contexts: Tensor, behind: Tensor
) -> Tensor:
    """Return the gradient of <behind, features> by the contexts, as a step finds it."""
    leaf = contexts.detach().requires_grad_()
    with one_step():
        return torch.autograd.grad(text(leaf), leaf, behind)[0]


def counted(
    text: SharedPrefixText, clients: int, classes: int, tokens: int = CONTEXT_TOKENS
) -> Launches:
    """Return what a step launches, reads and writes, without its loss."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        contexts = torch.empty(clients, tokens, text.tower.width)
        behind = torch.empty(clients, classes, text.tower.dim)
        with Launches() as launches:
            one_gradient(text, contexts, behind)
    return launches
