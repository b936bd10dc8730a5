"""Questions and answers written as a vision-language model's own processor does."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from privaudit.datasets.dialogues import PICTURE
from privaudit.models.language.dialogue_tokens import DialogueTokens
from privaudit.models.vision_language.picture_reader import PictureLayout

_BITS = 16  # for each side of a grid


def pack_grid(grid: tuple[int, int, int]) -> int:
    """Return a picture's patches in time, height and width as one number."""
    time, height, width = grid
    return (time << 2 * _BITS) | (height << _BITS) | width


def unpack_grids(numbers: Int[Tensor, " n"]) -> Int[Tensor, "n 3"]:
    """Return what :func:`pack_grid` packed."""
    mask = (1 << _BITS) - 1
    sides = (numbers >> 2 * _BITS, (numbers >> _BITS) & mask, numbers & mask)
    return torch.stack(sides, dim=-1)


@dataclass(frozen=True)
class LaidOutTokens(DialogueTokens):
    """Writes dialogues about pictures of any sizes.

    The number at a picture's places is its packed grid, where its positions follow one.

    Attributes:
        layouts: Of each record's picture.
    """

    layouts: tuple[PictureLayout, ...] = ()

    def _prompt(self, record: int, question: str) -> tuple[list[int], list[int]]:
        ids, kinds = super()._prompt(record, question)
        grid = self.layouts[record].grid
        if grid is None:
            return ids, kinds
        number = pack_grid(grid)
        pairs = zip(ids, kinds, strict=True)
        return [number if kind == PICTURE else i for i, kind in pairs], kinds

    def _picture(self, record: int) -> str:
        return self.layouts[record].text
