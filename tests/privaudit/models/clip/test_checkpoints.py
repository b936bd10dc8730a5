"""Checkpoints of CLIP: safetensors, torch's files, and TorchScript as OpenAI published it."""

import io
import json
import os
import pickle
import struct
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from privaudit.core.errors import (
    ConfigError,
    LimitError,
    MissingFileError,
    PrivauditWarning,
    UnknownNameError,
)
from privaudit.models.clip import checkpoints
from privaudit.models.clip.checkpoints import (
    TorchArchive,
    open_archive,
    says_quick_gelu,
)
from privaudit.models.hugging_face import import_open_clip
from privaudit.models.tiny_clip.loading import build_model
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


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (
            "text_projection",
            torch.zeros(32, 7),
            r"'text_projection' .*\[32, 7\].*\[32, 24\]",
        ),
        ("ln_final.bias", None, "no tensor 'ln_final.bias'"),
        ("more", torch.zeros(1), "a tensor 'more'"),
    ],
)
def test_a_tensor_of_another_shape_too_few_or_too_many_is_named(
    configuration: str,
    weights: dict[str, torch.Tensor],
    tmp_path: Path,
    name: str,
    tensor: torch.Tensor | None,
    message: str,
) -> None:
    changed = {**weights, name: tensor}
    path = tmp_path / "weights.safetensors"
    save_file({n: t for n, t in changed.items() if t is not None}, path)
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
    quick: str, weights: dict[str, Tensor], tmp_path: Path, tag: str, is_quick: bool
) -> None:
    save_file(weights, path := tmp_path / "weights.safetensors")
    model = load_clip(f"{quick}{tag}", path)
    kinds = {type(part).__name__ for part in model.clip.modules()}
    assert ("QuickGELU" in kinds, "GELU" in kinds) == (is_quick, not is_quick)


def test_broken_and_missing_files_are_named_and_break_no_others(
    configuration: str, small_options: dict[str, Any], tmp_path: Path
) -> None:
    whole = json.dumps(small_options)
    for text, why in (
        (whole[:-1], "is no JSON"),
        ("[1]", "embed_dim, vision_cfg, text_cfg of it"),
        (whole.replace("16}", "0}"), r"build .*bad.json \(ZeroDivisionError"),
    ):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(ConfigError, match=why):
            load_clip(f"open_clip:{tmp_path}/bad.json", tmp_path / "bad.json")
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an architecture by its name, with one narrow layer in each tower."""
    open_clip: Any = import_open_clip()
    config = open_clip.get_model_config("ViT-B-32")
    for tower in ("vision_cfg", "text_cfg"):
        config[tower] |= {"layers": 1, "width": 64}
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "ViT-B-32", config)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        clip = open_clip.CLIP(**config)
    path = tmp_path / "weights.safetensors"
    save_file(clip.state_dict(), path)
    plain = load_clip("open_clip:ViT-B-32@gelu", path)
    quick = load_clip("open_clip:ViT-B-32@openai", path)
    assert plain.model_hash == quick.model_hash
    assert (plain.width, plain.dim, plain.image_size) == (64, 512, 224)
    expected = clip.eval().encode_text(
        plain.tokenizer(["a photo of a cat."], 77), normalize=True
    )
    torch.testing.assert_close(plain.template_features(["cat"]), expected)
    difference = quick.template_features(["cat"]) - expected
    assert difference.abs().max() > 1e-3


SIZES = ("input_resolution", "context_length", "vocab_size")


class Stored(nn.Module):
    """Holds tensors under OpenAI's names, module in module, to be scripted."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        inner: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            first, dot, rest = name.partition(".")
            if dot:
                inner.setdefault(first, {})[rest] = tensor
            elif tensor.is_floating_point():
                self.register_parameter(first, nn.Parameter(tensor))
            else:
                self.register_buffer(first, tensor)
        for name, parts in inner.items():
            self.add_module(name, Stored(parts))

    def forward(self, pictures: Tensor) -> Tensor:
        return pictures


class QuickGELU(nn.Module):
    def forward(self, pictures: Tensor) -> Tensor:
        return pictures * torch.sigmoid(1.702 * pictures)


def script(path: Path, clip: nn.Module, *, quick: bool, halves: bool = False) -> Path:
    """Save a model's weights as TorchScript; with OpenAI's activation, if it is quick."""
    weights = clip.state_dict()
    if halves:
        weights = {name: t.half() for name, t in weights.items()}
    module = Stored(weights)
    if quick:
        module.add_module("gelu", QuickGELU())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # files outlive functions
        torch.jit.save(torch.jit.script(module.eval()), path)
    return path


