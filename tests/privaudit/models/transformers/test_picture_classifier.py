"""Image towers of transformers, and prompts before class names in CLIP and SigLIP."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from privaudit import train
from privaudit.core.devices import use_checkpointing, use_device
from privaudit.core.errors import ConfigError
from privaudit.core.operations import PeakMemory
from privaudit.datasets.dataset import DATASETS, FeatureBank, PixelImages
from privaudit.models.feature_cache import cached_features, cached_tokens
from privaudit.models.hugging_face import import_transformers
from privaudit.models.interfaces import Tuning
from privaudit.models.registry import load_frozen
from privaudit.models.transformers.picture_classifier import (
    PictureClassifier,
    clip,
    vit,
)
from privaudit.models.transformers.towers import ClipVisionTower, VisionTower
from tests.audited_runs import attack_one_client
from tests.simulated_device import another_device, assert_agree
from tests.small_records import picture_data
from tests.small_transformers import (
    CONTEXT,
    NAMES,
    SIZE,
    WIDTH,
    WITHOUT_PREFIX,
    clip_model,
    draw,
    image_processor,
    pair_shapes,
    random_model,
    save,
    save_siglip,
    siglip_tokenizer,
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


CLASS_NAMES = ("Bright film", "dull_song")
TEMPLATE = "a photo of a {}."
FAMILIES = ("siglip-1", "siglip-2", "clip")
# A text whose tokens, where they stand, are those of another one's beginning.
WORDS = {"siglip-1": "a photo of a", "siglip-2": "a photo of a ", "clip": "a film is a"}
FIRST = {"siglip-1": slice(0, 4), "siglip-2": slice(0, 4), "clip": slice(1, 5)}
TINY: dict[str, Any] = {
    "seed": 0,
    "clients": 2,
    "rounds": 1,
    "context_tokens": 4,
    "measured_rounds": 1,
    "tested": 6,
    "test_share": 0.3,
    "public_share": 0.3,
}


@pytest.fixture
def data_set(monkeypatch: pytest.MonkeyPatch) -> str:
    DATASETS.names()
    long_names = ("film " * 22, "song", "play")
    monkeypatch.setitem(DATASETS._entries, "some-pictures", picture_data)
    monkeypatch.setitem(
        DATASETS._entries,
        "long-names",
        lambda: replace(picture_data(), class_names=long_names),
    )
    return "some-pictures"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {
        "siglip-1": save_siglip(tmp_path_factory.mktemp("one"), 1),
        "siglip-2": save_siglip(tmp_path_factory.mktemp("two"), 2),
        "clip": save(tmp_path_factory.mktemp("clip"), "clip-"),
    }


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: Any) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(family: str, folders: dict[str, str]) -> PictureClassifier:
    loaded = load_frozen(folders[family])
    assert isinstance(loaded, PictureClassifier)
    return loaded


@pytest.fixture(scope="module")
def pictures() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(3, 3, 20, 24, generator=generator)


def own_logits(family: str, folder: str, pixels: Tensor) -> tuple[Tensor, float]:
    """Return what transformers' own forward pass says, and the bias in it."""
    transformers = import_transformers()
    if family == "clip":
        model, tokenizer, bias = clip_model(), text_tokenizer("clip"), 0.0
        options: dict[str, Any] = {"padding": True}
    else:
        kind = transformers.SiglipModel
        model = kind.from_pretrained(folder, dtype=torch.float32)
        tokenizer, bias = (
            siglip_tokenizer(int(family[-1])),
            float(model.logit_bias.detach()),
        )
        options = {"padding": "max_length", "max_length": CONTEXT}
    texts = [TEMPLATE.format(name) for name in CLASS_NAMES]
    if family != "clip":  # as it was trained
        texts = [text.lower() for text in texts]
    tokens = tokenizer(texts, return_tensors="pt", **options)
    with torch.no_grad():
        made = model(pixel_values=pixels, **tokens)
    return made.logits_per_image, bias


def test_logits_are_the_models_own_up_to_a_bias_that_is_the_same_for_all_classes(
    family: str, model: PictureClassifier, folders: dict[str, str], pictures: Tensor
) -> None:
    pixels = model.preprocess_batch(pictures)
    folder = folders[family].partition(":")[2]
    expected, bias = own_logits(family, folder, pixels)
    seen = model.backbone(CLASS_NAMES, TEMPLATE)
    features = model.encode_images(pixels)
    found = seen.logit_scale * features @ seen.zero_shot.T
    assert torch.allclose(found + bias, expected, atol=1e-5)
    assert torch.allclose(found.softmax(dim=-1), expected.softmax(dim=-1), atol=1e-5)
    tokens = model.encode_tokens(pixels)[None]
    tuned = seen.tower.logits(features[None], tokens, None, Tuning())[0]
    assert torch.allclose(tuned + bias, expected, atol=1e-5)
    assert seen.tower.head is None


def test_a_context_of_words_equals_the_text_they_spell(
    family: str, model: PictureClassifier
) -> None:
    texts = model._texts
    assert texts is not None
    words = texts.tokenize([WORDS[family]], CONTEXT)[0, FIRST[family]]
    embed = texts.transformer.get_input_embeddings()
    names = ("bright film", "dull song")
    prompts = model.backbone(names, "{}", len(words)).prompts
    found = prompts(embed(words)[None])[0]
    expected = texts.features(names, f"{WORDS[family].strip()} {{}}.")
    assert torch.allclose(found, expected, atol=1e-5)
    spelt = texts.features(["{x} dull_song or dull_song"], "{}")
    assert torch.equal(texts.features(["dull_song"], "{x} {} or {}"), spelt)


