"""Vision-language models of transformers, by what they can do and not by name.

Which ones can be taken is asked before any weight is read.

Stacked vision-language models, and how their own processors write pictures and words.
"""

import inspect
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

from privaudit.core.errors import ConfigError
from privaudit.datasets.dataset import Dataset, FeatureBank, Images
from privaudit.datasets.records import (
    ANSWER,
    INSTRUCTION,
    PADDING,
    PICTURE,
    Dialogue,
    PictureTokens,
    Records,
    TokenSequences,
)
from privaudit.models.clip.picture_preparation import Pictures, as_rgb, check_pixels
from privaudit.models.feature_cache import cached_pictures, hash_of
from privaudit.models.frozen_model import WritingModel, weights_hash
from privaudit.models.hugging_face import import_transformers, load_model, load_reader
from privaudit.models.interfaces import Site, Tuning
from privaudit.models.language.dialogue_tokens import DialogueTokens, chat_template
from privaudit.models.language.language_targets import TargetNames, name_of
from privaudit.models.language.stacked_language import (
    StackedLanguageModel,
    TextTokenizer,
    cache_name,
    greedy,
)
from privaudit.models.registry import ModelRequest

LAYOUT = "text_replacement_offsets"  # what processors call it
_BITS = 16  # for each side of a grid


def pack_grid(time: int, height: int, width: int) -> int:
    """Return a picture's patches in time, height and width as one number."""
    return (time << 2 * _BITS) | (height << _BITS) | width


def unpack_grids(numbers: Int[Tensor, " n"]) -> Int[Tensor, "n 3"]:
    """Return what :func:`pack_grid` packed."""
    mask = (1 << _BITS) - 1
    sides = (numbers >> 2 * _BITS, (numbers >> _BITS) & mask, numbers & mask)
    return torch.stack(sides, dim=-1)


@dataclass(frozen=True)
class PictureLayout:
    """How a picture of one size stands in a text.

    Attributes:
        text: What the processor writes for it: places, and marks around them.
        number: Its patches in time, height and width, packed, for models whose
            positions follow these; 0 for others.
    """

    text: str
    number: int


@dataclass(frozen=True)
class PictureFormat:
    """How a model's image tower hands tokens on to its language model.

    Attributes:
        output: The class in which it returns them.
        listed: Whether as one tensor for each picture, and not as one for all.
        width: Numbers that are embedded of a token. What deeper layers add (deepstack)
            is as wide, and stands behind it.
    """

    output: type
    listed: bool
    width: int

    def restored(self, tokens: Float[Tensor, "n token_width"]) -> Any:
        """Return several pictures' tokens, without padding, as the model takes them."""
        first, *deeper = tokens.split(self.width, dim=-1)
        pooled = [first] if self.listed else first[None]
        levels = {"deepstack_features": [[one] for one in deeper]} if deeper else {}
        return self.output(pooler_output=pooled, **levels)


class PictureReader:
    """What a model's processor and image tower make of pictures.

    Layouts are asked for once for each size: no processor looks at the colours for them.

    Attributes:
        format: How tokens are handed on.
        example: What the processor makes of one picture and its mark.
    """

    def __init__(self, model: Any, processor: Any, example: Mapping[str, Any]) -> None:
        self._processor = processor
        self._encoder = model.base_model.get_image_features
        self._device, self._dtype = model.device, model.dtype
        self._layouts: dict[tuple[int, int], PictureLayout] = {}
        self.example = example
        output = self._features(example)
        pooled = output.pooler_output
        self.format = PictureFormat(
            type(output), not isinstance(pooled, Tensor), pooled[0].shape[-1]
        )

    @torch.no_grad()
    def encode(self, pictures: Pictures) -> Float[Tensor, "n parts token_width"]:
        """Return the tokens of pictures of one size."""
        in_bytes = (as_rgb(pictures) * 255).round().to(torch.uint8)
        rows = in_bytes.permute(0, 2, 3, 1).cpu().numpy()
        output = self._features(
            processed(self._processor, [Image.fromarray(row) for row in rows])
        )
        deeper = getattr(output, "deepstack_features", None) or ()
        levels = [
            _by_picture(part, len(rows)) for part in (output.pooler_output, *deeper)
        ]
        return torch.cat(levels, dim=-1).float()

    def layout(self, height: int, width: int) -> PictureLayout:
        """Return how a picture of that size stands in a text."""
        size = (height, width)
        if size not in self._layouts:
            made = processed(self._processor, [black_picture(*size)])
            text = made[LAYOUT][0][0]["replacement"]
            grid = made.get("image_grid_thw")
            number = 0 if grid is None else pack_grid(*grid[0].tolist())
            self._layouts[size] = PictureLayout(text, number)
        return self._layouts[size]

    def _features(self, made: Mapping[str, Any]) -> Any:
        takes = inspect.signature(self._encoder).parameters
        given = {n: self._moved(t) for n, t in made.items() if n in takes}
        with torch.no_grad():
            return self._encoder(**given, return_dict=True)

    def _moved(self, tensor: Tensor) -> Tensor:
        """Return a tensor where the model is, and in its precision if it has one."""
        dtype = self._dtype if tensor.is_floating_point() else tensor.dtype
        return tensor.to(self._device, dtype)