@pytest.fixture
def quick(small_options: dict[str, Any], tmp_path: Path) -> str:
    path = tmp_path / "small-with-quick.json"
    path.write_text(json.dumps(small_options | {"quick_gelu": True}))
    return f"open_clip:{path}"


def test_an_archive_of_torchscript_has_the_features_of_its_model(
    quick: str, build: Callable[..., nn.Module], tmp_path: Path
) -> None:
    clip: Any = build(quick_gelu=True)
    path = script(tmp_path / "ViT-tiny.pt", clip, quick=True)
    model = load_clip(quick, path)
    assert any(name.endswith("attn.in_proj_weight") for name in clip.state_dict())
    pictures = torch.rand(2, 3, 32, 32)
    wanted = clip.encode_image(pictures, normalize=True)
    torch.testing.assert_close(model.encode_images(pictures), wanted)
    tokens = model.tokenizer(["a photo of a cat."], 40)
    words = clip.encode_text(tokens, normalize=True)
    torch.testing.assert_close(model.template_features(["cat"]), words)


def test_half_precision_is_read_as_it_lies_there(
    quick: str, build: Callable[..., nn.Module], tmp_path: Path
) -> None:
    clip = build(quick_gelu=True)
    model = load_clip(quick, script(tmp_path / "h.pt", clip, quick=True, halves=True))
    for name, tensor in model.clip.state_dict().items():
        assert torch.equal(tensor, clip.state_dict()[name].half().float()), name


def openai_like(path: Path, clip: nn.Module) -> Path:
    weights = {**clip.state_dict(), **{name: torch.tensor(1) for name in SIZES}}
    if path.stem == "scripted":
        script(path, clip, quick=True)
    elif path.suffix == ".safetensors":
        before = "module." if path.stem == "wrapped" else ""
        save_file({before + name: t.clone() for name, t in weights.items()}, path)
    elif path.stem == "legacy":
        torch.save(weights, path, _use_new_zipfile_serialization=False)
    elif path.stem == "more":  # than our reader takes, and torch does
        torch.save({"state_dict": weights, "precision": torch.float16}, path)
    else:
        torch.save(weights, path)
    return path


@pytest.mark.parametrize(
    "form", ["scripted.pt", "state.pt", "state.safetensors", "wrapped.safetensors"]
)
def test_where_only_the_checkpoint_says_quick_gelu_it_is_taken(
    configuration: str, build: Callable[..., nn.Module], tmp_path: Path, form: str
) -> None:
    """With GELU the features would be others, and nothing would say so."""
    clip: Any = build(quick_gelu=True)
    path = openai_like(tmp_path / form, clip)
    with pytest.warns(PrivauditWarning, match="trained with QuickGELU"):
        model = load_clip(configuration, path)
    pictures = torch.rand(2, 3, 32, 32)
    wanted = clip.encode_image(pictures, normalize=True)
    torch.testing.assert_close(model.encode_images(pictures), wanted)
    save_file(clip.state_dict(), wrong := tmp_path / "unsaid.safetensors")
    other = load_clip(configuration, wrong).encode_images(pictures)
    assert (other - wanted).abs().max() > 3e-4  # of 2e-3; rounding is a hundredth


@pytest.mark.parametrize("form", ["scripted.pt", "state.pt"])
def test_a_tag_that_says_otherwise_is_refused(
    configuration: str, build: Callable[..., nn.Module], tmp_path: Path, form: str
) -> None:
    path = openai_like(tmp_path / form, build())
    with pytest.raises(ConfigError, match="@gelu means GELU: its features would be"):
        load_clip(f"{configuration}@gelu", path)


@pytest.mark.parametrize("form", ["legacy.pt", "more.pt"])
def test_what_only_torch_reads_is_refused_for_gelu(
    configuration: str,
    quick: str,
    build: Callable[..., nn.Module],
    tmp_path: Path,
    form: str,
) -> None:
    """Torch's format before 1.6, or values beside the weights."""
    path = openai_like(tmp_path / form, build(quick_gelu=True))
    for named in (configuration, f"{configuration}@gelu"):
        with pytest.raises(ConfigError, match=r"the model has GELU.*\.safetensors"):
            load_clip(named, path)
    load_clip(quick, path)


