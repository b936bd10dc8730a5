"""Memory of a step of LoRA on a model of 7 billion weights, without its weights.

Run by ``make bench``. The model has LLaMA-7B's shapes and torch's fake tensors, which
have sizes and no content; what is counted is what :class:`PeakMemory` counts in a run.
Each client has a batch of 8 rows of 640 tokens, of which 64 are an answer.
"""

from functools import partial

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from privaudit.core.devices import use_checkpointing
from privaudit.core.operations import PeakMemory
from privaudit.models.hugging_face import import_transformers
from privaudit.models.interfaces import Tuning
from privaudit.models.language.stacked_language import StackedLanguageModel
from privaudit.tuning.transformers.lora import changes_of
from tests.privaudit.models.language.small_language import NumberTokenizer

ROWS, LENGTH, ANSWER, RANK = 8, 640, 64, 8
MOST = 4.0  # MiB a token, with checkpointing, in bfloat16


def test_memory_of_a_step() -> None:
    print("\nLLaMA-7B's shapes, LoRA of rank 8 on all linear layers or on attention's:")
    print(f"{'':36}{'clients':>8} {'kept, MiB a token':>18} {'peak':>6} {'GiB':>7}")
    for precision in ("float32", "bfloat16"):
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        for targets in ("all-linear", "attention"):
            model = large_model(fake, getattr(torch, precision), targets)
            for again in (False, True):
                for clients in (1, 10):
                    with fake, use_checkpointing(again):
                        kept, peak = memory_of_step(model, clients)
                    tokens = clients * ROWS * LENGTH * 2**20
                    how = f"{precision}, {targets}{', checkpointing' * again}"
                    print(
                        f"{how:36}{clients:8} {kept / tokens:18.2f} "
                        f"{peak / tokens:6.2f} {peak / 2**30:7.1f}"
                    )
                    if precision == "bfloat16" and again:
                        assert peak / tokens < MOST


def large_model(
    fake: FakeTensorMode, dtype: torch.dtype, targets: str
) -> StackedLanguageModel:
    transformers = import_transformers()
    config = transformers.LlamaConfig(
        hidden_size=4096,
        intermediate_size=11008,
        num_hidden_layers=32,
        num_attention_heads=32,
        vocab_size=32000,
        dtype=dtype,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with fake:
            model = transformers.LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    return StackedLanguageModel(model, NumberTokenizer(), targets)


def memory_of_step(model: StackedLanguageModel, clients: int) -> tuple[int, int]:
    """Return what is kept for the gradient, and the peak."""
    empty = partial(torch.empty, requires_grad=True)
    pairs: dict[str, Tensor] = {}
    for name, target in model.targets.items():
        pairs[f"{name}.A"] = empty(clients, RANK, target.inputs)
        pairs[f"{name}.B"] = empty(clients, target.outputs, RANK)
    dtype = next(model.model.parameters()).dtype
    rows = torch.empty(clients * ROWS, LENGTH, 4096, dtype=dtype)
    keep = torch.arange(LENGTH - ANSWER, LENGTH)
    tuning = Tuning(changes_of(model.targets, pairs, 2.0))
    with PeakMemory() as memory:
        with model.tuned(tuning, clients, len(rows) * LENGTH):
            output = model._run(keep, inputs_embeds=rows, use_cache=False).logits
        kept, loss = memory.now, output.float().log_softmax(dim=-1).mean()
        torch.autograd.grad(loss, list(pairs.values()))
    return kept, memory.peak