def black_picture(height: int, width: int) -> Image.Image:
    """Return a picture that says nothing."""
    return Image.fromarray(np.zeros((height, width, 3), dtype=np.uint8))


def processed(processor: Any, pictures: list[Image.Image]) -> Mapping[str, Any]:
    """Return what a processor makes of pictures of one size and a mark for each.

    Raises:
        ConfigError: It takes none of that size: one much longer than wide, say.
    """
    try:
        with warnings.catch_warnings():
            # PaliGemma's makes arrays of tensors as NumPy 1 did.
            warnings.simplefilter("ignore", DeprecationWarning)
            made: Mapping[str, Any] = processor(
                images=[[picture] for picture in pictures],
                text=[processor.image_token] * len(pictures),
                return_tensors="pt",
                return_text_replacement_offsets=True,
            )
    except ValueError as error:
        width, height = pictures[0].size
        raise ConfigError(
            f"The model's processor takes no picture of {height} x {width} pixels: "
            f"{str(error).rstrip('.')}. Crop it, or leave the record out."
        ) from None
    return made


def _by_picture(features: Any, pictures: int) -> Float[Tensor, "n parts width"]:
    """Stack the features of pictures of one size, which have as many parts each."""
    whole = features if isinstance(features, Tensor) else torch.cat(list(features))
    return whole.reshape(pictures, -1, whole.shape[-1])


@dataclass(frozen=True)
class LaidOutTokens(DialogueTokens):
    """Writes dialogues about pictures of any sizes, with the layout's number at places."""

    layouts: tuple[PictureLayout, ...] = ()

    def _prompt(self, record: int, question: str) -> tuple[list[int], list[int]]:
        ids, kinds = super()._prompt(record, question)
        number, pairs = self.layouts[record].number, zip(ids, kinds, strict=True)
        return [number if kind == PICTURE else i for i, kind in pairs], kinds

    def _picture(self, record: int) -> str:
        return self.layouts[record].text


_FILLER = 0  # a word's number where a prompt stands: its embedding is replaced


