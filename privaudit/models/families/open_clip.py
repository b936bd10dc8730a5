"""CLIPs of open_clip: ``ARCH``, or ``ARCH@TAG`` whose weights it downloads.

ARCH is open_clip's name, or the path of one of its configurations (.json).
"""

import json
import warnings
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from torch import nn

from privaudit.core.errors import (
    ConfigError,
    MissingFileError,
    PrivauditWarning,
    UnknownNameError,
    shown,
)
from privaudit.core.limits import check_json, read_bytes
from privaudit.models.clip.checkpoints import (
    check_is_there,
    load_checkpoint,
    says_quick_gelu,
)
from privaudit.models.clip.picture_preparation import PicturePreparation
from privaudit.models.clip.promptable_clip import PromptableCLIP
from privaudit.models.hugging_face import (
    import_open_clip,
    load_reader,
    loading_errors,
    model_type,
)
from privaudit.models.registry import MODELS, ModelFamily, ModelRequest
from privaudit.models.remote_code import refuse_remote_code

PLAIN = "gelu"  # a tag for checkpoints of one's own, trained with GELU
# What a configuration may set of its tokenizer. open_clip hands all of them on to
# transformers, where others let code run or name files.
TOKENIZER_OPTIONS = ("clean", "language", "strip_sep_token")


def _load(request: ModelRequest) -> PromptableCLIP:
    """Load a model with weights from a checkpoint, or those of the tag's name.

    Beside a checkpoint the tag only says which activation and which picture
    preparation belong to it.
    """
    open_clip: Any = import_open_clip()
    named, _, tag = request.source.partition("@")
    architecture, checkpoint = _known_architecture(open_clip, named), request.checkpoint
    tag_options = _preparation_of(open_clip, architecture)
    if checkpoint is not None and _is_quick(open_clip, architecture, tag, checkpoint):
        tag_options["quick_gelu"] = True
    tag_options |= _tag_options(open_clip, architecture, tag)
    if checkpoint is None:
        checkpoint = _download(open_clip, request.name, tag_options)
    options = _model_options(open_clip, architecture, tag_options)
    check_is_there(checkpoint)
    clip = _build(open_clip, request.name, options)
    load_checkpoint(clip, checkpoint)
    tokenizer = _tokenizer(open_clip, architecture, options)
    if options["text_cfg"].get("hf_model_name"):  # which says more, or nothing
        clip.context_length = tokenizer.context_length
    prepare = _preparation(clip, tag_options)
    return PromptableCLIP(request.name, clip.to(request.device), tokenizer, prepare)


def _known_architecture(open_clip: Any, architecture: str) -> str:
    if architecture.endswith(".json"):
        if not Path(architecture).is_file():
            raise MissingFileError(f"There is no model configuration {architecture}.")
        named, architecture = architecture, Path(architecture).stem
        if ":" in architecture:  # open_clip would look in a folder, or on the hub
            raise ConfigError(
                f"The model configuration {named} has a colon in its file's name, and "
                "open_clip would read another in its place. Rename the file."
            )
        _check_configuration(Path(named))
        open_clip.add_model_config(Path(named))
    known = open_clip.list_models()
    if architecture not in known:
        nearest = get_close_matches(architecture, known, n=8, cutoff=0.3) or known
        raise UnknownNameError("open_clip architecture", architecture, nearest)
    return architecture


def _check_configuration(path: Path) -> None:
    """Refuse a broken configuration: open_clip would read it again with every other."""
    check_json(content := read_bytes(path), str(path))
    try:
        entries = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"The model configuration {path} is no JSON ({error}). Restore the file."
        ) from None
    wanted = {"embed_dim": int, "vision_cfg": dict, "text_cfg": dict}
    held = entries if isinstance(entries, dict) else {}
    if wrong := [n for n, kind in wanted.items() if not isinstance(held.get(n), kind)]:
        raise ConfigError(
            f"The model configuration {path} needs embed_dim, a number, and vision_cfg "
            f"and text_cfg, objects: {', '.join(wrong)} of it cannot be used. Mend it."
        )


def _is_quick(open_clip: Any, architecture: str, tag: str, path: Path) -> bool:
    """Say whether a checkpoint needs QuickGELU where neither tag nor configuration says."""
    quick = open_clip.get_model_config(architecture).get("quick_gelu", False)
    if tag:
        quick = _tag_options(open_clip, architecture, tag).get("quick_gelu", quick)
    if quick:
        return False
    if not path.is_file() or not says_quick_gelu(path):
        _check_activation(open_clip, architecture, tag)
        return False
    if tag:
        raise ConfigError(
            f"{path} says that it was trained with QuickGELU, as OpenAI's weights, and "
            f"open_clip:{architecture}@{tag} means GELU: its features would be wrong. "
            "Name the tag whose weights they are, or leave it out."
        )
    warnings.warn(
        f"{path} was trained with QuickGELU, as OpenAI's weights, and {architecture} "
        "does not say so: QuickGELU is taken.",
        PrivauditWarning,
        stacklevel=2,
    )
    return True


