"""The truth about membership. It meets an attack's scores in the audit, nowhere else.

Each candidate is a member by a fair coin of its own, so members and non-members of a
shard come from one distribution.
"""

import io
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from jaxtyping import Bool, Int

from privaudit.errors import TranscriptError
from privaudit.partition import Deal
from privaudit.seeds import Seeds
from privaudit.storage import write_bytes


@dataclass(frozen=True)
class Ledger:
    """The truth: who owned and who trained on which record. No attack reaches it.

    Attributes:
        owner: As in :class:`Deal`.
        is_member: True where the owner trained on it; never for public and test.
    """

    owner: Int[np.ndarray, " n"]
    is_member: Bool[np.ndarray, " n"]

    @classmethod
    def toss(cls, deal: Deal, seeds: Seeds) -> "Ledger":
        """Toss a fair coin for each candidate."""
        heads = seeds.numpy("membership").random(len(deal.owner)) < 0.5
        return cls(deal.owner, heads & (deal.owner >= 0))

    def members_of(self, client: int) -> Int[np.ndarray, " members"]:
        """Return the records that a client trains on."""
        return np.flatnonzero((self.owner == client) & self.is_member)

    def save(self, path: Path) -> None:
        """Write the ledger as an npz file without objects."""
        buffer = io.BytesIO()
        np.savez(buffer, owner=self.owner, is_member=self.is_member)
        write_bytes(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> "Ledger":
        """Read a ledger.

        Raises:
            TranscriptError: It was cut or altered.
        """
        try:
            content = io.BytesIO(path.read_bytes())
            with np.load(content, allow_pickle=False) as stored:
                return cls(stored["owner"], stored["is_member"])
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise TranscriptError(
                f"{path} cannot be read ({error}): it was cut or altered. Restore it "
                "from a copy, or train again."
            ) from None
