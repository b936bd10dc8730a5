"""Vision-language models of transformers, frozen, and how one is loaded."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

from privaudit.core.errors import ConfigError
from privaudit.datasets.dataset import Dataset, FeatureBank, Images
from privaudit.datasets.dialogues import PICTURE, Dialogue, TokenSequences
from privaudit.datasets.picture_tokens import PictureTokens
from privaudit.datasets.records import Records
from privaudit.models.clip.picture_preparation import check_pixels
from privaudit.models.feature_cache import cached_pictures, hash_of
from privaudit.models.frozen_model import WritingModel, weights_hash
from privaudit.models.hugging_face import load_model, load_reader
from privaudit.models.language.dialogue_tokens import chat_template
from privaudit.models.registry import ModelRequest
from privaudit.models.vision_language.capabilities import (
    check_architecture,
    check_stored,
    processor_example,
    refusing_untried,
)
from privaudit.models.vision_language.picture_reader import (
    PictureReader,
    black_picture,
)
from privaudit.models.vision_language.picture_words import LaidOutTokens
from privaudit.models.vision_language.stacked_vlm import StackedVLM

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
