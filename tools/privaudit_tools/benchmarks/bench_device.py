"""Our path against the published loops, both on one device.

Run by ``make gpu`` on the device that TEST_DEVICE names, and by ``make bench`` on the
CPU at sizes that only show that it runs. Time is the wall's, between two moments at
which the device has finished. Nothing fails for being slow.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import median
from time import perf_counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from privaudit.core.devices import (
    CPU,
    device_name,
    find_device,
    free_memory,
    use_checkpointing,
    use_device,
)
from privaudit.core.seeds import Seeds
from privaudit.core.step_graphs import StepGraph
from privaudit.core.tensors import stack
from privaudit.federation.on_device import on_device
from privaudit.federation.rounds import Federation, Stacking, run_round
from privaudit.federation.trainer import Cohort, Task, Trainer, start_client
from privaudit.models.clip.promptable_clip import PromptableCLIP
from privaudit.models.hugging_face import import_transformers
from privaudit.models.interfaces import Precision
from privaudit.models.language.stacked_language import StackedLanguageModel
from privaudit.models.token_table import token_statistics
from privaudit_tools.benchmarks import bench_token_statistics
from privaudit_tools.benchmarks.bench_trainers import BATCH, CLIENTS, Bench, trainer_of
from privaudit_tools.benchmarks.launches import (
    KERNELS,
    Launches,
    bound_text,
    contexts_of,
    one_gradient,
)
from privaudit_tools.benchmarks.measuring import (
    CLASS_NAMES,
    PlainPrompts,
    machine,
    random_clip,
    spread,
)
from tests.privaudit.models.language.small_language import NumberTokenizer
from tests.small_transformers import draw, pair_shapes, some_lora, with_lora_of_peft

PASSES, TARGET = 3, 20.0
STACKED, ROWS, RANK = 4, 8, 8  # models that are tuned together, and rows of each
A_TOKEN, WEIGHTS = 5.5 * 2**20, 12.6 * 2**30  # bytes, by bench_memory.py, in bfloat16
SIDE = {"cpu": 512, "cuda": 8192}  # of the square product that says what the peak is


@pytest.fixture(scope="module")
def device() -> Iterator[torch.device]:
    named = find_device(os.environ.get("TEST_DEVICE", "cpu"))
    print(f"\n{machine()}; {device_name(named)}")
    with use_device(named):
        yield named


def seconds_of(device: torch.device, call: Callable[[], object]) -> list[float]:
    """Time a call some times, behind one that sets up memory."""
    finish = torch.cuda.synchronize if device.type == "cuda" else bool
    found = []
    for _ in range(1 + PASSES):
        finish()
        start = perf_counter()
        call()
        finish()
        found.append(perf_counter() - start)
    return found[1:]


def compare(what: str, ours: list[float], published: list[float], unit: float) -> None:
    ratios = [slow / fast for slow in published for fast in ours]
    met = "reached" if median(ratios) >= TARGET else "not reached"
    print(
        f"{what}: {spread([unit / s for s in ours])} a second, published "
        f"{spread([unit / s for s in published])}: {spread(ratios)} times as fast; "
        f"target {TARGET:g}: {met}"
    )


@dataclass
class OnDevice(Bench):
    """ViT-B-16 at random weights on a device; see :class:`Bench`."""

    device: torch.device = CPU
    precision: Precision = "float32"

    @property
    def clip(self) -> PromptableCLIP:
        before = super().clip
        clip = before.clip.to(self.device)
        there = PromptableCLIP("ViT-B-16", clip, before.tokenizer, lambda p: p)
        there.precision = self.precision
        return there

    def prompted(self, clip: PromptableCLIP) -> Task:
        shards = self.shards(BATCH, image_tokens=False)
        backbone = clip.backbone(CLASS_NAMES, "a photo of a {}.")
        return replace(self.task(shards), backbone=backbone)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["promptfl", "dp-fpl"])
def test_rounds_of_prompt_learners(
    name: str, precision: Precision, device: torch.device
) -> None:
    """Ten clients, 100 classes: stacked, or one by one with the image tower.

    In bfloat16 both are.
    """
    if device == CPU:
        pytest.skip("bench_trainers.py measures this on a CPU, for every trainer")
    bench = OnDevice(device=device, precision=precision)
    clip = bench.clip
    task, trainer = bench.prompted(clip), on_device(trainer_of(name), device)
    federation = Federation.begin(
        trainer, task, bench.shards(BATCH, image_tokens=False), Seeds(0)
    )

    stacking = Stacking(len(CLIENTS))  # measured in the first round alone

    def our_round() -> None:
        copy = replace(federation, kept=dict(federation.kept), losses={})
        run_round(trainer, task, [copy], 0, cohort_size=stacking)

    our_round()
    with Launches() as launches:
        our_round()
    ours = seconds_of(device, our_round)
    published = partial(published_round, trainer, task, federation, clip)
    compare(f"{name}, {precision}, rounds", ours, seconds_of(device, published), 1.0)
    kernels, busy = computed(our_round)
    print(
        f"{name}, {precision}: {launches.kernels} operations, {kernels} kernels, which the "
        f"device computes in {busy / min(ours):.0%} of a round's time"
    )


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("classes", [10, 100])
def test_a_step_beside_what_bounds_it(
    classes: int, precision: Precision, device: torch.device
) -> None:
    """ViT-B-16's text tower: kernel by kernel, and as a CUDA graph where there is one.

    A step takes as long as its launches, or its products and what it reads and writes.
    """
    clients = len(CLIENTS) if device.type == "cuda" else 1
    dtype = torch.bfloat16 if precision == "bfloat16" else None
    text = bound_text(random_clip().clip.to(device), classes, dtype)
    replayed = StepGraph(text)
    contexts = contexts_of(clients).to(device)
    behind = torch.randn(clients, classes, text.tower.dim, device=device)
    step = partial(one_gradient, text, contexts, behind)
    with Launches() as launches, FlopCounterMode(display=False) as counter:
        step()
    written = seconds_of(device, step)
    for _ in range(2):  # the second one is captured
        one_gradient(replayed, contexts, behind)
    again = seconds_of(device, partial(one_gradient, replayed, contexts, behind))
    products = counter.get_total_flops() / peak(device, precision)
    moved = launches.bytes / bandwidth(device)
    launched = launches.kernels * a_launch(device)
    print(
        f"{clients} clients x {classes} classes, {precision}: {launches.kernels} kernels, "
        f"{launches.bytes / 1e9:.2f} GB; in ms: kernel by kernel {ms(written)}, "
        f"{'replayed' if replayed._captured[0] else 'not replayed'} {ms(again)}, bounds: "
        f"launches {1e3 * launched:.2f}, products {1e3 * products:.2f} and bytes "
        f"{1e3 * moved:.2f}; {(products + moved) / min(again):.0%} of the bound, "
        f"{products / min(again):.0%} of the peak of matrix products"
    )
    assert launches.kernels <= KERNELS or device == CPU


def ms(seconds: list[float]) -> str:
    return spread([1e3 * one for one in seconds])


def bandwidth(device: torch.device) -> float:
    """Return the bytes a second that a large copy reads and writes."""
    large = torch.ones(2**28 if device.type == "cuda" else 2**24, device=device)
    return 2 * large.nbytes / min(seconds_of(device, large.clone))


def a_launch(device: torch.device) -> float:
    """Return the seconds of one small kernel behind others."""
    small, many = torch.ones(8, device=device), 1000

    def launch() -> None:
        for _ in range(many):
            small.add_(1.0)

    return min(seconds_of(device, launch)) / many


def computed(call: Callable[[], object]) -> tuple[int, float]:
    """Return the kernels of a call, and the seconds that they take."""
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        call()
        torch.cuda.synchronize()
    kernels = [e for e in found.events() if e.device_type == DeviceType.CUDA]
    return len(kernels), sum(kernel.device_time_total for kernel in kernels) / 1e6


def published_round(
    trainer: Trainer, task: Task, federation: Federation, clip: PromptableCLIP
) -> None:
    """One client after the other: pictures, and every text at its 77 tokens."""
    half = torch.autocast(
        clip.device.type, torch.bfloat16, enabled=clip.precision == "bfloat16"
    )
    prompts: Any = PlainPrompts(clip)
    prompts._encode = half(prompts._encode)  # not what a trainer computes with them
    plain = replace(task, backbone=replace(task.classifier, prompts=prompts))
    at = federation.at(0, 1.0)
    for client in CLIENTS:
        half(clip.encode_images)(torch.zeros(BATCH, 3, 224, 224))
        cohort = Cohort.of([client], [federation.shards[client]])
        received = stack([trainer.broadcast(federation.server, client, at)])
        kept = stack([start_client(trainer, task, client, federation.seeds)])
        trainer.local_update(plain, cohort, received, kept, at)


def peak(device: torch.device, precision: Precision) -> float:
    """Return the operations a second of a large square product."""
    side = SIDE.get(device.type, 4096)
    square = torch.ones(side, side, device=device, dtype=getattr(torch, precision))
    return 2 * side**3 / min(seconds_of(device, lambda: square @ square))


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing")  # by peft
def test_lora_of_a_large_language_model(device: torch.device) -> None:
    """Stacked adapters against peft's, one model after the other.

    They agree in float32, in two layers of the same shapes.
    """
    few = language(device, torch.float32, layers=2)
    ours, of_peft = both_ways(few, torch.randn(STACKED * ROWS, 16, few.width))
    first, last = ours()[0], of_peft()
    assert (first - last).norm() < 1e-3 * last.norm()
    del few, ours, of_peft

    length = 640 if device.type == "cuda" else 32
    if device.type == "cuda":  # as many tokens as this device holds beside the weights
        room = 0.9 * free_memory(device) - WEIGHTS
        length = min(length, int(room / (STACKED * ROWS * A_TOKEN)))
        if length < 16:
            pytest.skip(f"{device_name(device)} has no room for 7B shapes")
    model = language(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    print(f"{STACKED} models of {ROWS} rows of {length} tokens")
    stacked, one_by_one = both_ways(
        model, torch.randn(STACKED * ROWS, length, model.width)
    )
    tokens = STACKED * ROWS * length
    with use_checkpointing():
        again = seconds_of(device, stacked)
    seconds = seconds_of(device, stacked)
    print(f"with checkpointing: {spread([tokens / s for s in again])} tokens a second")
    compare("LoRA, tokens", seconds, seconds_of(device, one_by_one), tokens)


def both_ways(
    model: StackedLanguageModel, rows: Tensor
) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """Return what computes gradients [models, numbers]: stacked, and by peft the last."""
    weights = next(model.model.parameters())
    rows = rows.to(weights)
    drawn = draw(pair_shapes(model, STACKED, RANK))
    # So small that attention is not saturated: rounding would decide what it looks at.
    pairs = {name: 0.1 * t.detach().to(weights.device) for name, t in drawn.items()}

    def stacked() -> Tensor:
        leaves = {n: t.detach().requires_grad_() for n, t in pairs.items()}
        with model.tuned(some_lora(model, leaves), STACKED, rows[..., 0].numel()):
            logits = model._run(1, inputs_embeds=rows, use_cache=False).logits
        total = logits.float().logsumexp(dim=-1).mean() * STACKED
        found = torch.autograd.grad(total, list(leaves.values()))
        return torch.cat([gradient.flatten(1) for gradient in found], dim=1)

    @cache
    def wrapped() -> Any:  # in its place
        return with_lora_of_peft(model.model, model, pairs)

    def one_by_one() -> Tensor:
        learned = [p for n, p in wrapped().named_parameters() if "lora_" in n]
        for parameter in learned:
            parameter.requires_grad_()
        for part in rows.split(ROWS)[::-1]:  # the wrapped adapters are the first's
            output = wrapped()(inputs_embeds=part, use_cache=False, logits_to_keep=1)
            total = output.logits.float().logsumexp(dim=-1).mean()
            found = torch.autograd.grad(total, learned)
        return torch.cat([gradient.float().flatten() for gradient in found])

    return stacked, one_by_one


def language(
    device: torch.device, dtype: torch.dtype, layers: int = 32
) -> StackedLanguageModel:
    """Return LLaMA-7B's shapes at random weights; small ones on a CPU."""
    large = device.type == "cuda"
    transformers = import_transformers()
    config = transformers.LlamaConfig(
        hidden_size=4096 if large else 64,
        intermediate_size=11008 if large else 128,
        num_hidden_layers=layers if large else 2,
        num_attention_heads=32 if large else 4,
        vocab_size=32000 if large else 100,
    )
    with torch.device(device):
        model = transformers.LlamaForCausalLM._from_config(config, dtype=dtype)
    return StackedLanguageModel(model, NumberTokenizer())


def test_statistics_of_576_tokens(device: torch.device) -> None:
    logits, targets = (t.to(device) for t in bench_token_statistics.draw())
    count = 64  # the loop takes long for all of them
    loop = partial(
        bench_token_statistics.loop, logits[:count], targets[:count], torch.float64
    )
    ours = seconds_of(device, partial(token_statistics, logits, targets))
    slow = [s * len(logits) / count for s in seconds_of(device, loop)]
    compare("MaxRenyi, 576 x 32,000, pictures", ours, slow, 1.0)
