import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from privaudit.core.errors import ConfigError, MissingFileError, UnknownNameError
from privaudit.models.clip.torchvision_shim import import_open_clip
from privaudit.models.tiny_clip.architecture import build_model
from tests.loaded_models import load_clip


@pytest.fixture
def weights(build: Callable[..., nn.Module]) -> dict[str, torch.Tensor]:
    return build().state_dict()


def test_safetensors_are_loaded_into_an_architecture(
    configuration: str, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    path = tmp_path / "weights.safetensors"
    save_file(weights, path)
    model = load_clip(configuration, path)
    for name, tensor in model.clip.state_dict().items():
        assert torch.equal(tensor, weights[name])
    features = model.template_features(["cat", "dog"])
    assert features.shape == (2, 24)
    pictures = model.preprocess_batch(torch.zeros(1, 3, 50, 40))
    assert model.encode_images(pictures).shape == (1, 24)


def test_torch_files_are_read_with_the_habits_of_trainers(
    configuration: str, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    path = tmp_path / "epoch_1.pt"
    named = {f"module.{name}": tensor for name, tensor in weights.items()}
    named["module.logit_scale"] = weights["logit_scale"].reshape(1)
    torch.save({"epoch": 1, "state_dict": named}, path)
    model = load_clip(configuration, path)
    assert model.logit_scale == pytest.approx(float(weights["logit_scale"].exp()))


class Payload:
    """Would run code if it were unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a checkpoint ran code",))


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_file_with_objects_runs_no_code(
    configuration: str, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"evil{suffix}"
    torch.save({"state_dict": Payload()}, path)
    with pytest.raises(ConfigError, match=r"evil"):
        load_clip(configuration, path)


def test_a_text_file_is_no_checkpoint(configuration: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    path.write_text("not a checkpoint")
    with pytest.raises(ConfigError, match="no file of plain tensors"):
        load_clip(configuration, path)
    torch.save([1, 2], path)
    with pytest.raises(ConfigError, match="holds a list"):
        load_clip(configuration, path)


def test_the_first_tensor_of_another_shape_is_named(
    configuration: str, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    path = tmp_path / "weights.safetensors"
    weights["text_projection"] = torch.zeros(32, 7)
    save_file(weights, path)
    with pytest.raises(ConfigError, match=r"'text_projection' .*\[32, 7\].*\[32, 24\]"):
        load_clip(configuration, path)


@pytest.mark.parametrize(
    ("change", "message"),
    [("remove", "no tensor 'ln_final.bias'"), ("add", "a tensor 'more'")],
)
def test_a_tensor_too_few_or_too_many_is_named(
    configuration: str,
    weights: dict[str, torch.Tensor],
    tmp_path: Path,
    change: str,
    message: str,
) -> None:
    if change == "remove":
        del weights["ln_final.bias"]
    else:
        weights["more"] = torch.zeros(1)
    path = tmp_path / "weights.safetensors"
    save_file(weights, path)
    with pytest.raises(ConfigError, match=message):
        load_clip(configuration, path)


def test_unknown_names_come_with_the_nearest_known(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="'tiny-clip'"):
        load_clip("tinyclip")
    with pytest.raises(UnknownNameError, match="mean 'ViT-B-16'"):
        load_clip("open_clip:ViT-B16", tmp_path)
    with pytest.raises(UnknownNameError, match="mean 'openai'"):
        load_clip("open_clip:ViT-B-16@opena")


@pytest.mark.parametrize("name", ["open_clip:ViT-B-32", "open_clip:ViT-B-32@gelu"])
def test_an_architecture_without_weights_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="without weights"):
        load_clip(name)


@pytest.mark.parametrize("architecture", ["ViT-B-16", "ViT-L-14", "RN50"])
def test_a_checkpoint_of_either_activation_needs_its_tag(
    architecture: str, tmp_path: Path
) -> None:
    missing = tmp_path / "nowhere.pt"
    with pytest.raises(ConfigError, match=f"open_clip:{architecture}@openai"):
        load_clip(f"open_clip:{architecture}", missing)
    for said in (f"{architecture}@openai", f"{architecture}@gelu"):
        with pytest.raises(MissingFileError, match="no checkpoint"):
            load_clip(f"open_clip:{said}", missing)


@pytest.mark.parametrize(("tag", "is_quick"), [("", True), ("@gelu", False)])
def test_the_activation_is_the_one_that_was_named(
    small_options: dict[str, Any], tmp_path: Path, tag: str, is_quick: bool
) -> None:
    path = tmp_path / "small-quick.json"
    path.write_text(json.dumps(small_options | {"quick_gelu": True}))
    open_clip: Any = import_open_clip()
    weights = tmp_path / "weights.safetensors"
    save_file(open_clip.CLIP(**small_options).state_dict(), weights)
    model = load_clip(f"open_clip:{path}{tag}", weights)
    kinds = {type(part).__name__ for part in model.clip.modules()}
    assert ("QuickGELU" in kinds, "GELU" in kinds) == (is_quick, not is_quick)


def test_a_missing_file_is_named(configuration: str, tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"no checkpoint .*nowhere\.pt"):
        load_clip(configuration, tmp_path / "nowhere.pt")
    with pytest.raises(MissingFileError, match="no model configuration"):
        load_clip("open_clip:nowhere.json", tmp_path)


def test_tiny_clip_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "privaudit.models.tiny_clip.loading.load_embedded",
        lambda *_: (build_model().eval(), ""),
    )
    model = load_clip()
    assert model.name == "tiny-clip"
    assert model.prompts(["zero", "one"]).context_tokens == 16
    assert model.template_features(["zero", "one"]).shape == (2, model.dim)
    for channels in (1, 3):
        scans = torch.zeros(4, channels, 8, 8, dtype=torch.uint8)
        prepared = model.preprocess_batch(scans)
        assert prepared.shape == (4, 3, model.image_size, model.image_size)
        assert model.encode_images(prepared).shape == (4, model.dim)


def test_a_failed_download_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(options: dict[str, Any]) -> str:
        raise OSError(f"no route to the hub for {options['hf_hub']}\nmore lines")

    monkeypatch.setattr(import_open_clip(), "download_pretrained", no_network)
    with pytest.raises(MissingFileError, match="no route to the hub") as caught:
        load_clip("open_clip:ViT-B-16@openai")
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_tag_beside_a_checkpoint_gives_activation_and_preparation(
    tmp_path: Path,
) -> None:
    open_clip: Any = import_open_clip()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        clip = open_clip.CLIP(**open_clip.get_model_config("ViT-B-32"))
    path = tmp_path / "weights.safetensors"
    save_file(clip.state_dict(), path)
    plain = load_clip("open_clip:ViT-B-32@gelu", path)
    quick = load_clip("open_clip:ViT-B-32@openai", path)
    assert plain.model_hash == quick.model_hash
    assert (plain.width, plain.dim, plain.image_size) == (512, 512, 224)
    expected = clip.eval().encode_text(
        plain.tokenizer(["a photo of a cat."], 77), normalize=True
    )
    torch.testing.assert_close(plain.template_features(["cat"]), expected)
    difference = quick.template_features(["cat"]) - expected
    assert difference.abs().max() > 1e-3
