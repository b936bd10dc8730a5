"""What the benches share: a clock, a process, a CLIP of real size, and how tables print."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from privaudit.models.clip.promptable_clip import PromptableCLIP
from privaudit.models.clip.text_tower import (
    PromptTokens,
    plain_prompt_features,
    prompt_tokens,
)
from privaudit.models.hugging_face import import_open_clip

CONTEXT_TOKENS, POSITIONS = 16, 77
# Class names of CIFAR-100: 1 to 3 tokens each, as most data sets have.
NAMES = """
apple,aquarium fish,baby,bear,beaver,bed,bee,beetle,bicycle,bottle,bowl,boy,bridge,bus,
butterfly,camel,can,castle,caterpillar,cattle,chair,chimpanzee,clock,cloud,cockroach,
couch,crab,crocodile,cup,dinosaur,dolphin,elephant,flatfish,forest,fox,girl,hamster,
house,kangaroo,keyboard,lamp,lawn mower,leopard,lion,lizard,lobster,man,maple tree,
motorcycle,mountain,mouse,mushroom,oak tree,orange,orchid,otter,palm tree,pear,
pickup truck,pine tree,plain,plate,poppy,porcupine,possum,rabbit,raccoon,ray,road,
rocket,rose,sea,seal,shark,shrew,skunk,skyscraper,snail,snake,spider,squirrel,streetcar,
sunflower,sweet pepper,table,tank,telephone,television,tiger,tractor,train,trout,tulip,
turtle,wardrobe,whale,willow tree,wolf,woman,worm
"""
CLASS_NAMES = tuple(name.strip() for name in NAMES.replace("\n", "").split(","))
Result = TypeVar("Result")


class Timed(NamedTuple):
    """What a call took, and what it returned."""

    seconds: float
    result: Any


def timed(call: Callable[[], Result]) -> Timed:
    """Call it and take the time: the processor's own on one thread.

    Processor time leaves out what other programs took meanwhile; on one thread and a
    quiet machine it is the time that passed.
    """
    clock = process_time if torch.get_num_threads() == 1 else perf_counter
    start = clock()
    result = call()
    return Timed(clock() - start, result)


def machine() -> str:
    """Say what ran the bench."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return (
        f"{names[0] if names else 'processor unknown'}, {os.cpu_count()} cores, "
        f"threads used: {torch.get_num_threads()}, torch {torch.__version__}; load of "
        f"the machine before: {os.getloadavg()[0]:.1f}"
    )


def in_own_process(module: str, *words: str) -> str:
    """Return what a module of this folder prints, run by itself at the clone's root.

    Its errors go where this process's go.

    Raises:
        subprocess.CalledProcessError: It fails.
    """
    command = [sys.executable, "-m", f"{__package__}.{module}", *words]
    root = Path(__file__).parents[3]
    done = subprocess.run(
        command, cwd=root, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def spread(values: Sequence[float]) -> str:
    """Return median and range, or the one value."""
    if len(values) == 1:
        return f"{values[0]:.3g}"
    return f"{median(values):.3g} [{min(values):.3g}, {max(values):.3g}]"


def random_clip() -> PromptableCLIP:
    """Return the whole of ViT-B-16, 224 pixels, at random weights."""
    open_clip: Any = import_open_clip()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        clip = open_clip.CLIP(**open_clip.get_model_config("ViT-B-16"))
    tokenizer = open_clip.get_tokenizer("ViT-B-16")
    return PromptableCLIP("ViT-B-16", clip, tokenizer, lambda pictures: pictures)


def class_tokens(clip: PromptableCLIP) -> PromptTokens:
    """Return the prompts of 100 classes, with room for a context."""
    texts = [f"{name}." for name in CLASS_NAMES]
    tokens = prompt_tokens(clip.tokenizer, texts, CONTEXT_TOKENS, POSITIONS)
    return tokens.to(clip.device)


class PlainPrompts:
    """The text tower as it is published: every text at its full 77 tokens.

    Of several prompts that get no gradient (pFedMoAP's experts) only the first takes
    that way, and the others the shared prefix: the same features, within minutes.

    Attributes:
        spared: Seconds to be added for those: each as long as the first took.
    """

    context_tokens = CONTEXT_TOKENS

    def __init__(self, clip: PromptableCLIP) -> None:
        self.width = clip.width
        self.spared = 0.0
        self._clip, self._tokens = clip.clip, class_tokens(clip)
        self._shared = clip.prompts(CLASS_NAMES, CONTEXT_TOKENS)

    def __call__(self, contexts: Tensor) -> Tensor:
        """Return the normalised features [prompts, classes, dim]."""
        if torch.is_grad_enabled() or len(contexts) == 1:
            return torch.cat([self._encode(context) for context in contexts.split(1)])
        first = timed(partial(self._encode, contexts[:1]))
        others = timed(partial(self._shared, contexts[1:]))
        self.spared += (len(contexts) - 1) * first.seconds - others.seconds
        return torch.cat([first.result, others.result])

    def _encode(self, context: Tensor) -> Tensor:
        features = plain_prompt_features(self._clip, self._tokens, context)
        return normalize(features, dim=-1)


class StandInPrompts:
    """A text tower that takes no time, for a round that only has to have happened."""

    context_tokens = CONTEXT_TOKENS

    def __init__(self, clip: PromptableCLIP) -> None:
        self.width = clip.width
        generator = torch.Generator().manual_seed(0)
        self._classes = torch.randn(len(CLASS_NAMES), clip.dim, generator=generator)

    def __call__(self, contexts: Tensor) -> Tensor:
        """Return normalised features [prompts, classes, dim]; width and dim agree."""
        return normalize(contexts.mean(dim=1, keepdim=True) + self._classes, dim=-1)
