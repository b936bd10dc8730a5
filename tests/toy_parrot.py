"""A language model that has memorised some texts, without any training."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from privaudit.datasets.dialogues import TokenSequences
from privaudit.models.interfaces import Tuning
from tests.toy_language import VOCABULARY, ToyLanguage, toy_language


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
