"""Models by name."""

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from privaudit.core.errors import ConfigError, MissingFileError, UnknownNameError
from privaudit.models.clip.checkpoints import load_checkpoint
from privaudit.models.clip.picture_preparation import (
    PicturePreparation,
    Pictures,
    as_rgb,
)
from privaudit.models.clip.promptable_clip import PromptableCLIP
from privaudit.models.clip.torchvision_shim import import_open_clip
from privaudit.models.names import CLASSIFYING

MODELS = ("tiny-clip", "surrogate:FOLDER", "open_clip:ARCH", "open_clip:ARCH@TAG")
"""What ``--model`` takes; ARCH and TAG are open_clip's names, FOLDER is what
``privaudit pretrain surrogate-clip`` wrote."""
PLAIN = "gelu"
"""A tag for checkpoints of one's own, trained with GELU."""


@dataclass(frozen=True)
class _OpenClipName:
    architecture: str
    tag: str | None

    @classmethod
    def parse(cls, name: str) -> "_OpenClipName":
        architecture, _, tag = name.removeprefix("open_clip:").partition("@")
        return cls(architecture, tag or None)


def load_model(
    name: str = "tiny-clip", checkpoint: Path | None = None, device: str = "cpu"
) -> PromptableCLIP:
    """Load a model with its weights, frozen.

    Args:
        name: "tiny-clip", which comes with the package; "surrogate:FOLDER", which was
            pretrained on the public part of a data set; "open_clip:ARCH" with weights
            from ``checkpoint``, where ARCH is open_clip's name or the path of an
            open_clip configuration (.json); or "open_clip:ARCH@TAG", whose weights
            open_clip downloads, unless ``checkpoint`` has them: then the tag only says
            which activation and which picture preparation belong to them. Of an
            architecture whose published weights are of two activations, a checkpoint
            needs the tag; "gelu" is one for weights of your own.
        checkpoint: A .safetensors file, or a torch file of plain tensors.
        device: Where the model runs, as torch names it.

    Raises:
        UnknownNameError: There is no such model, architecture or tag.
        MissingFileError: There is no such checkpoint, or it could not be downloaded.
        ConfigError: There are no weights, they are another architecture's, or nothing
            says which activation they were trained with.
    """
    if name == "tiny-clip":
        return _tiny_clip(checkpoint, device)
    if name.startswith("surrogate:"):
        return _surrogate(name.removeprefix("surrogate:"), checkpoint, device)
    if not name.startswith("open_clip:"):
        raise UnknownNameError("model", name, (*MODELS, *CLASSIFYING))
    return _open_clip(name, checkpoint, device)


def _tiny_clip(checkpoint: Path | None, device: str) -> PromptableCLIP:
    if checkpoint is not None:
        raise ConfigError(
            f"tiny-clip has its own weights, and a checkpoint is given: {checkpoint}. "
            "Leave it out, or name the checkpoint's architecture: open_clip:ARCH."
        )
    from privaudit.models.tiny_clip.loading import load
    from privaudit.models.tiny_clip.preprocessing import preprocess_batch

    def prepare(pictures: Pictures) -> Tensor:
        return preprocess_batch(as_rgb(pictures))

    embedded = load()
    clip = embedded.model.to(device)
    return PromptableCLIP("tiny-clip", clip, embedded.tokenizer, prepare)


def _surrogate(folder: str, checkpoint: Path | None, device: str) -> PromptableCLIP:
    if checkpoint is not None:
        raise ConfigError(
            f"The surrogate in {folder!r} has its own weights, and a checkpoint is "
            f"given: {checkpoint}. Leave it out."
        )
    from privaudit.models.surrogate_clip.storage import load_surrogate

    if not folder:
        raise ConfigError(
            "surrogate: needs the folder of a surrogate, as in surrogate:models/mine. "
            "Make one with: privaudit pretrain surrogate-clip."
        )
    return load_surrogate(Path(folder), device)


def _open_clip(name: str, checkpoint: Path | None, device: str) -> PromptableCLIP:
    open_clip: Any = import_open_clip()
    parsed = _OpenClipName.parse(name)
    architecture = _known_architecture(open_clip, parsed.architecture)
    if checkpoint is not None:
        _check_activation(open_clip, architecture, parsed.tag)
    tag_options = _tag_options(open_clip, architecture, parsed.tag)
    if checkpoint is None:
        checkpoint = _download(open_clip, name, tag_options)
    clip = _build(open_clip, architecture, tag_options)
    load_checkpoint(clip, checkpoint)
    tokenizer = open_clip.get_tokenizer(architecture)
    prepare = _preparation(clip, tag_options)
    return PromptableCLIP(name, clip.to(device), tokenizer, prepare)


