import math

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from privaudit.core.seeds import Seeds
from privaudit.federation.trainer import Task
from privaudit.tuning.prompts.contrast import (
    contrast,
    low_rank_start,
    personal_context,
    prompts_contrast,
)
from tests.golden import golden_tensors


@pytest.mark.parametrize("case", range(5))
def test_losses_and_gradients_are_the_published_codes(case: int) -> None:
    """The published code in float64; tolerance as in its README."""
    golden = golden_tensors("fedpgp_loss", f"c{case}_")
    shared, full = (
        golden[name][None].requires_grad_() for name in ("text_global", "text_full")
    )
    (apart,) = contrast(golden["text_hand"], shared, full, float(golden["temp"]))
    assert float(apart.detach()) == pytest.approx(
        float(golden["loss_contrastive"]), abs=1e-10
    )
    total = cross_entropy(golden["logits"], golden["labels"]) + golden["mu"] * apart
    assert float(total.detach()) == pytest.approx(
        float(golden["loss_total"]), abs=1e-10
    )
    for gradient, name in zip(
        torch.autograd.grad(apart, [shared, full]), ("global", "full"), strict=True
    ):
        want = golden[f"grad_contrastive_text_{name}"]
        torch.testing.assert_close(gradient[0], want, rtol=0, atol=1e-10)


def test_the_contrast_by_hand() -> None:
    """At right angles to the personal prompt and like the hand-written: ln(1 + 1/e)."""
    hand = shared = torch.tensor([[1.0, 0.0]])
    personal = torch.tensor([[[0.0, 1.0]]])
    found = contrast(hand, shared[None], personal, temperature=1.0)
    assert found.item() == pytest.approx(math.log(1 + math.exp(-1)))


def test_equal_prompts_cost_what_lies_between_them_and_the_hand_written() -> None:
    hand = normalize(torch.randn(3, 8, generator=torch.Generator().manual_seed(0)))
    found = contrast(hand, hand[None], hand[None], temperature=0.5)
    assert found.item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_factors_make_a_prompt_of_their_rank(rank: int, task: Task) -> None:
    """A rank beyond the prompt's 3 tokens is allowed, and spans everything."""
    parts = low_rank_start(task, "client-0", rank, Seeds(0))
    assert parts["u"].shape == (3, rank)
    assert parts["v"].shape == (rank, 5)
    stacked = {name: part[None] for name, part in parts.items()}
    stacked["context"] = torch.zeros(1, 3, 5)
    product = personal_context(stacked)[0]
    assert torch.linalg.matrix_rank(product.double(), rtol=1e-4) == min(rank, 3)


def test_the_contrast_of_prompts_encodes_both(task: Task) -> None:
    parameters = {
        "context": torch.ones(2, 3, 5) / 10,
        "u": torch.ones(2, 3, 1),
        "v": torch.tensor([[[0.0] * 5], [[0.1] * 5]]),
    }
    found = prompts_contrast(task, parameters, temperature=0.5)
    shared = task.prompts(parameters["context"])
    apart = task.prompts(torch.full((1, 3, 5), 0.2))
    want = torch.stack(
        [
            contrast(task.zero_shot, shared[:1], shared[:1], 0.5)[0],
            contrast(task.zero_shot, shared[1:], apart, 0.5)[0],
        ]
    )
    torch.testing.assert_close(found, want)
