from collections.abc import Callable
from typing import Any

import pytest
import torch

from privaudit.datasets.dialogues import ANSWER, INSTRUCTION, TokenSequences
from privaudit.models.hugging_face import import_transformers
from privaudit.models.language.stacked_language import StackedLanguageModel

VOCABULARY = 40
LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 24,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 24,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


class Numbers:
    eos_token_id, pad_token_id = 2, 0

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False) -> str:
        return " ".join(str(i) for i in token_ids)


@pytest.fixture(scope="session")
def build() -> Callable[[str], Any]:
    """Build a small language model at random weights, large enough to tell apart."""

    def build(kind: str) -> Any:
        transformers = import_transformers()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            if kind == "gpt2":
                config = transformers.GPT2Config(**GPT2)
                model = transformers.GPT2LMHeadModel(config)
            else:
                model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn(parameter.shape), alpha=0.1)
        return model.eval()

    return build


@pytest.fixture(params=["llama", "gpt2"])
def kind(request: Any) -> str:
    return str(request.param)


@pytest.fixture
def language(kind: str, build: Callable[[str], Any]) -> StackedLanguageModel:
    return StackedLanguageModel(build(kind), Numbers())


@pytest.fixture
def words() -> TokenSequences:
    """Seven tokens for each of three rows of two models, the last three answers."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(3, VOCABULARY, (2, 3, 7), generator=generator)
    kinds = torch.full_like(ids, INSTRUCTION)
    kinds[..., 4:] = ANSWER
    return TokenSequences(ids, kinds)


@pytest.fixture
def nothing() -> torch.Tensor:
    return torch.zeros(2, 3, 0, 32)
