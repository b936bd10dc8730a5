import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from privaudit.models.hugging_face import import_open_clip
from tests.golden import golden as read_golden

VISION = {
    "image_size": 32,
    "layers": 1,
    "width": 32,
    "head_width": 16,
    "patch_size": 16,
}
_built: dict[Any, tuple[nn.Module, torch.Tensor]] = {}
TEXT = {"context_length": 40, "vocab_size": 49408, "width": 32, "heads": 4, "layers": 3}


@pytest.fixture
def small_options() -> dict[str, Any]:
    """An open_clip configuration that takes a moment, with open_clip's vocabulary."""
    return {"embed_dim": 24, "vision_cfg": dict(VISION), "text_cfg": dict(TEXT)}


@pytest.fixture
def configuration(small_options: dict[str, Any], tmp_path: Path) -> str:
    """An architecture that says nothing of its activation, by its name."""
    path = tmp_path / "small-test.json"
    path.write_text(json.dumps(small_options))
    return f"open_clip:{path}"


@pytest.fixture
def build(small_options: dict[str, Any]) -> Callable[..., nn.Module]:
    """Build a small random model; keywords overrule the text tower's options."""

    def make(
        kind: str = "CLIP", quick_gelu: bool = False, **text_options: Any
    ) -> nn.Module:
        options = small_options | {"quick_gelu": quick_gelu}
        options["text_cfg"] = options["text_cfg"] | text_options
        if kind == "CoCa":
            options["multimodal_cfg"] = {
                **{n: TEXT[n] for n in ("width", "heads", "context_length")},
                "layers": 1,
            }
        key = f"{kind} {options}", torch.get_rng_state().numpy().tobytes()
        if key not in _built:  # by open_clip, whose drawing is most of a test's time
            clip = randomise(getattr(import_open_clip(), kind)(**options))
            _built[key] = clip.eval().requires_grad_(False), torch.get_rng_state()
        clip, state = _built[key]
        torch.set_rng_state(state)
        return deepcopy(clip)

    return make


def randomise(clip: nn.Module) -> nn.Module:
    """Move every weight off its start: zero biases would hide a mixed-up order."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in clip.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return clip


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return import_open_clip().SimpleTokenizer(context_length=40)


@pytest.fixture(scope="session")
def golden() -> Mapping[str, np.ndarray]:
    """Features and gradients of a random tower, made by open_clip 3.3.0 in float64."""
    return read_golden("clip_text")
