"""Vision-language models of transformers, by what they can do and not by name.

Which ones can be taken is asked before any weight is read.
"""

import inspect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

from privaudit.core.errors import ConfigError
from privaudit.datasets.dataset import Dataset, FeatureBank, Images
from privaudit.datasets.records import (
    INSTRUCTION,
    PICTURE,
    Dialogue,
    PictureTokens,
    Records,
    TokenSequences,
)
from privaudit.models.clip.picture_preparation import check_pixels
from privaudit.models.feature_cache import cached_pictures, hash_of
from privaudit.models.frozen_model import WritingModel, weights_hash
from privaudit.models.hugging_face import import_transformers, load_model, load_reader
from privaudit.models.interfaces import Tuning
from privaudit.models.language.dialogue_tokens import chat_template
from privaudit.models.registry import ModelRequest
from privaudit.models.vision_language.stacked_vlm import (
    LAYOUT,
    LaidOutTokens,
    PictureReader,
    StackedVLM,
    black_picture,
    processed,
)

TRIED = (
    *("llava", "llava_next", "llava_onevision", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"),
    *("idefics3", "smolvlm", "paligemma", "gemma3", "internvl"),
)
"""Types that the tests hold against peft."""
_SIDE = 64
_PROCESSOR = ("tokenizer", "image_processor", "image_token")
_AGREEMENT = 1e-3
_TROUBLES = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)
_TOWER, _STORED = "get_image_features", "mm_encoder_outputs"
_OWN = frozenset(
    {"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "labels"}
)  # what is made of words, for every model alike


def check_architecture(source: str) -> Any:
    """Return a model's configuration, if its forward pass takes stored features.

    Raises:
        MissingFileError: It is not there.
        ConfigError: Its forward pass cannot be fed with stored picture features.
    """
    config = load_reader("AutoConfig", "vision-language model", source)
    known = import_transformers().MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    if type(config) not in known:
        raise refusal(source, config, "it writes no text about pictures")
    if config.is_encoder_decoder:
        raise refusal(source, config, "an encoder reads, and only a decoder writes")
    if _STORED not in _inputs(config, "forward"):
        reason = f"this transformers gives its forward pass no {_STORED}"
        raise refusal(source, config, reason)
    if not hasattr(known[type(config)], _TOWER):
        raise refusal(source, config, f"it has no method {_TOWER}")
    return config


def processor_example(source: str, config: Any, processor: Any) -> Mapping[str, Any]:
    """Return what a processor makes of one black picture and its mark in a text.

    Raises:
        ConfigError: The processor marks no pictures in a text, or makes more than
            words and what pictures alone decide.
    """
    lacking = [name for name in _PROCESSOR if getattr(processor, name, None) is None]
    if lacking:
        reason = f"what AutoProcessor finds has no {' and no '.join(lacking)}"
        raise refusal(source, config, reason)
    try:
        made = processed(processor, [black_picture(_SIDE, _SIDE)])
    except _TROUBLES as error:
        reason = f"its processor, by its files, cannot lay out a picture ({error})"
        raise refusal(source, config, reason) from error
    if LAYOUT not in made:
        reason = f"its processor gives no {LAYOUT}: where in a text a picture stands"
        raise refusal(source, config, reason)
    forward, tower = _inputs(config, "forward"), _inputs(config, _TOWER)
    required = {name for name, needed in tower.items() if needed}
    used = {*forward} & {*made, *required}
    more = used - _OWN - {*processor.image_processor.model_input_names}
    if more:
        reason = f"it takes {', '.join(sorted(more))} beside words and pictures"
        raise refusal(source, config, reason)
    if getattr(config, "image_token_id", None) is None:
        raise refusal(source, config, "its configuration has no image_token_id")
    return made


def _inputs(config: Any, method: str) -> dict[str, bool]:
    """Return what a method of an architecture takes by name, and whether it must."""
    known = import_transformers().MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    found = inspect.signature(getattr(known[type(config)], method)).parameters
    _itself, *named = found.values()
    return {p.name: p.default is p.empty for p in named if p.kind != p.VAR_KEYWORD}


@contextmanager
def refusing_untried(source: str, config: Any) -> Iterator[None]:
    """Refuse an untried type that lacks what the tried ones have."""
    try:
        yield
    except _TROUBLES as error:
        if config.model_type in TRIED or isinstance(error, ConfigError):
            raise
        reason = f"it does not run on stored picture features ({error})"
        raise refusal(source, config, reason) from error


def check_stored(
    source: str, model: Any, language: StackedVLM, reader: PictureReader
) -> None:
    """Refuse an untried type unless stored features say what the picture itself says.

    Raises:
        ConfigError: The logits differ, or the model takes no stored features after all.
    """
    if model.config.model_type in TRIED:
        return
    apart = _largest_difference(model, language, reader)
    if not apart < _AGREEMENT:
        reason = f"on stored picture features its logits differ by {apart:.2g}"
        raise refusal(source, model.config, reason)


@torch.no_grad()
def _largest_difference(
    model: Any, language: StackedVLM, reader: PictureReader
) -> float:
    """Return by how much the logits of one picture differ from the model's own."""
    takes = inspect.signature(model.forward).parameters
    own = {n: t.to(model.device) for n, t in reader.example.items() if n in takes}
    own.pop("labels", None)
    ids = own["input_ids"]
    places = ids == model.config.image_token_id
    words = TokenSequences(
        ids.masked_fill(places, reader.layout(_SIDE, _SIDE).number)[None],
        torch.where(places, PICTURE, INSTRUCTION)[None],
    )
    black = torch.zeros(1, 3, _SIDE, _SIDE, dtype=torch.uint8)
    tokens = reader.encode(black)
    if tokens.shape[1] != int(places.sum()):
        return math.inf
    found = language.logits(tokens[None], words, Tuning())[0]
    return float((found - model(**own).logits).abs().max())


def refusal(source: str, config: Any, reason: str) -> ConfigError:
    """Return the error that says why a model is not taken, and which ones are."""
    return ConfigError(
        f"{source!r} is a model of type {config.model_type!r}, which vlm: does not "
        f"take: {reason}. Tried are {', '.join(TRIED)}; blip: takes BLIP-2, "
        "and llava: takes TinyLLaVA."
    )


_AT_ONCE = 8  # pictures that the image tower takes together


class VisionLanguageModel(WritingModel):
    """A frozen model whose own forward pass puts pictures among words.

    Its image tower and projector run once for each picture; what they make is kept.

    Attributes:
        template: The prompt, with {image} and {question} where they go.
    """

    language: StackedVLM

    def __init__(
        self,
        name: str,
        language: StackedVLM,
        reader: PictureReader,
        template: str,
        image_token: str,  # stands for a part of a picture in the tokenizer's own text
        description: str,  # what beside the weights decides about a picture's tokens
    ) -> None:
        self.name, self.language, self.reader = name, language, reader
        self.template = template
        self.model_hash = weights_hash(language.model)
        self._image_token, self._description = image_token, description

    def read(self, dataset: Dataset, *, image_tokens: bool = False) -> Records:
        """Return pictures as the language model reads them, and what is said of them.

        A picture with fewer tokens than another is padded with zeros; its words have
        as many places as it has tokens.

        Raises:
            ConfigError: There are embeddings in place of pictures, or a record does
                not fit into the context.
        """
        pictures = dataset.pictures
        if isinstance(pictures, FeatureBank):
            raise ConfigError(
                f"{self.name} reads pictures, and was given embeddings. Give it "
                "pictures, or make a projector: privaudit pretrain projector."
            )
        tokens, sizes = self.encode_pictures(pictures)
        words = self.words(dataset.dialogues, sizes)
        parts = (words.kinds == PICTURE).sum(dim=1, keepdim=True)
        means = tokens[..., : self.language.width].sum(dim=1) / parts
        features = normalize(means, dim=-1)
        held = PictureTokens.of(tokens)
        return Records(features, dataset.labels, held, words, dataset.dialogues)

    def encode_pictures(
        self, pictures: Images
    ) -> tuple[Float[Tensor, "n parts token_width"], Int[Tensor, "n 2"]]:
        """Return each picture's tokens, padded at their end, and its height and width.

        Both come from the disk if they were computed before.
        """
        about = (self.model_hash, self.name, self._description)
        name = hash_of(*about, pictures.digest, "pictures")
        found = cached_pictures(name, pictures, self._encode)
        return found["tokens"], found["sizes"]

    def words(
        self,
        dialogues: Sequence[Dialogue],
        sizes: Int[Tensor, "n 2"],
    ) -> TokenSequences:
        """Return dialogues as rows of tokens; see :meth:`DialogueTokens.__call__`.

        ``sizes`` are height and width of each record's picture.
        """
        write = LaidOutTokens(
            self.language.tokenizer,
            self.template,
            parts=1,  # whatever their number, which layouts know
            context=self.language.context,
            image_token=self._image_token,
            layouts=tuple(self.reader.layout(*size) for size in sizes.tolist()),
        )
        return write(dialogues)

    def _encode(self, batches: Iterable[Tensor]) -> dict[str, Tensor]:
        parts, sizes = list[Tensor](), list[Sequence[int]]()
        for batch in batches:
            check_pixels(batch)
            for few in batch.split(_AT_ONCE):
                parts.extend(self._encode_few(few).cpu())
                sizes.extend([few.shape[-2:]] * len(few))
        return {
            "tokens": pad_sequence(parts, batch_first=True),
            "sizes": torch.tensor(sizes),
        }

    def _encode_few(self, pictures: Tensor) -> Float[Tensor, "n parts token_width"]:
        tokens, (height, width) = self.reader.encode(pictures), pictures.shape[-2:]
        places = self.reader.layout(height, width).text.count(self._image_token)
        if places != tokens.shape[1]:
            raise ConfigError(
                f"{self.name} makes {tokens.shape[1]} tokens of a picture of {height} x "
                f"{width} pixels, and its processor writes {places} places for them. "
                "Mend the processor's files: sizes there must fit config.json."
            )
        return tokens


def _template(processor: Any, template: str | None) -> str:
    """Return the prompt, with {image} and {question} where they go."""
    mark = processor.image_token
    written = chat_template(processor, "{image}{question}", mark, template)
    text = [written.replace("{image}", mark)]
    laid = processor.prepare_inputs_layout(images=[[black_picture(8, 8)]], text=text)
    return str(laid[1][0].replace(mark, "{image}", 1))


def load_vlm(request: ModelRequest) -> VisionLanguageModel:
    """Load a vision-language model, frozen; its own code runs only where it is trusted.

    The prompt is of the request's template, else of the model's own chat template, or
    picture and question alone where it has none, as its processor lays them out.
    """
    what, source = "vision-language model", request.source
    config = check_architecture(source)
    processor = load_reader("AutoProcessor", what, source)
    example = processor_example(source, config, processor)
    prompt = _template(processor, request.template)
    kind, where = "AutoModelForImageTextToText", (request.device, request.dtype)
    model = load_model(kind, what, source, *where, request.bits)
    with refusing_untried(source, config):
        reader = PictureReader(model, processor, example)
        language = StackedVLM(model, processor.tokenizer, request.targets, reader)
        check_stored(source, model, language, reader)
    settings = processor.image_processor.to_json_string()
    return VisionLanguageModel(
        request.name,
        language,
        reader,
        prompt,
        processor.tokenizer.convert_ids_to_tokens(config.image_token_id),
        f"{config.to_json_string()} {settings}",
    )
