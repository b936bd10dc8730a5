"""Toy language models: small, quick, and easy to check by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from privaudit.core.seeds import Stream
from privaudit.datasets.records import (
    ANSWER,
    INSTRUCTION,
    PADDING,
    PICTURE,
    Dialogue,
    PictureTokens,
    TokenSequences,
)
from privaudit.federation.trainer import Records, Task
from privaudit.models.interfaces import Site, TunableLayer, Tuning

VOCABULARY, WIDTH, PARTS, LAYERS = 11, 8, 2, 3
END = 1


@dataclass(frozen=True)
class ToyLanguage:
    """Each position sees the mean of what stands up to it, three layers deep."""

    task: ClassVar[Literal["generation"]] = "generation"
    embedding: Tensor
    layers: tuple[Tensor, ...]

    @property
    def targets(self) -> Mapping[str, TunableLayer]:
        return {
            f"layer{i}": TunableLayer(WIDTH, WIDTH, i) for i in range(len(self.layers))
        }

    @property
    def sites(self) -> Mapping[str, Site]:
        return {}

    @property
    def width(self) -> int:
        return WIDTH

    @property
    def weights(self) -> Mapping[str, Tensor]:
        return {}

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def vocabulary(self) -> int:
        return VOCABULARY

    def start_vectors(self, count: int, stream: Stream) -> Tensor:
        return stream.normal_tensor((count, WIDTH))

    def logits(
        self,
        tokens: Tensor,
        words: TokenSequences,
        tuning: Tuning,
        positions: Tensor | None = None,
    ) -> Tensor:
        states = self.embedding[words.ids].clone()
        seen = (words.kinds == PICTURE).any(dim=2)  # padding has no picture
        states[words.kinds == PICTURE] = tokens[seen].reshape(-1, WIDTH)
        counts = torch.arange(1, words.length + 1).view(1, 1, -1, 1)
        for number, weight in enumerate(self.layers):
            flat = states.flatten(1, 2)
            change = tuning.changes.get(f"layer{number}", torch.zeros_like)
            moved = torch.tanh(flat @ weight.T + change(flat)).view(states.shape)
            states = states + moved.cumsum(dim=2) / counts
        chosen = states if positions is None else states[:, :, positions]
        return 3 * chosen @ self.embedding.T

    def generate(
        self, tokens: Tensor, words: TokenSequences, tuning: Tuning, longest: int
    ) -> list[list[str]]:
        ids, kinds = words.ids, words.kinds
        for _ in range(longest):
            best = self.logits(tokens, TokenSequences(ids, kinds), tuning)[
                :, :, -1
            ].argmax(-1)
            ids = torch.cat([ids, best.unsqueeze(2)], dim=2)
            kinds = torch.cat([kinds, torch.full_like(best, ANSWER).unsqueeze(2)], 2)
        said = ids[:, :, words.length :].tolist()
        return [[_text(row) for row in model] for model in said]

    def decode(self, ids: Sequence[int]) -> str:
        return _text(list(ids))


def _text(row: list[int]) -> str:
    return " ".join(str(i) for i in (row[: row.index(END)] if END in row else row))


def toy_language() -> ToyLanguage:
    generator = torch.Generator().manual_seed(3)
    embedding = torch.randn(VOCABULARY, WIDTH, generator=generator)
    layers = torch.randn(LAYERS, WIDTH, WIDTH, generator=generator) / WIDTH**0.5
    return ToyLanguage(normalize(embedding, dim=-1), tuple(layers))


def toy_dialogues(count: int, seed: int = 0) -> Records:
    """Pictures with answers of two to four words, ended, behind two asked ones."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(count, PARTS, WIDTH, generator=generator)
    length = PARTS + 2 + 5
    ids = torch.randint(2, VOCABULARY, (count, length), generator=generator)
    kinds = torch.full_like(ids, ANSWER)
    kinds[:, :PARTS], kinds[:, PARTS : PARTS + 2] = PICTURE, INSTRUCTION
    ids[:, PARTS : PARTS + 2] = torch.tensor([2, 3])
    ends = PARTS + 2 + 2 + torch.arange(count) % 3
    ids[torch.arange(count), ends] = END
    kinds[torch.arange(length) > ends.unsqueeze(1)] = PADDING
    ids[kinds == PADDING] = 0
    words = TokenSequences(ids, kinds)
    dialogues = tuple(
        Dialogue("2 3", (_text(row[PARTS + 2 :].tolist()),)) for row in ids
    )
    features = normalize(tokens.mean(dim=1), dim=-1)
    pictures = PictureTokens.of(tokens)
    return Records(features, torch.arange(count) % 4, pictures, words, dialogues)


def toy_shards(task: Task) -> dict[str, Records]:
    """Return half as many dialogues as each client has candidates."""
    sizes = enumerate(task.candidates.items())
    return {c: toy_dialogues(n // 2, 10 + number) for number, (c, n) in sizes}


def toy_writing_task() -> Task:
    """Three clients, and a language model to be tuned."""
    return Task(
        backbone=toy_language(),
        public=toy_dialogues(40, seed=1),
        candidates={"client-0": 24, "client-1": 18, "client-2": 30},
        rounds=4,
    )


@dataclass(frozen=True)
class Parrot(ToyLanguage):
    """Knows how some texts go on, each as long as it has been followed so far."""

    memory: TokenSequences | None = None

    def logits(
        self,
        tokens: Tensor,
        words: TokenSequences,
        tuning: Tuning,
        positions: Tensor | None = None,
    ) -> Tensor:
        outputs = super().logits(tokens, words, tuning)
        assert self.memory is not None
        for own in self.memory.ids:
            length = min(words.length, len(own) - 1)
            follows = (words.ids[..., :length] == own[:length]).cumprod(dim=-1)
            known = one_hot(own[1 : length + 1], VOCABULARY)
            outputs[:, :, :length] += 20.0 * follows.unsqueeze(-1) * known
        return outputs if positions is None else outputs[:, :, positions]


def parrot(memory: Sequence[TokenSequences]) -> Parrot:
    """Return one that knows these texts, all of one length."""
    plain = toy_language()
    ids, kinds = (
        torch.cat([getattr(one, name) for one in memory]) for name in ("ids", "kinds")
    )
    return Parrot(plain.embedding, plain.layers, TokenSequences(ids, kinds))
