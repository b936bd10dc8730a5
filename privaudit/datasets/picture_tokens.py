"""Tokens of pictures: too many for the memory, and read a batch at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from privaudit.core.devices import CPU, moved


@dataclass(frozen=True)
class PictureTokens:
    """Some rows of a table of tokens that stays where it is: on the disk, if mapped.

    Indexing picks rows and reads nothing; :meth:`read` copies the picked ones.

    Attributes:
        table: Of all pictures, on the CPU.
        rows: Which of them these are, of any shape; -1 where padding stands.

    Example:
        >>> tokens = PictureTokens.of(torch.arange(6.0).view(3, 2, 1))
        >>> tokens[torch.tensor([2, 0])].read().flatten().tolist()
        [4.0, 5.0, 0.0, 1.0]
    """

    table: Float[Tensor, "pictures parts width"]
    rows: Int[Tensor, "*records"]

    @classmethod
    def of(cls, tokens: Float[Tensor, "*records parts width"]) -> "PictureTokens":
        """Return all rows of a table, or of tokens in the shape of a batch."""
        table = tokens.flatten(0, -3).to(CPU)
        rows = torch.arange(len(table), device=CPU)
        return cls(table, rows.view(tokens.shape[:-2]))

    @classmethod
    def joined(cls, parts: Sequence["PictureTokens"]) -> "PictureTokens":
        """Return parts one behind the other; only those of several tables are read."""
        table = parts[0].table
        if all(part.table is table for part in parts):
            return cls(table, torch.cat([part.rows for part in parts]))
        return cls.of(torch.cat([part.read() for part in parts]))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def device(self) -> torch.device:
        """Where the table is, and the rows."""
        return self.rows.device

    @property
    def parts(self) -> int:
        """How many tokens a picture has; 0 where the model sees none."""
        return self.table.shape[1]

    def __getitem__(self, chosen: Any) -> "PictureTokens":
        """Return what an index picks of the rows, without reading it."""
        return replace(self, rows=self.rows[moved(chosen, CPU)])

    def read(self, device: torch.device = CPU) -> Float[Tensor, "*records parts width"]:
        """Return the tokens themselves, on a device; padding is zero."""
        if not len(self.table):
            shape = *self.rows.shape, *self.table.shape[1:]
            return self.table.new_zeros(shape, device=device)
        tokens = self.table[self.rows.clamp(min=0)]
        tokens[self.rows < 0] = 0
        return tokens.to(device)
