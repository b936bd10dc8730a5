"""Models that answer in words without any weights: their logits are given.

A record is [picture, picture, picture, instruction, instruction, instruction, answer …]
with answers of 5 to 8 tokens, and its feature is its place in a bank of logits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Float
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import one_hot

from privaudit.auditing.attack import Adversary, Target
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked
from privaudit.datasets.records import (
    ANSWER,
    INSTRUCTION,
    PADDING,
    PICTURE,
    Dialogue,
    TokenSequences,
)
from privaudit.federation.threat_models import View, server
from privaudit.federation.trainer import Reconstruction, Records, Signal, Signals, Task
from privaudit.models.token_table import TOKENS, token_signals
from privaudit.trainers.zero_shot import ZeroShot

VOCABULARY, BEFORE, LONGEST = 12, 6, 8
LENGTH = BEFORE + LONGEST


@dataclass(frozen=True)
class Speaker(ZeroShot):
    """Say what the bank holds, a few records at a time."""

    def query(
        self,
        task: Task,
        models: Stacked,
        records: Records,
        want: frozenset[Signal] = frozenset({TOKENS}),
    ) -> Iterator[Signals]:
        assert records.words is not None
        for chosen in torch.arange(len(records)).split(7):
            words = records.words[chosen].trimmed()
            places = records.features[chosen, 0].long()
            logits = models["bank"][:, places, : words.length]
            yield token_signals(logits, words, want)


def word_records(count: int, seed: int, first: int = 0) -> Records:
    """Draw records whose places in the bank begin at ``first``."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(5, LONGEST + 1, count)
    kinds = torch.full((count, LENGTH), PADDING)
    kinds[:, :3], kinds[:, 3:BEFORE] = PICTURE, INSTRUCTION
    for row, size in enumerate(sizes):
        kinds[row, BEFORE : BEFORE + size] = ANSWER
    ids = torch.from_numpy(rng.integers(0, VOCABULARY, (count, LENGTH)))
    places = torch.arange(first, first + count, dtype=torch.float32)
    return Records(
        features=places[:, None],
        labels=torch.arange(count) % 4,
        words=TokenSequences(ids, kinds),
        dialogues=tuple(
            Dialogue(f"what is {i}?", (f"it is {i}",)) for i in range(count)
        ),
    )


def bank(
    records: Records, known: Bool[np.ndarray, " n"], seed: int
) -> Float[Tensor, "n length vocabulary"]:
    """Return logits of noise, with every next token far ahead where it is known."""
    assert records.words is not None
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(len(records), LENGTH, VOCABULARY, generator=generator)
    following = records.words.ids.roll(-1, dims=1)
    right = one_hot(following, VOCABULARY) * 8.0
    return noise + right * torch.from_numpy(known)[:, None, None]


def attacked(
    task: Task, results: bool, count: int = 50
) -> tuple[Adversary, list[Target], list[np.ndarray]]:
    """Return two clients, and who is a member: memorised if anything leaks."""
    public = word_records(60, seed=9, first=2 * count)
    targets, truth, banks = [], [], []
    for number in range(2):
        candidates = word_records(count, seed=number, first=number * count)
        is_member = np.random.default_rng(100 + number).random(count) < 0.5
        banks.append(bank(candidates, is_member & results, seed=number))
        truth.append(is_member)
        targets.append(Target(f"client-{number}", Reconstruction({}), candidates))
    banks.append(bank(public, np.zeros(60, dtype=bool), seed=9))
    model = {"bank": torch.cat(banks)}
    targets = [
        replace(target, reconstructed=Reconstruction(model)) for target in targets
    ]
    world = replace(task, public=public)
    adversary = Adversary(Speaker(), world, server, View("server", ()), Seeds(0))
    return adversary, targets, truth


def by_hand(
    task: Task, logits: Sequence[Sequence[float]], ids: Sequence[int]
) -> tuple[Adversary, list[Target]]:
    """Return one record, of answers only, that stands for the public too."""
    row = torch.tensor([list(ids)])
    words = TokenSequences(row, torch.full_like(row, ANSWER))
    text = (Dialogue("what?", ("aaaaaaaa",)),)
    records = Records(torch.zeros(1, 1), torch.tensor([0]), None, words, text)
    adversary = Adversary(
        Speaker(), replace(task, public=records), server, View("server", ()), Seeds(0)
    )
    model = {"bank": torch.tensor([list(map(list, logits))])}
    return adversary, [Target("client-0", Reconstruction(model), records)]
