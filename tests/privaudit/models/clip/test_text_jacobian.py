from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from privaudit.core.memory import use_checkpointing
from privaudit.models.clip import shared_prefix
from privaudit.models.clip.shared_prefix import SharedPrefixText
from privaudit.models.clip.text_tower import text_tower
from tests.privaudit.models.clip.test_shared_prefix import (
    TOWERS,
    Build,
    contexts_for,
    tokens_of,
)

LENGTHS = [2, 5, 1, 2, 3]


@pytest.mark.parametrize("options", [*TOWERS, {"layers": 1}], ids=str)
def test_many_products_are_those_of_autograd_one_by_one(
    build: Build, options: dict[str, Any]
) -> None:
    clip = build(**options).double()
    tower, tokens = text_tower(clip), tokens_of(LENGTHS, context_tokens=4)
    text, contexts = (
        SharedPrefixText(tower, tokens),
        contexts_for(3, tokens, tower.width),
    )
    found = text.jacobian(contexts)
    assert found is not None
    leaf = contexts.clone().requires_grad_()
    features = normalize(text(leaf), dim=-1)
    torch.testing.assert_close(found.features, features, rtol=1e-9, atol=1e-9)
    behind = torch.randn(6, *features.shape, dtype=torch.float64)
    products = found.products(behind)
    assert products.shape == (6, *contexts.shape)
    for vector, product in zip(behind, products, strict=True):
        (want,) = torch.autograd.grad(features, leaf, vector, retain_graph=True)
        torch.testing.assert_close(product, want, rtol=1e-8, atol=1e-9)


def test_a_context_s_products_depend_on_no_other_context(build: Build) -> None:
    tower, tokens = text_tower(build()), tokens_of(LENGTHS, context_tokens=4)
    text = SharedPrefixText(tower, tokens)
    contexts = contexts_for(2, tokens, dtype=torch.float32)
    behind = torch.randn(1, 2, len(LENGTHS), tower.dim)

    def product(both: Tensor) -> Tensor:
        found = text.jacobian(both)
        assert found is not None
        return found.products(behind)[0, 0]

    changed = torch.stack([contexts[0], contexts[1] + 1])
    torch.testing.assert_close(product(contexts), product(changed))


def test_where_autograd_takes_less_there_is_none(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    tower, tokens = text_tower(build()), tokens_of(LENGTHS, context_tokens=4)
    contexts = contexts_for(2, tokens, dtype=torch.float32)
    assert SharedPrefixText(tower, tokens, torch.bfloat16).jacobian(contexts) is None
    text = SharedPrefixText(tower, tokens)
    with use_checkpointing():
        assert text.jacobian(contexts) is None
    monkeypatch.setattr(shared_prefix, "MOST_ROWS", 10)
    assert text.jacobian(contexts) is None
