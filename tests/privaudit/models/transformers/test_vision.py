import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from privaudit.core.errors import ConfigError
from privaudit.datasets.dataset import FeatureBank, PixelImages
from privaudit.models.feature_cache import cached_features, cached_tokens
from privaudit.models.hugging_face import import_transformers
from privaudit.models.interfaces import Tuning
from privaudit.models.registry import load_frozen
from privaudit.models.transformers.picture_classifier import (
    PictureClassifier,
    clip,
    vit,
)
from privaudit.models.transformers.vision import ClipVisionTower, VisionTower
from tests.small_transformers import (
    NAMES,
    SIZE,
    WIDTH,
    WITHOUT_PREFIX,
    clip_model,
    draw,
    image_processor,
    pair_shapes,
    random_model,
    some_lora,
    text_tokenizer,
    vision_config,
    with_lora_of_peft,
)

COUNT = 4
KINDS = ("ViT", "DeiT", "Dinov2", "Siglip", "Swin")
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*is_gradient_checkpointing:FutureWarning"
)


def vit_model(kind: str) -> Any:
    made = import_transformers().AutoModel
    whole = random_model(lambda: made.from_config(vision_config(kind)))
    return getattr(whole, "vision_model", whole)


def their_vectors(kind: str, output: Any) -> Tensor:
    """Return transformers' own vectors of pictures."""
    if kind == "CLIP":
        return normalize(output.image_embeds, dim=-1)
    if kind == "Siglip":
        return output.pooler_output
    states = output.last_hidden_state
    return states.mean(dim=1) if kind == "Swin" else states[:, 0]


@pytest.fixture(scope="module")
def images() -> PixelImages:
    generator = torch.Generator().manual_seed(0)
    return PixelImages(torch.rand(COUNT, 3, 20, 24, generator=generator))


def loaded(kind: str) -> PictureClassifier:
    if kind == "CLIP":
        tokenizer = text_tokenizer("clip")
        made = clip("clip", clip_model(), tokenizer, image_processor(), "all-linear")
    else:
        made = vit(kind, vit_model(kind), image_processor(), "all-linear")
    assert isinstance(made, PictureClassifier)
    return made


def tower_of(model: PictureClassifier) -> VisionTower:
    tower = model.tower(NAMES, "a {}")
    assert isinstance(tower, VisionTower)
    return tower


def prepared(model: PictureClassifier, images: PixelImages) -> Tensor:
    return model.preprocess_batch(images.pixels)


@pytest.mark.parametrize("kind", KINDS)
def test_untuned_vectors_are_those_of_the_model_itself(
    kind: str, images: PixelImages
) -> None:
    model = loaded(kind)
    pixels = prepared(model, images)
    tokens = model.encode_tokens(pixels)
    theirs = their_vectors(kind, vit_model(kind)(pixel_values=pixels))
    tower = tower_of(model)
    assert bool(tower.sites) == (f"vit-{kind}" not in WITHOUT_PREFIX)
    found = tower.vectors(tokens[None], Tuning())[0]
    assert torch.allclose(found, theirs, atol=1e-5)
    assert torch.allclose(
        model.encode_images(pixels), normalize(theirs, dim=-1), atol=1e-5
    )


def test_untuned_logits_are_clips_own(images: PixelImages) -> None:
    model, reference = loaded("CLIP"), clip_model()
    pixels = prepared(model, images)
    written = text_tokenizer("clip")(
        [f"a {name}" for name in NAMES], padding=True, return_tensors="pt"
    )
    expected = reference(
        pixel_values=pixels,
        input_ids=written["input_ids"],
        attention_mask=written["attention_mask"],
    ).logits_per_image
    classifier = model.backbone(NAMES, "a {}")
    tower = classifier.tower
    tokens = model.encode_tokens(pixels)[None]
    features = model.encode_images(pixels)
    found = tower.logits(features[None], tokens, None, Tuning())[0]
    assert torch.allclose(found, expected, atol=1e-4)
    again = classifier.logit_scale * features @ classifier.zero_shot.T
    assert torch.allclose(again, expected, atol=1e-4)
    assert tower.head is None


@pytest.mark.parametrize("kind", ["ViT", "CLIP"])
def test_it_makes_no_difference_where_a_prompt_stands(
    kind: str, images: PixelImages
) -> None:
    model = loaded(kind)
    tower = tower_of(model)
    tokens = model.encode_tokens(prepared(model, images))
    prompt = draw({"prompt": (1, 3, WIDTH)})["prompt"]
    found = tower.pooled(tokens[None], Tuning(prompt=prompt))[0]
    between = [tokens[:, :1], prompt.expand(COUNT, -1, -1), tokens[:, 1:]]
    by_hand = tower.finish(tower.layers(torch.cat(between, dim=1)))
    assert torch.allclose(found, by_hand, atol=1e-5)


@pytest.mark.parametrize("kind", [*KINDS, "CLIP"])
def test_lora_is_pefts(kind: str, images: PixelImages) -> None:
    model = loaded(kind)
    tower = tower_of(model)
    pairs = draw(pair_shapes(tower, 1))
    inner = loaded("CLIP")._model if kind == "CLIP" else vit_model(kind)
    inner.pooler = None
    wrapped = with_lora_of_peft(inner, tower, pairs)
    pixels = prepared(model, images)
    tokens = model.encode_tokens(pixels)[None]
    found = tower.vectors(tokens, some_lora(tower, pairs))[0]
    expected = their_vectors(kind, wrapped(pixel_values=pixels))
    assert torch.allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("kind", [*KINDS, "CLIP"])
