"""Small random language models, and what is drawn for them."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from privaudit.datasets.records import ANSWER, INSTRUCTION, PICTURE, TokenSequences
from privaudit.models.hugging_face import import_transformers
from privaudit.models.interfaces import Change, Tuning
from privaudit.models.language.stacked_language import StackedLanguageModel
from tests.small_transformers import random_model

PARTS, WIDTH, VOCABULARY = 3, 32, 50
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
Factors = Mapping[str, tuple[Tensor, Tensor]]


class NumberTokenizer:
    """Writes token numbers out as numbers."""

    eos_token_id, pad_token_id = 2, 0

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        start = [1] if add_special_tokens else []
        return start + [int(word) for word in text.split()]

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False) -> str:
        return " ".join(str(i) for i in token_ids if i > 2 or not skip_special_tokens)


class OpenElm:
    """A model in OpenELM's shape, which transformers does not have.

    Fused projections, other widths in each layer, and logits from the embedding's
    weights, without a head of its own.
    """

    @staticmethod
    def build() -> Any:
        transformers = import_transformers()

        class Config(transformers.PreTrainedConfig):  # type: ignore[misc,name-defined]
            model_type = "openelm"

        class Attention(nn.Module):
            def __init__(self, layer: int, heads: int) -> None:
                super().__init__()
                self.layer, self.heads = layer, heads
                self.qkv_proj = nn.Linear(WIDTH, 3 * heads * 8, bias=False)
                self.out_proj = nn.Linear(heads * 8, WIDTH, bias=False)

            def forward(self, x: Tensor, cache: Any) -> Tensor:
                shape = (*x.shape[:2], 3 * self.heads, 8)
                q, k, v = self.qkv_proj(x).view(shape).transpose(1, 2).chunk(3, 1)
                if cache is not None:
                    k, v = cache.update(k, v, self.layer)
                see = torch.ones(q.shape[2], k.shape[2]).tril(k.shape[2] - q.shape[2])
                mixed = nn.functional.scaled_dot_product_attention(
                    q, k, v, attn_mask=see.bool()
                )
                return self.out_proj(mixed.transpose(1, 2).flatten(2))

        class FeedForward(nn.Module):
            def __init__(self, hidden: int) -> None:
                super().__init__()
                self.proj_1 = nn.Linear(WIDTH, 2 * hidden, bias=False)
                self.proj_2 = nn.Linear(hidden, WIDTH, bias=False)

            def forward(self, x: Tensor) -> Tensor:
                gate, up = self.proj_1(x).chunk(2, dim=-1)
                return self.proj_2(nn.functional.silu(gate) * up)

        class Model(transformers.PreTrainedModel):  # type: ignore[misc,name-defined]
            config_class = Config

            def __init__(self, config: Any) -> None:
                super().__init__(config)
                self.token_embeddings = nn.Embedding(VOCABULARY, WIDTH)
                self.positions = nn.Embedding(64, WIDTH)
                self.layers = nn.ModuleList(
                    nn.ModuleDict(
                        {"attn": Attention(i, i + 1), "ffn": FeedForward(24 * (i + 1))}
                    )
                    for i in range(2)
                )
                self.norm = nn.RMSNorm(WIDTH)
                self.post_init()

            def get_input_embeddings(self) -> nn.Embedding:
                return self.token_embeddings

            def get_output_embeddings(self) -> None:
                return None

            def forward(
                self,
                inputs_embeds: Tensor,
                use_cache: bool = False,
                past_key_values: Any = None,
                return_dict: bool = True,
            ) -> Any:
                if use_cache and past_key_values is None:
                    past_key_values = transformers.DynamicCache()
                before = past_key_values.get_seq_length() if use_cache else 0
                length = inputs_embeds.shape[1]
                x = inputs_embeds + self.positions(torch.arange(length) + before)
                blocks: Any = self.layers
                for layer in blocks:
                    x = x + layer["attn"](self.norm(x), past_key_values)
                    x = x + layer["ffn"](self.norm(x))
                logits = self.norm(x) @ self.token_embeddings.weight.T
                return transformers.modeling_outputs.CausalLMOutputWithPast(
                    logits=logits, past_key_values=past_key_values
                )

        return Model(Config(max_position_embeddings=64))


def build_language(kind: str) -> Any:
    """Build a small language model of a kind, at random weights."""
    transformers = import_transformers()

    def build() -> Any:
        if kind == "openelm":
            return OpenElm.build()
        if kind == "gpt2":
            config = transformers.GPT2Config(
                vocab_size=VOCABULARY,
                n_embd=WIDTH,
                n_layer=2,
                n_head=4,
                n_positions=64,
                bos_token_id=1,
                eos_token_id=2,
            )
            return transformers.GPT2LMHeadModel(config)
        name = {"llama": "Llama", "qwen": "Qwen2"}[kind]
        config = getattr(transformers, f"{name}Config")(**SMALL)
        return getattr(transformers, f"{name}ForCausalLM")(config)

    return random_model(build).requires_grad_(True)


def stacked(kind: str = "llama") -> StackedLanguageModel:
    """Return a small language model of a kind, stacked."""
    return StackedLanguageModel(build_language(kind), NumberTokenizer())


def draw_factors(language: StackedLanguageModel, k: int, rank: int = 4) -> Factors:
    """Draw LoRA factors for k models: A [k rank inputs], B [k outputs rank]."""
    generator = torch.Generator().manual_seed(1)

    def some(*shape: int) -> Tensor:
        drawn = 0.3 * torch.randn(*shape, generator=generator)
        return drawn.requires_grad_()

    return {
        name: (some(k, rank, target.inputs), some(k, target.outputs, rank))
        for name, target in language.targets.items()
    }


def lora(factors: Factors, scaling: float = 0.5) -> Tuning:
    """Return what factors add."""

    def one(first: Tensor, second: Tensor) -> Change:
        return lambda rows: scaling * (rows @ first.mT) @ second.mT

    return Tuning({name: one(*pair) for name, pair in factors.items()})


def draw_rows(k: int, rows: int, answers: int = 3) -> tuple[Tensor, TokenSequences]:
    """Draw pictures and words: a start, the picture, five words, three answers."""
    generator = torch.Generator().manual_seed(2)
    kinds = [INSTRUCTION, *[PICTURE] * PARTS, *[INSTRUCTION] * 5]
    kinds += [ANSWER] * answers
    shape = (k, rows, len(kinds))
    ids = torch.randint(3, VOCABULARY, shape, generator=generator)
    pictures = torch.randn(k, rows, PARTS, WIDTH, generator=generator)
    return pictures, TokenSequences(ids, torch.tensor(kinds).expand(shape).clone())
