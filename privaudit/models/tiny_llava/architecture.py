"""Architecture of tiny-llava: a ResNet's third stage, a projector, a small Llama."""

from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import gelu

from privaudit.models.hugging_face import import_transformers
from privaudit.models.tiny_clip import architecture as tiny_clip
from privaudit.models.tiny_llava.tokenizer import CONTEXT_LENGTH, LlavaTokenizer

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
        states = self.tower.stem(pictures)
        for stage in (self.tower.layer1, self.tower.layer2, self.tower.layer3):
            states = stage(states)
        return states.flatten(2).transpose(1, 2)


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
