"""Layers that run again for the gradient: the same gradients, less memory."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.core.memory import PeakMemory, use_checkpointing
from privaudit.core.tensors import Stacked
from privaudit.datasets.dialogues import INSTRUCTION, TokenSequences
from privaudit.models.interfaces import Tuning
from privaudit.models.language.stacked_language import StackedLanguageModel
from tests.privaudit.models.language.small_language import (
    WIDTH,
    NumberTokenizer,
    build_language,
)
from tests.small_transformers import draw, pair_shapes, some_lora

MODELS, ROWS, LENGTH = 3, 2, 40


def language(kind: str, dtype: torch.dtype = torch.float32) -> StackedLanguageModel:
    return StackedLanguageModel(build_language(kind).to(dtype), NumberTokenizer())


def gradients(
    model: StackedLanguageModel,
    parameters: Stacked,
    tuning: Callable[[Stacked], Tuning],
) -> tuple[tuple[Tensor, ...], int]:
    """Return gradients, and what is kept for them."""
    leaves = {n: t.detach().requires_grad_() for n, t in parameters.items()}
    rows = draw({"rows": (MODELS * ROWS, LENGTH, WIDTH)})["rows"]
    with (
        PeakMemory() as memory,
        model.tuned(tuning(leaves), MODELS, len(rows) * LENGTH),
    ):
        embedded = rows.to(next(model.model.parameters()).dtype)
        output = model._run(0, inputs_embeds=embedded, use_cache=False).logits
    kept, loss = memory.now, output.float().square().mean()
    return torch.autograd.grad(loss, list(leaves.values())), kept


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_gradients_are_the_same_to_the_bit(kind: str, dtype: torch.dtype) -> None:
    model = language(kind, dtype)
    parameters = draw(pair_shapes(model, MODELS))
    tuning = partial(some_lora, model)
    plain, kept = gradients(model, parameters, tuning)
    with use_checkpointing():
        again, less = gradients(model, parameters, tuning)
    assert less < 0.45 * kept  # of two layers
    assert any(bool(gradient.any()) for gradient in plain)
    for one, other in zip(plain, again, strict=True):
        assert torch.equal(one, other)
    for module in model.model.modules():
        assert "forward" not in vars(module)


def test_prefixes_are_there_when_a_layer_runs_again() -> None:
    model = language("llama")
    shapes = {
        f"{site}.{half}": (MODELS, found.heads, 2, found.width)
        for site, found in model.sites.items()
        for half in ("keys", "values")
    }

    def tuning(leaves: Stacked) -> Tuning:
        names = model.sites
        return Tuning(
            prefix={n: (leaves[f"{n}.keys"], leaves[f"{n}.values"]) for n in names}
        )

    parameters = draw(shapes)
    plain, _ = gradients(model, parameters, tuning)
    with use_checkpointing():
        again, _ = gradients(model, parameters, tuning)
    assert all(bool(gradient.any()) for gradient in plain)
    for one, other in zip(plain, again, strict=True):
        assert torch.equal(one, other)


def test_copies_in_float32_are_not_kept() -> None:
    """Of a model in bfloat16, whose changes are computed in float32."""
    kept = []
    for dtype in (torch.float32, torch.bfloat16):
        model = language("llama", dtype)
        parameters = draw(pair_shapes(model, MODELS))
        kept.append(gradients(model, parameters, partial(some_lora, model))[1])
    assert kept[1] < 0.65 * kept[0]


def test_a_model_without_such_layers_is_refused() -> None:
    model = language("openelm")
    parameters = draw(pair_shapes(model, MODELS))
    with (
        use_checkpointing(),
        pytest.raises(ConfigError, match="no layers that can run again"),
    ):
        gradients(model, parameters, partial(some_lora, model))


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_weights_of_ones_own_are_there_when_a_layer_runs_again(kind: str) -> None:
    """Each of several models', where all weights are trained."""
    model = language(kind)
    weights = draw({n: (MODELS, *t.shape) for n, t in model.weights.items()})
    words = TokenSequences(
        torch.arange(MODELS * ROWS * LENGTH).view(MODELS, ROWS, LENGTH) % 40,
        torch.full((MODELS, ROWS, LENGTH), INSTRUCTION),
    )
    nothing = torch.zeros(MODELS, ROWS, 0, WIDTH)
    found, kept = [], []
    for again in (False, True):
        leaves = {n: t.detach().requires_grad_() for n, t in weights.items()}
        with use_checkpointing(again), PeakMemory() as memory:
            logits = model.logits(nothing, words, Tuning(weights=leaves))
            kept.append(memory.now)
            loss = logits.square().mean()
            found.append(torch.autograd.grad(loss, list(leaves.values())))
    assert kept[1] < 0.7 * kept[0]
    assert all(bool(gradient.any()) for gradient in found[0])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