def _check_activation(open_clip: Any, architecture: str, tag: str) -> None:
    """Refuse a checkpoint that fits two activations, of which one would be wrong.

    No tensor tells GELU from QuickGELU, with which OpenAI's weights were trained: the
    features would come out wrong without an error.
    """
    if tag or open_clip.get_model_config(architecture).get("quick_gelu"):
        return
    get = open_clip.get_pretrained_cfg
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    if quick := [tag for tag in tags if get(architecture, tag).get("quick_gelu")]:
        raise ConfigError(
            f"A checkpoint for {architecture} was given, and its tensors do not say "
            "whether they were trained with QuickGELU, as OpenAI's weights, or with "
            f"GELU. Name the tag whose weights they are: open_clip:{architecture}@"
            f"{quick[0]} (QuickGELU: {', '.join(quick)}), or open_clip:{architecture}@"
            f"{PLAIN} for GELU."
        )


def _tag_options(open_clip: Any, architecture: str, tag: str) -> dict[str, Any]:
    """Return what open_clip knows of a pretrained tag; nothing where none is named."""
    if not tag:
        return {}
    if tag == PLAIN:
        return {"quick_gelu": False}
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    if tag not in tags:
        raise UnknownNameError(f"pretrained tag of {architecture}", tag, tags)
    return dict(open_clip.get_pretrained_cfg(architecture, tag))


def _preparation_of(open_clip: Any, architecture: str) -> dict[str, Any]:
    """Return how pictures are prepared, where all tags of an architecture agree."""
    names = ("mean", "std", "interpolation", "resize_mode")
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    known = [open_clip.get_pretrained_cfg(architecture, tag) for tag in tags]
    found = [{name: each.get(name) for name in names} for each in known]
    return found[0] if found and all(each == found[0] for each in found) else {}


def _tokenizer(open_clip: Any, architecture: str, options: dict[str, Any]) -> Any:
    """Return the tokenizer; code that comes with one of transformers never runs."""
    _check_tokenizer_options(architecture, options["text_cfg"])
    name = options["text_cfg"].get("hf_tokenizer_name")
    if not name:
        return open_clip.get_tokenizer(architecture)
    with refuse_remote_code():
        load_reader("AutoTokenizer", "tokenizer", name)
    with loading_errors("tokenizer", name):  # the last word over a configuration's
        return open_clip.get_tokenizer(architecture, trust_remote_code=False)


def _check_tokenizer_options(architecture: str, text: dict[str, Any]) -> None:
    """Refuse options of a tokenizer beyond those of published configurations."""
    options = text.get("tokenizer_kwargs", {})
    given = ", ".join(TOKENIZER_OPTIONS)
    if not isinstance(options, dict):
        raise ConfigError(
            f"The tokenizer_kwargs of {architecture} are {shown(options)}, and have "
            f"to be an object with {given} or some of them. Mend them or leave them out."
        )
    if others := sorted(options.keys() - set(TOKENIZER_OPTIONS)):
        raise ConfigError(
            f"The tokenizer_kwargs of {architecture} hold {shown(', '.join(others))}, "
            f"and privaudit hands on {given} alone: others could let code run that "
            "comes with the tokenizer. Leave them out."
        )


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


def _model_options(
    open_clip: Any, architecture: str, tag_options: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments with which open_clip builds the model."""
    options: dict[str, Any] = open_clip.get_model_config(architecture)
    if name := options["text_cfg"].get("hf_model_name"):
        if "multimodal_cfg" in options:
            raise ConfigError(
                f"{architecture} is a CoCa whose text tower is one of transformers, and "
                "these are taken in CLIPs only. Choose another, such as ViT-B-16."
            )
        _check_text_tower(open_clip, name)
        options["custom_text"] = True
        options["text_cfg"]["hf_model_pretrained"] = False
    if "timm_model_name" in options["vision_cfg"]:
        options["vision_cfg"]["timm_model_pretrained"] = False
    if "quick_gelu" in tag_options:
        options["quick_gelu"] = tag_options["quick_gelu"]
    return options


def _check_text_tower(open_clip: Any, name: str) -> None:
    """Refuse a text tower of transformers that open_clip knows no place for."""
    with refuse_remote_code():  # open_clip would ask whether its code may run
        kind = model_type(name)
    if kind not in (known := open_clip.hf_model.arch_dict):
        raise ConfigError(
            f"The text tower {name!r} is of type {kind!r}, and open_clip takes those of "
            f"type {', '.join(known)}. Use one of these."
        )


def _build(open_clip: Any, name: str, options: dict[str, Any]) -> nn.Module:
    """Build the model without weights, in silence (open_clip's own warns of that)."""
    from transformers.initialization import no_init_weights

    kind = "CustomTextCLIP" if options.pop("custom_text", False) else "CLIP"
    kind = "CoCa" if "multimodal_cfg" in options else kind
    try:
        with no_init_weights():  # drawing what a checkpoint replaces takes seconds
            return getattr(open_clip, kind)(**options)
    except Exception as error:  # whatever a wrong configuration can raise
        raise ConfigError(
            f"open_clip cannot build {name} ({type(error).__name__}: {error}). Mend its "
            "configuration."
        ) from error


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


MODELS.register("open_clip")(
    ModelFamily(
        "classification",
        _load,
        ("ARCH", "ARCH@TAG"),
        tuned=False,
        takes_checkpoint=True,
    )
)
