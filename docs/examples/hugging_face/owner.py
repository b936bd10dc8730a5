"""What privaudit asks of this training: privaudit attack run --owner owner.py."""

import random

import torch
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from transformers import GPT2Config, GPT2LMHeadModel

task = "generation"
draw = random.Random(0)
codes = ["".join(draw.choices("abcdefghij", k=8)) for _ in range(300)]


def encode(number, code):
    """Return bytes as tokens; of the question, no token is to be predicted (-100)."""
    question, answer = f"{number:04}: ".encode(), code.encode()
    labels = [-100] * len(question) + list(answer)
    return {"input_ids": list(question + answer), "labels": labels}


records = [encode(number, code) for number, code in enumerate(codes)]


def build():
    """Return a small model with a LoRA adapter; yours comes by from_pretrained."""
    torch.manual_seed(0)
    size = {"vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 2}
    size |= {"bos_token_id": 0, "eos_token_id": 0}
    base = GPT2LMHeadModel(GPT2Config(initializer_range=0.2, **size))
    layers = ["c_attn", "c_fc", "mlp.c_proj"]
    lora = LoraConfig(r=16, target_modules=layers, fan_in_fan_out=True)
    return get_peft_model(base, lora)


model = build().eval()


def query(tensors, positions):
    """Return logits [records, length, vocabulary], and labels [records, length]."""
    set_peft_model_state_dict(model, dict(tensors))
    ids, labels = (
        torch.tensor([records[position][part] for position in positions])
        for part in ("input_ids", "labels")
    )
    with torch.no_grad():
        return model(input_ids=ids).logits, labels


def utility(tensors, positions):
    """Return which part of each answer is foreseen, in [0, 1]."""
    logits, labels = query(tensors, positions)
    is_answer = labels[:, 1:] != -100
    right = (logits[:, :-1].argmax(dim=-1) == labels[:, 1:]) & is_answer
    return (right.sum(dim=1) / is_answer.sum(dim=1)).numpy()
