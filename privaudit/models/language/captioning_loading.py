"""Captioning models by name."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

from privaudit.core.errors import ConfigError, UnknownNameError
from privaudit.models.language.captioning_vlm import CaptioningVLM, PictureTower
from privaudit.models.language.dialogue_tokens import DialogueTokens
from privaudit.models.language.language_targets import TargetNames
from privaudit.models.language.llava import Precision, load_llava
from privaudit.models.language.projector_folder import load_captioner_folder
from privaudit.models.language.stacked_language import StackedLanguageModel
from privaudit.models.names import kind_of

CAPTIONERS = ("tiny-llava", "llava:FOLDER_OR_HUB_NAME", "language:FOLDER")
"""What ``--model`` takes for captions and answers; the last FOLDER is what ``privaudit
pretrain projector`` wrote."""
_TINY_TEMPLATE = "{image}{question}"


def is_captioner(name: str) -> bool:
    """Say whether a model's name is one of a model that answers in words."""
    return _is_own(name) or kind_of(name) == "writes"


def _is_own(name: str) -> bool:
    return name == "tiny-llava" or name.startswith(("llava:", "language:"))


def load_captioner(
    name: str = "tiny-llava",
    *,
    device: str = "cpu",
    precision: Precision = "float32",
    targets: TargetNames = "all-linear",
    template: str | None = None,
) -> CaptioningVLM:
    """Load a captioning model with its weights, frozen. No code of a model is run.

    Args:
        name: "tiny-llava", which comes with the package; "llava:SOURCE" with a folder
            or a name on the hub; or "language:FOLDER": a language model and a
            projector for embeddings that were made elsewhere.
        device: Where the model runs, as torch names it.
        precision: Of a LLaVA's weights; the others are small.
        targets: Linear layers of the language model that may be changed: "all-linear",
            or names or endings of names.
        template: A LLaVA's prompt, with {image} and {question}; None is its own.

    Raises:
        UnknownNameError: There is no such model.
        MissingFileError: Its files are not there, or could not be downloaded.
        ConfigError: They cannot be used, a target fits no layer, or an option does not
            go with the model.
    """
    kind, source = _parts(name)
    if kind == "llava":
        return load_llava(
            source,
            device=device,
            precision=precision,
            targets=targets,
            template=template,
        )
    if template is not None or precision != "float32":
        raise ConfigError(
            f"{name} has its own template and runs in float32, and "
            f"{template or precision!r} is given. Leave it out."
        )
    if kind == "language":
        return load_captioner_folder(Path(source), device, targets)
    return _tiny_llava(device, targets)


def _parts(name: str) -> tuple[str, str]:
    kind, _, source = name.partition(":")
    if not _is_own(name):
        raise UnknownNameError("captioning model", name, CAPTIONERS)
    if kind != "tiny-llava" and not source:
        raise ConfigError(
            f"{name} names no folder. Write for example {name}models/mine."
        )
    return kind, source


def _tiny_llava(device: str, targets: TargetNames) -> CaptioningVLM:
    from privaudit.models.tiny_llava.architecture import IMAGE_SIZE, TOKENS
    from privaudit.models.tiny_llava.loading import load

    embedded = load()
    tokenizer = StartedTokenizer(embedded.tokenizer)
    model = embedded.language.to(device)
    language = StackedLanguageModel(model, tokenizer, targets)
    prepare = embedded.prepare
    eye = PictureTower(
        _elsewhere(embedded.encode, device), prepare, IMAGE_SIZE, TOKENS, repr(prepare)
    )
    words = DialogueTokens(tokenizer, _TINY_TEMPLATE, TOKENS, language.context)
    return CaptioningVLM("tiny-llava", eye, language, words, embedded.model_hash)


def _elsewhere(
    encode: Callable[[Tensor], Tensor], device: str
) -> Callable[[Tensor], Tensor]:
    """Encode on the CPU, where the small tower is, for a model that is elsewhere."""
    return lambda pictures: encode(pictures.cpu()).to(device)


class StartedTokenizer:
    """The embedded model's tokenizer, as those of transformers are called.

    Args:
        tokenizer: With start and end tokens; padding is number 0.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = int(tokenizer.eot_token_id)
        self.pad_token_id = 0

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return a text's tokens, behind the start token or without it."""
        start = [self._tokenizer.sot_token_id] if add_special_tokens else []
        return [*start, *self._tokenizer.encode(text)]

    def decode(
        self, token_ids: Iterable[int], *, skip_special_tokens: bool = False
    ) -> str:
        """Return the text of some tokens; special ones are always left out."""
        return str(self._tokenizer.decode(token_ids))
