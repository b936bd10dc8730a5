"""The embedded CLIP against open_clip's, which it is not worth importing for."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privaudit.models.hugging_face import import_open_clip
from privaudit.models.tiny_clip.loading import (
    IMAGE_SIZE,
    TinyTokenizer,
    build_model,
    configuration,
)

TEXTS = ["five", "a photo of the digit nine.", "k", " ".join(["this"] * 40)]


@pytest.fixture(scope="module")
def theirs() -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return import_open_clip().model.CLIP(**configuration())


def clip_gradients(model: nn.Module, features: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    features.square().sum().backward()
    grown = {name: p.grad for name, p in model.named_parameters()}
    return {name: grad for name, grad in grown.items() if grad is not None}


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    equal = (torch.equal(tensor, expected[name]) for name, tensor in found.items())
    return list(found) == list(expected) and all(equal)


def test_it_draws_open_clips_weights_by_its_names(theirs: Any) -> None:
    ours = build_model(3)
    assert same(ours.state_dict(), theirs.state_dict())
    assert str(ours.visual) == str(theirs.visual)  # cached features are found by it


@pytest.mark.parametrize("training", [False, True])
def test_features_and_gradients_are_open_clips(theirs: Any, training: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    for layer in theirs.modules():
        if isinstance(layer, nn.BatchNorm2d):  # some begin at zero
            nn.init.normal_(layer.weight, generator=generator)
    ours = build_model().train(training)
    ours.load_state_dict(theirs.train(training).state_dict())
    pictures = torch.randn(3, 3, IMAGE_SIZE, IMAGE_SIZE, generator=generator)
    tokens = TinyTokenizer()(TEXTS)
    for kind, given in (("image", pictures), ("text", tokens)):
        found, expected = (
            getattr(model, f"encode_{kind}")(given) for model in (ours, theirs)
        )
        assert torch.equal(found, expected)
        assert same(clip_gradients(ours, found), clip_gradients(theirs, expected))


def test_cut_texts_have_the_features_of_whole_ones(theirs: Any) -> None:
    ours = build_model(3).eval()
    tokens = TinyTokenizer()(TEXTS[:3])
    ours.load_state_dict(theirs.eval().state_dict())
    expected = theirs.encode_text(tokens)
    torch.testing.assert_close(ours.encode_text(tokens), expected, atol=1e-5, rtol=1e-5)