def _known_architecture(open_clip: Any, architecture: str) -> str:
    if architecture.endswith(".json"):
        if not Path(architecture).is_file():
            raise MissingFileError(f"There is no model configuration {architecture}.")
        open_clip.add_model_config(Path(architecture))
        architecture = Path(architecture).stem
    known = open_clip.list_models()
    if architecture not in known:
        nearest = get_close_matches(architecture, known, n=8, cutoff=0.3) or known
        raise UnknownNameError("open_clip architecture", architecture, nearest)
    return architecture


def _check_activation(open_clip: Any, architecture: str, tag: str | None) -> None:
    """Refuse a checkpoint that fits two activations, of which one would be wrong.

    No tensor tells GELU from QuickGELU, with which OpenAI's weights were trained: the
    features would come out wrong without an error.
    """
    if tag is not None or open_clip.get_model_config(architecture).get("quick_gelu"):
        return
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    quick = [
        tag
        for tag in tags
        if open_clip.get_pretrained_cfg(architecture, tag).get("quick_gelu")
    ]
    if quick:
        raise ConfigError(
            f"A checkpoint for {architecture} was given, and its tensors do not say "
            "whether they were trained with QuickGELU, as OpenAI's weights, or with "
            f"GELU. Name the tag whose weights they are: open_clip:{architecture}@"
            f"{quick[0]} (QuickGELU: {', '.join(quick)}), or open_clip:{architecture}@"
            f"{PLAIN} for GELU."
        )


def _tag_options(open_clip: Any, architecture: str, tag: str | None) -> dict[str, Any]:
    """Return what open_clip knows of a pretrained tag; nothing where none is named."""
    if tag is None:
        return {}
    if tag == PLAIN:
        return {"quick_gelu": False}
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    if tag not in tags:
        raise UnknownNameError(f"pretrained tag of {architecture}", tag, tags)
    return dict(open_clip.get_pretrained_cfg(architecture, tag))


def _download(open_clip: Any, name: str, tag_options: dict[str, Any]) -> Path:
    if not (tag_options.get("url") or tag_options.get("hf_hub")):
        raise ConfigError(
            f"{name} is an architecture without weights, and random ones say nothing. "
            "Give a checkpoint, or a pretrained tag: open_clip:ARCH@TAG."
        )
    try:
        return Path(open_clip.download_pretrained(tag_options))
    except Exception as error:  # whatever a network, a proxy or a hub can raise
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise MissingFileError(
            f"The weights of {name} could not be downloaded ({reason}). Connect to the "
            "network, or give the file as a checkpoint."
        ) from error


def _build(open_clip: Any, architecture: str, tag_options: dict[str, Any]) -> nn.Module:
    """Build the model without weights, in silence (open_clip's own warns of that)."""
    options = open_clip.get_model_config(architecture)
    if options["text_cfg"].get("hf_model_name"):
        raise ConfigError(
            f"{architecture} has a Hugging Face text tower, into which no context can "
            "be put. Choose an architecture with open_clip's own, such as ViT-B-16."
        )
    if "timm_model_name" in options["vision_cfg"]:
        options["vision_cfg"]["timm_model_pretrained"] = False
    if "quick_gelu" in tag_options:
        options["quick_gelu"] = tag_options["quick_gelu"]
    kind = "CustomTextCLIP" if options.pop("custom_text", False) else "CLIP"
    if "multimodal_cfg" in options:
        kind = "CoCa"
    return getattr(open_clip, kind)(**options)


def _preparation(clip: nn.Module, tag_options: dict[str, Any]) -> PicturePreparation:
    visual: Any = clip.visual
    size = visual.image_size
    open_clip: Any = import_open_clip()
    return PicturePreparation(
        size=size if isinstance(size, int) else size[0],
        mean=tag_options.get("mean") or open_clip.OPENAI_DATASET_MEAN,
        std=tag_options.get("std") or open_clip.OPENAI_DATASET_STD,
        interpolation=tag_options.get("interpolation") or "bicubic",
        fit=tag_options.get("resize_mode") or "shortest",
    )