@pytest.mark.parametrize(
    ("family", "trainer", "settings"),
    [
        ("siglip-1", "promptfl", {"epochs": 1}),
        ("siglip-1", "fedpt", {"peft_method": "lora", "rank": 2, "epochs": 1}),
        ("siglip-2", "coop", {"epochs": 1}),
        ("siglip-2", "dp-fpl", {"epsilon": 8.0}),
        ("siglip-2", "pfedmoap", {}),
        ("clip", "promptfl", {"epochs": 1}),
        ("clip", "promptfl", {"epochs": 1, "precision": "bfloat16"}),
        ("siglip-2", "dp-fpl", {"epsilon": 8.0, "precision": "bfloat16"}),
    ],
)
def test_a_round_is_trained_and_attacked(
    family: str,
    trainer: str,
    settings: dict[str, Any],
    folders: dict[str, str],
    data_set: str,
    tmp_path: Path,
) -> None:
    precision = settings.get("precision", "float32")
    run = train(
        trainer,
        folder=tmp_path,
        model=folders[family],
        dataset=data_set,
        settings={n: value for n, value in settings.items() if n != "precision"},
        precision=precision,
        **TINY,
    )
    attack_one_client(run, "prompt-release", "loss-threshold")
    assert run.is_complete
    sent = [m.tensors for m in run.transcript if m.is_update]
    before = next((m.tensors for m in run.transcript if m.sender == "server"), {})
    for tensors in sent:
        assert all(tensor.isfinite().all() for tensor in tensors.values())
        assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
        zero = torch.zeros(())
        assert any((sent != before.get(n, zero)).any() for n, sent in tensors.items())


def test_what_these_models_do_not_have_is_refused(
    folders: dict[str, str], data_set: str, tmp_path: Path
) -> None:
    tiny = {"dataset": data_set, "model": folders["siglip-1"], **TINY}
    with pytest.raises(ConfigError, match="has features of whole pictures only"):
        train("fedotp", folder=tmp_path, **tiny)
    with pytest.raises(ConfigError, match="float16 was requested"):
        train("promptfl", folder=tmp_path, precision="float16", **tiny)
    assert not list(tmp_path.glob("*/run.json"))
    with pytest.raises(ConfigError, match="leave 20 of the text tower's 24"):
        train("promptfl", folder=tmp_path, **tiny | {"dataset": "long-names"})


@pytest.mark.parametrize(
    ("family", "kind", "says"),
    [
        ("clip", "Siglip2", "such as siglip2-base-patch16-224"),
        ("vit", "Siglip2", "such as siglip2-base-patch16-224"),
        ("vit", "Swinv2", "the first Swin's do not"),
    ],
)
def test_what_is_not_taken_is_refused_before_its_weights_are_read(
    family: str, kind: str, says: str, tmp_path: Path
) -> None:
    getattr(import_transformers(), f"{kind}Config")().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=says):
        load_frozen(f"{family}:{tmp_path}")


@pytest.mark.gpu
def test_a_round_on_another_device_is_the_same(
    folders: dict[str, str], data_set: str, tmp_path: Path
) -> None:
    options = {"model": folders["siglip-2"], "dataset": data_set, **TINY}
    options["settings"] = {"epochs": 1}
    here = train("promptfl", folder=tmp_path, name="here", **options)
    with another_device() as device, use_device(device):
        there = train("promptfl", folder=tmp_path, name="there", **options)
    for one, other in zip(here.transcript, there.transcript, strict=True):
        assert_agree(one.tensors, other.tensors)


def test_prompts_in_bfloat16_are_near(
    family: str, model: PictureClassifier, folders: dict[str, str]
) -> None:
    coarse: Any = load_frozen(folders[family], precision="bfloat16")
    made, found = [], []
    for one in (model, coarse):
        prompts = one.backbone(CLASS_NAMES, "a {}.", 2).prompts
        context = torch.full((1, 2, prompts.width), 0.1, requires_grad=True)
        made.append(prompts(context))
        assert made[-1].dtype == torch.float32
        found.append(torch.autograd.grad(made[-1][..., 0].sum(), context)[0])
    assert (made[0] * made[1]).sum(dim=-1).min() > 0.999
    assert 0 < (found[1] - found[0]).norm() < 0.05 * found[0].norm()


def test_prompts_run_again_for_the_gradient(model: PictureClassifier) -> None:
    backbone = model.backbone(CLASS_NAMES, "a {}.", 2)
    context = torch.full((1, 2, backbone.prompts.width), 0.1, requires_grad=True)
    found, kept = [], []
    for again in (False, True):
        with use_checkpointing(again), PeakMemory() as memory:
            loss = backbone.prompts(context)[..., 0].sum()
            kept.append(memory.now)
            found.append(torch.autograd.grad(loss, context)[0])
    assert torch.equal(found[0], found[1])
    assert found[0].any()
    assert kept[1] < 0.8 * kept[0]