def test_torchs_older_format_is_read(
    configuration: str, weights: dict[str, Tensor], tmp_path: Path
) -> None:
    path = tmp_path / "own.pt"
    torch.save(weights, path, _use_new_zipfile_serialization=False)
    for name, tensor in load_clip(configuration, path).clip.state_dict().items():
        assert torch.equal(tensor, weights[name]), name


def test_what_says_nothing_is_as_named(
    configuration: str, build: Callable[..., nn.Module], tmp_path: Path
) -> None:
    path = script(tmp_path / "x.pt", build(), quick=False)
    assert not says_quick_gelu(path)
    load_clip(configuration, path)  # no warning: warnings are errors here
    (tmp_path / "legacy.pt").write_bytes(b"no zip")
    assert not says_quick_gelu(tmp_path / "legacy.pt")


class System:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch ran",)


def repacked(path: Path, out: Path, change: Mapping[str, bytes | None]) -> Path:
    """Copy a zip with some entries of other content, or without them."""
    with ZipFile(path) as old, ZipFile(out, "w") as new:
        for entry in old.infolist():
            inner = entry.filename.partition("/")[2]
            content = change.get(inner, old.read(entry))
            if content is not None:
                new.writestr(entry.filename, content)
    return out


@pytest.mark.parametrize("payload", [Payload(), System(), {"weight": [System()]}])
def test_a_hostile_archive_runs_nothing(
    configuration: str,
    build: Callable[..., nn.Module],
    tmp_path: Path,
    payload: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = script(tmp_path / "x.pt", build(), quick=True)
    evil = repacked(path, tmp_path / "e.pt", {"data.pkl": pickle.dumps(payload, 2)})
    with pytest.raises(ConfigError, match="nothing of it was run"):
        load_clip(configuration, evil)
    assert not (tmp_path / "ran").exists()


def test_the_code_in_an_archive_is_never_read(
    quick: str, build: Callable[..., nn.Module], tmp_path: Path
) -> None:
    path = script(tmp_path / "x.pt", build(), quick=True)
    with ZipFile(path) as archive:
        code = [n.partition("/")[2] for n in archive.namelist() if "/code/" in n]
    assert code
    without = repacked(path, tmp_path / "e.pt", dict.fromkeys(code, b"!"))
    assert load_clip(quick, without).dim == 24


def test_a_download_that_was_cut_is_to_be_made_again(
    quick: str, build: Callable[..., nn.Module], tmp_path: Path
) -> None:
    path = script(tmp_path / "ViT-tiny.pt", build(quick_gelu=True), quick=True)
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(ConfigError, match=r"it was cut or .* Download it again"):
        load_clip(quick, path)


def test_bytes_that_are_missing_or_too_few_are_one_line(
    quick: str, build: Callable[..., nn.Module], tmp_path: Path
) -> None:
    path = script(tmp_path / "x.pt", build(), quick=True)
    for number, content in enumerate((b"\0" * 8, None)):
        evil = repacked(path, tmp_path / f"{number}.pt", {"data/3": content})
        with pytest.raises(ConfigError, match="damaged pickle"):
            load_clip(quick, evil)


def text(value: str) -> bytes:
    return b"X" + struct.pack("<i", len(value)) + value.encode()


def tensor_of(
    steps: bytes, key: bytes = text("0"), kind: str = "Float", count: int = 4
) -> bytes:
    """Return the pickle's steps for a tensor of an entry's bytes."""
    named = f"ctorch\n{kind}Storage\n".encode()
    storage = b"(" + text("storage") + named + key + text("cpu") + b"K%c" % count
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"tQ" + steps + b"tR"


def hand_made(tmp_path: Path, steps: bytes) -> Path:
    """Return an archive whose only tensor is four numbers, seen as the steps say."""
    return packed(tmp_path, b"}" + text("w") + tensor_of(steps) + b"s")


def packed(tmp_path: Path, steps: bytes) -> Path:
    """Return an archive whose pickle takes the steps, beside four numbers."""
    content = b"\x80\x02" + steps + b"."
    buffer = io.BytesIO()
    with ZipFile(buffer, "w") as archive:
        archive.writestr("a/data.pkl", content)
        archive.writestr("a/data/0", struct.pack("<4f", 1, 2, 3, 4))
        archive.writestr("a/constants.pkl", b"")
    path = tmp_path / "hand.pt"
    path.write_bytes(buffer.getvalue())
    return path


TWO_BY_TWO = b"K\x00K\x02K\x02\x86K\x01K\x02\x86\x89}"  # offset, shape, stride


def test_a_tensor_by_hand_is_seen_by_its_strides(tmp_path: Path) -> None:
    archive = open_archive(hand_made(tmp_path, TWO_BY_TWO))
    assert archive is not None
    assert archive.tensors()["w"].tolist() == [[1, 3], [2, 4]]


@pytest.mark.parametrize(
    "steps",
    [
        b"K\x01K\x02K\x02\x86K\x01K\x02\x86\x89}",  # ends behind the last number
        b"K\x00J\x00\x00\x00\x7fK\x02\x86K\x00K\x00\x86\x89}",  # of no steps, endlessly
        b"K\x00K\x02\x85J\xff\xff\xff\xff\x85\x89}",  # backwards
        b"K\x00K\x02\x85K\x01K\x01\x86\x89}",
        b"NK\x02\x85K\x01\x85\x89}",
        b"K\x00NN\x89}",
        b"K\x00]K\x02a]K\x01a\x89}",  # lists
    ],
)
def test_a_tensor_of_more_than_is_there_is_refused(
    tmp_path: Path, steps: bytes
) -> None:
    with pytest.raises(ConfigError, match="damaged pickle"):
        open_archive(hand_made(tmp_path, steps))


def test_a_tensor_of_very_many_axes_is_refused_before_they_are_multiplied(
    tmp_path: Path,
) -> None:
    axes = b"(" + b"K\x01" * 9 + b"t"
    with pytest.raises(ConfigError, match=r"9 axes with 9 strides"):
        open_archive(hand_made(tmp_path, b"K\x00" + axes + axes + b"\x89}"))


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (b"]", "more than plain values"),
        (b")" + b"2\x86" * 12, "more than plain values"),  # its text doubles each time
        (b"K\x00", "bytes without a name"),
        (text("0" * 257), "bytes without a name"),
    ],
)
def test_the_name_of_an_entry_is_a_short_text(
    tmp_path: Path, key: bytes, says: str
) -> None:
    steps = b"}" + text("w") + tensor_of(TWO_BY_TWO, key) + b"s"
    with pytest.raises(ConfigError, match=says):
        open_archive(packed(tmp_path, steps))