class StackedVLM(StackedLanguageModel):
    """Any vision-language model of transformers that takes stored picture features.

    Its own forward pass merges pictures and words, and makes positions and masks:
    positions may have three dimensions, and pictures or whole prompts may be seen in
    both directions. So a row is padded at its right and masked, a picture may have any
    number of tokens, and what is asked of some positions needs all of a row.

    Args:
        model: Of transformers, its forward with ``mm_encoder_outputs``.
        targets: Layers of its language model that may be changed.
    """

    is_causal = False  # attention may go in both directions
    is_padded = True

    def __init__(
        self,
        model: Any,
        tokenizer: TextTokenizer,
        targets: TargetNames,
        reader: PictureReader,
    ) -> None:
        part = str(name_of(model, model.get_decoder()))
        super().__init__(model, tokenizer, targets, part)
        self._format = reader.format
        self._image = int(model.config.image_token_id)
        self._takes = set(inspect.signature(model.forward).parameters)
        # Under one name some models mark pictures, and others what is answered.
        types = reader.example.get("token_type_ids")
        places = reader.example["input_ids"] == self._image
        self._marks_pictures = types is not None and bool(types[places].all())
        if types is None:
            self._takes.discard("token_type_ids")

    @cached_property
    def sites(self) -> Mapping[str, Site]:
        """Return none: the model's own masks and positions know of no prefix."""
        return {}

    def _inputs(
        self, tokens: Tensor, words: TokenSequences, tuning: Tuning
    ) -> dict[str, Any]:
        rows = TokenSequences(words.ids.flatten(0, 1), words.kinds.flatten(0, 1))
        front = (len(rows.ids), tuning.virtual_tokens)
        kinds = torch.cat([rows.kinds.new_full(front, -1), rows.kinds], dim=1)
        ids = torch.cat([rows.ids.new_full(front, _FILLER), rows.ids], dim=1)
        pictures = kinds == PICTURE
        mask = kinds != PADDING
        mask[:, 0] = True  # a row of padding: attention to nothing is undefined
        inputs = {
            "input_ids": ids.masked_fill(pictures, self._image) * (kinds != PADDING),
            "attention_mask": mask.long(),
        }
        if pictures.any():
            inputs |= self._pictures(tokens.flatten(0, 1), rows)
            marked = pictures if self._marks_pictures else kinds == ANSWER
            types = {"mm_token_type_ids": pictures, "token_type_ids": marked}
            inputs |= {n: t.long() for n, t in types.items() if n in self._takes}
        return inputs

    def _pictures(
        self, tokens: Float[Tensor, "n parts token_width"], words: TokenSequences
    ) -> dict[str, Any]:
        """Return the pictures of rows, each without its padding."""
        places = words.kinds == PICTURE
        parts = torch.arange(tokens.shape[1], device=tokens.device)
        real = tokens[parts < places.sum(dim=1, keepdim=True)].to(self.model.dtype)
        features = self._format.restored(real)
        inputs: dict[str, Any] = {"mm_encoder_outputs": {"image": features}}
        if "image_grid_thw" in self._takes:
            first = places & (places.cumsum(dim=1) == 1)  # of each row that has one
            inputs["image_grid_thw"] = unpack_grids(words.ids[first])
        return inputs

    def _continue(
        self, tokens: Tensor, words: TokenSequences, tuning: Tuning, longest: int
    ) -> list[list[int]]:
        prompts = self._inputs(tokens, words, tuning)
        cached = cache_name(self.model)

        def run(fresh: Tensor, cache: Any) -> Any:
            # Behind the prompt the model goes on by its cache alone.
            inputs = prompts if cache is None else {"input_ids": fresh}
            with self.tuned(tuning, len(tokens), fresh.numel()):
                options = {"use_cache": True, cached: cache, **inputs}
                return self._run(1, **options)

        return greedy(run, lambda ids: ids, prompts["input_ids"], self.ends, longest)

    @contextmanager
    def tuned(self, tuning: Tuning, models: int, *positions: int) -> Iterator[None]:
        """Tune the model as long as the context is open, its prompts included."""
        with (
            super().tuned(tuning, models, *positions),
            _prompted(self._embedding, tuning.prompt),
        ):
            yield


@contextmanager
def _prompted(
    embedding: nn.Module, prompt: Float[Tensor, "k tokens width"] | None
) -> Iterator[None]:
    """Let each model's prompt stand in place of its rows' first embedded words."""
    if prompt is None:
        yield
        return
    count = prompt.shape[1]

    def hook(module: nn.Module, arguments: Any, output: Tensor) -> Tensor | None:
        if output.shape[1] <= count:  # a word behind the prompt
            return None
        rows = prompt.repeat_interleave(len(output) // len(prompt), dim=0)
        return torch.cat([rows.to(output.dtype), output[:, count:]], dim=1)

    handle = embedding.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


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
        self, dialogues: Sequence[Dialogue], sizes: Int[Tensor, "n 2"]
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
