"""Prompts before class names in transformers' CLIP and SigLIP."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from privaudit import train
from privaudit.core.devices import use_device
from privaudit.core.errors import ConfigError
from privaudit.core.memory import PeakMemory, use_checkpointing
from privaudit.datasets.dataset import DATASETS
from privaudit.models.hugging_face import import_transformers
from privaudit.models.interfaces import Tuning
from privaudit.models.registry import load_frozen
from privaudit.models.transformers.picture_classifier import PictureClassifier
from tests.audited_runs import attack_one_client
from tests.simulated_device import another_device, assert_agree
from tests.small_records import picture_data
from tests.small_siglip import CONTEXT, save_siglip, siglip_tokenizer
from tests.small_transformers import clip_model, save, text_tokenizer

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
    family: str,
    model: PictureClassifier,
    folders: dict[str, str],
    pictures: Tensor,
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