def opened(path: Path) -> TorchArchive:
    archive = open_archive(path)
    assert archive is not None
    return archive


def test_names_are_short_and_not_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One text over many entries would be copied for each."""
    inner = b"}(" + b"".join(
        text(f"w{n}") + tensor_of(TWO_BY_TWO) for n in range(20)
    )  # fmt: skip
    archive = opened(packed(tmp_path, b"}" + text("a" * 256) + inner + b"us"))
    assert len(archive.places()) == 20
    monkeypatch.setattr(checkpoints, "NAMES", 20 * 256)
    with pytest.raises(ValueError, match="more than 5,120 characters"):
        archive.places()
    longer = packed(tmp_path, b"}" + text("a" * 257) + inner + b"us")
    with pytest.raises(ValueError, match="a name in it has 257 characters"):
        opened(longer).places()
    assert not says_quick_gelu(longer)


def test_what_is_passed_over_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dict of numbers, again and again, takes time though it holds no tensor."""
    numbers = b"}(" + b"".join(b"K%cN" % n for n in range(100)) + b"uq\x01"
    again = b"".join(text(f"w{n}") + b"h\x01" for n in range(100))
    archive = opened(packed(tmp_path, numbers + b"0}(" + again + b"u"))
    monkeypatch.setenv("PRIVAUDIT_MAX_ENTRIES", "5000")
    with pytest.raises(LimitError, match="A checkpoint's tree of modules"):
        archive.places()


def test_an_entry_is_read_once_whatever_its_numbers_are_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_int = tensor_of(b"K\x00K\x04\x85K\x01\x85\x89}", kind="Int")
    tensors = text("w") + tensor_of(TWO_BY_TWO) + text("i") + as_int
    archive = opened(packed(tmp_path, b"}(" + tensors + b"u"))
    read: list[str] = []
    old = ZipFile.read

    def counted(file: ZipFile, name: str) -> bytes:
        read.append(name)
        return old(file, name)

    monkeypatch.setattr(ZipFile, "read", counted)
    found = archive.tensors()
    assert found["w"].tolist() == [[1, 3], [2, 4]]
    assert found["i"].tolist() == list(
        struct.unpack("<4i", struct.pack("<4f", 1, 2, 3, 4))
    )
    assert read == ["a/data/0"]
