"""The model, the texts and the training: nothing here knows of privaudit."""

from functools import cache
from pathlib import Path

import numpy as np
import torch
from peft import (
    LoraConfig,
    PeftModel,
    get_peft_model,
    get_peft_model_state_dict,
    set_peft_model_state_dict,
)
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

BASE = Path("base")
PADDING, BEGIN, VOCABULARY = 256, 257, 258  # behind the bytes


@cache
def texts() -> tuple[Tensor, Tensor]:
    """Return the lines of texts.txt as bytes [n, length], and labels: -100 is padding."""
    lines = [line.encode() for line in Path("texts.txt").read_text().splitlines()]
    ids = torch.full((len(lines), 1 + max(map(len, lines))), PADDING)
    for row, line in zip(ids, lines, strict=True):
        row[: len(line) + 1] = torch.tensor([BEGIN, *line])
    labels = ids.masked_fill((ids == PADDING) | (ids == BEGIN), -100)
    return ids, labels


def save_base() -> None:
    """Save a language model of random weights: yours is a pretrained one."""
    torch.manual_seed(0)
    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config = LlamaConfig(
        vocab_size=VOCABULARY, num_attention_heads=4, initializer_range=0.2, **size
    )
    LlamaForCausalLM(config).save_pretrained(BASE)


@cache
def model() -> PeftModel:
    """Return the frozen base with adapters; what they are before training is common."""
    torch.manual_seed(0)
    base = LlamaForCausalLM.from_pretrained(BASE, local_files_only=True)
    learned = ["q_proj", "v_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]
    lora = LoraConfig(r=16, lora_alpha=32, target_modules=learned)
    return get_peft_model(base, lora)


def adapters() -> dict[str, Tensor]:
    return {k: v.clone() for k, v in get_peft_model_state_dict(model()).items()}


def with_adapters(tensors: dict[str, Tensor]) -> PeftModel:
    set_peft_model_state_dict(model(), tensors)
    return model()


def fit(
    tensors: dict[str, Tensor], positions: np.ndarray, epochs: int, seed: int
) -> tuple[dict[str, Tensor], float]:
    """Train adapters on the texts at those positions; return them and the loss."""
    net = with_adapters(tensors).train()
    ids, labels = (values[torch.as_tensor(positions)] for values in texts())
    order = torch.Generator().manual_seed(seed)
    learned = [p for p in net.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(learned, lr=0.01)
    for _ in range(epochs):
        for batch in torch.randperm(len(ids), generator=order).split(8):
            loss = net(input_ids=ids[batch], labels=labels[batch]).loss
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return adapters(), loss.item()


if __name__ == "__main__":
    save_base()