def test_embeddings_stay_frozen_when_all_else_is_learned(
    kind: str, images: PixelImages
) -> None:
    model = loaded(kind)
    tower = tower_of(model)
    assert not any("embeddings" in name for name in tower.weights)
    moved = {
        name: (t + 0.1).unsqueeze(0).requires_grad_()
        for name, t in tower.weights.items()
    }
    tokens = model.encode_tokens(prepared(model, images))[None]
    found = tower.vectors(tokens, Tuning(weights=moved))
    gradients = torch.autograd.grad(found.square().sum(), list(moved.values()))
    assert all(g.isfinite().all() for g in gradients)
    copy = loaded(kind)._model
    with torch.no_grad():
        for name, parameter in copy.named_parameters():
            if name in moved:
                parameter.add_(0.1)
    expected = their_vectors(kind, copy(pixel_values=prepared(model, images)))
    assert torch.allclose(found[0], expected, atol=1e-4)


def never(pictures: Tensor) -> Tensor:
    raise AssertionError("encoded again")


@pytest.mark.parametrize("kind", ["ViT", "CLIP"])
def test_tokens_and_features_are_kept_on_the_disk(
    kind: str, images: PixelImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(kind)
    tokens = cached_tokens(model, images, tmp_path)
    features = cached_features(model, images, tmp_path)
    assert tokens.shape == (COUNT, 1 + (SIZE // 8) ** 2, WIDTH)
    assert features.shape == (COUNT, model.dim)
    assert len(list(tmp_path.rglob("*.safetensors"))) == 2
    monkeypatch.setattr(model, "encode_tokens", never)
    monkeypatch.setattr(model, "encode_images", never)
    assert torch.equal(cached_tokens(model, images, tmp_path), tokens)
    assert torch.equal(cached_features(model, images, tmp_path), features)


def test_a_bank_of_embeddings_is_refused(tmp_path: Path) -> None:
    model, bank = loaded("ViT"), FeatureBank(torch.rand(3, WIDTH))
    with pytest.raises(ConfigError, match="Give it the pictures"):
        cached_features(model, bank, tmp_path)
    with pytest.raises(ConfigError, match="Give the pictures"):
        cached_tokens(model, bank, tmp_path)


def saved_as_on_the_hub(kind: str, folder: Path, processor: dict[str, Any]) -> str:
    """Save a small tower that was trained at 518 pixels, as DINOv2's are."""
    transformers = import_transformers()
    config = vision_config(kind)
    config.image_size, config.patch_size = 518, 14
    random_model(lambda: transformers.AutoModel.from_config(config)).save_pretrained(
        folder
    )
    written = {"image_processor_type": "BitImageProcessor", "do_center_crop": True}
    (folder / "preprocessor_config.json").write_text(json.dumps(written | processor))
    return f"vit:{folder}"


HUB = {
    "crop_size": {"height": 224, "width": 224},
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
    "resample": 3,
    "rescale_factor": 1 / 255,
    "size": {"shortest_edge": 256},
}
"""What facebook/dinov2-base's preprocessor_config.json says, beside its kind."""


def test_dinov2_loads_in_the_layout_of_the_hub(
    tmp_path: Path, images: PixelImages
) -> None:
    name = saved_as_on_the_hub("Dinov2", tmp_path, HUB)
    model = load_frozen(name)
    assert isinstance(model, PictureClassifier)
    assert model.image_size == 224
    pixels = prepared(model, images)
    theirs = import_transformers().AutoModel.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        first = theirs(pixel_values=pixels).last_hidden_state[:, 0]
    assert model.encode_tokens(pixels).shape == (COUNT, 1 + 16 * 16, WIDTH)
    assert torch.allclose(model.encode_images(pixels), normalize(first), atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("ViT", {}),  # its positions are those of 518 pixels
        ("Dinov2", {"do_center_crop": False}),  # no two pictures of one size
    ],
)
def test_pictures_that_the_tower_does_not_take_are_refused(
    kind: str, change: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="takes squares of 518"):
        load_frozen(saved_as_on_the_hub(kind, tmp_path, HUB | change))


def test_towers_that_are_built_in_another_way_are_refused() -> None:
    other = import_transformers().Siglip2VisionModel  # of pictures of any shape
    patches = vision_config("Siglip2Vision")
    for model in (clip_model().vision_model, random_model(lambda: other(patches))):
        with pytest.raises(ConfigError, match="Use one of type 'vit', 'deit',"):
            vit("none", model, image_processor(), "all-linear")


def test_records_without_patches_and_prompts_are_refused() -> None:
    model = loaded("CLIP")
    classifier = model.backbone(NAMES, "a {}")
    assert isinstance(classifier.tower, ClipVisionTower)
    nothing = torch.zeros(1, 2, 3)
    with pytest.raises(ConfigError, match="without their patches"):
        classifier.tower.logits(nothing, None, None, Tuning())
    with pytest.raises(ConfigError, match="no prompts before class names"):
        loaded("ViT").backbone(NAMES, "a {}").prompts(torch.zeros(1, 0, 0))
