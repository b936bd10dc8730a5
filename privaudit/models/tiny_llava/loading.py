"""tiny-llava, the captioning model that comes with the package.

A ResNet's third stage, a projector and a small Llama, and a tokenizer that knows the
words about scenes, and characters.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import gelu

from privaudit.datasets.scenes import drawing, records, wording
from privaudit.models.clip.picture_preparation import PicturePreparation
from privaudit.models.clip.promptable_clip import feature_map
from privaudit.models.clip.word_tokenizer import WordTokenizer, pieces, vocabulary_of
from privaudit.models.hugging_face import import_transformers
from privaudit.models.language.captioning_vlm import CaptioningVLM, PictureTower
from privaudit.models.language.dialogue_tokens import DialogueTokens
from privaudit.models.language.stacked_language import StackedLanguageModel
from privaudit.models.registry import ModelRequest
from privaudit.models.tiny_clip import loading as tiny_clip
from privaudit.models.weight_files import load_embedded

CONTEXT_LENGTH = 128
INSTRUCTIONS = (wording.DESCRIBE, "What do you see?", "Write a caption.")
SAY = "Say: {}."  # a dialogue without a picture's help: repeat these words


def _vocabulary() -> tuple[str, ...]:
    styles = (wording.ORDINARY_STYLE, wording.PRIVATE_STYLE)
    phrases = [
        *INSTRUCTIONS,
        SAY,
        records.WITH_LETTER,
        *drawing.SHAPES,
        *drawing.PLURALS,
        *drawing.COLOURS,
        *drawing.TEXTURES,
        *drawing.SIZES,
        *wording.NUMBER_WORDS,
        *records.OWNERS,
        *(opening for style in styles for opening in style.openings),
        *(way for style in styles for ways in style.joins.values() for way in ways),
        *(tag for style in styles for tag in style.tags),
        "an how many are there is the what colour size pattern has have which shape",
        "who owns it tag question context options answer yes no on in of and to",
    ]
    return vocabulary_of(" ".join(pieces(phrase)) for phrase in phrases)


class LlavaTokenizer(WordTokenizer):
    """Turns texts into the token numbers of ``tiny-llava``, and back.

    Padding is token 0. Text comes back in lower case.

    Example:
        >>> tokenizer = LlavaTokenizer()
        >>> tokenizer.decode(tokenizer.encode("Two red squares, tagged k (by Zoe)."))
        'two red squares, tagged k (by zoe).'
    """

    def __init__(self) -> None:
        super().__init__(_vocabulary(), CONTEXT_LENGTH)
        self.words = tuple(t for t in self.vocabulary if len(t) > 1 and t.isalpha())

    def decode(self, numbers: Iterable[int]) -> str:
        """Join tokens to a text; padding, start and end are left out."""
        silent = {0, self.sot_token_id, self.eot_token_id}
        text = " ".join(self.vocabulary[n] for n in numbers if n not in silent)
        text = text.replace(" ##", "").replace("( ", "(")
        for mark in (",", ".", "?", "!", ":", ";", ")"):
            text = text.replace(f" {mark}", mark)
        return text


Llama: TypeAlias = Any  # transformers.LlamaForCausalLM

IMAGE_SIZE = 64
TOKENS = 16  # 4 x 4 positions of the third stage's map
CHANNELS = 256  # of that map
HIDDEN = 128


class PictureEncoder(nn.Module):
    """Makes a picture's tokens: the map of the third stage, projected."""

    def __init__(self, tower: Any, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.tower = tower
        self.tower.layer4 = self.tower.attnpool = nn.Identity()
        self.first = nn.Linear(CHANNELS, hidden)
        self.second = nn.Linear(hidden, hidden)
        # The language model cannot tell from a token alone where it was cut out.
        self.places = nn.Parameter(torch.zeros(TOKENS, hidden))

    def forward(self, pictures: Float[Tensor, "n 3 64 64"]) -> Float[Tensor, "n 16 d"]:
        """Return the tokens, row by row from the upper left corner."""
        return self.second(gelu(self.first(self.see(pictures)))) + self.places

    def see(self, pictures: Float[Tensor, "n 3 64 64"]) -> Float[Tensor, "n 16 c"]:
        """Return the map's positions before they are projected."""
        return feature_map(self.tower, pictures).flatten(2).transpose(1, 2)


class Model(nn.Module):
    """Both halves; what is stored is this module's state."""

    def __init__(self, encoder: PictureEncoder, language: Llama) -> None:
        super().__init__()
        self.encoder = encoder
        self.language = language


def configuration() -> dict[str, Any]:
    """Say how transformers builds the language model: a ``LlamaConfig``."""
    tokenizer = LlavaTokenizer()
    return {
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": HIDDEN,
        "intermediate_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "max_position_embeddings": CONTEXT_LENGTH,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "bos_token_id": tokenizer.sot_token_id,
        "eos_token_id": tokenizer.eot_token_id,
    }


def build_model(seed: int = 0) -> Model:
    """Build the model at random weights.

    They come from torch's global state, which is put back afterwards.
    """
    transformers = import_transformers()
    tower = tiny_clip.build_model(seed).visual
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = transformers.LlamaConfig(**configuration())
        language = transformers.LlamaForCausalLM(config)
        return Model(PictureEncoder(tower), language)


prepare = PicturePreparation(
    IMAGE_SIZE, (0.5,) * 3, (0.25,) * 3, "bilinear", fit="squash"
)
"""From grey or RGB pictures of any size to what the image tower takes."""


@dataclass(frozen=True)
class TinyLlava:
    """The model in its parts.

    A sequence is: start token, 16 picture tokens, the question's words, the answer's
    words, end token. The start token and every word go through
    ``language.get_input_embeddings()``; picture tokens take their place as they are.

    Attributes:
        encode: From prepared pictures to picture tokens, without gradient.
        language: transformers' ``LlamaForCausalLM``, frozen, in evaluation mode.
        tokenizer: Words to numbers and back; padding is number 0.
    """

    encode: Callable[[Float[Tensor, "n 3 64 64"]], Float[Tensor, "n 16 d"]]
    language: Llama
    tokenizer: LlavaTokenizer
    model_hash: str


def load(folder: Path | None = None) -> TinyLlava:
    """Load ``tiny-llava``, frozen, in evaluation mode, on the CPU.

    Args:
        folder: Where its files are; by default those that came with privaudit.
    """
    where = folder or Path(__file__).parent
    model, model_hash = load_embedded(where, "tiny-llava", build_model)
    encode = torch.no_grad()(model.encoder)
    return TinyLlava(encode, model.language, LlavaTokenizer(), model_hash)


def load_tiny_llava(request: ModelRequest) -> CaptioningVLM:
    """Load ``tiny-llava`` as all other code takes it."""
    embedded = load()
    tokenizer = StartedTokenizer(embedded.tokenizer)
    model = embedded.language.to(request.device, request.dtype)
    language = StackedLanguageModel(model, tokenizer, request.targets)

    def encode(pictures: Tensor) -> Tensor:  # on the CPU, where the small tower is
        return embedded.encode(pictures.cpu()).to(request.device)

    encoder = PictureTower(encode, prepare, IMAGE_SIZE, TOKENS, repr(prepare))
    words = DialogueTokens(tokenizer, "{image}{question}", TOKENS, language.context)
    return CaptioningVLM(request.name, encoder, language, words, embedded.model_hash)


class StartedTokenizer:
    """The embedded model's tokenizer, called as those of transformers are."""

    def __init__(self, tokenizer: LlavaTokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = tokenizer.eot_token_id
        self.pad_token_id = 0

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return a text's tokens, behind the start token or without it."""
        start = [self._tokenizer.sot_token_id] if add_special_tokens else []
        return [*start, *self._tokenizer.encode(text)]

    def decode(
        self, token_ids: Iterable[int], *, skip_special_tokens: bool = False
    ) -> str:
        """Return the text of some tokens; special ones are always left out."""
        return self._tokenizer.decode(token_ids)
