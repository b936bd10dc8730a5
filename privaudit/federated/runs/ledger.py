"""The truth about membership. It meets an attack's scores in the audit, nowhere else.

Each candidate is a member by a fair coin of its own, so members and non-members of a
shard come from one distribution. Where all candidates are trained on, there is no coin
and nothing to audit.
"""

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int

from privaudit.core.arrays import DAMAGE, read_npz
from privaudit.core.errors import LimitError, TranscriptError
from privaudit.core.seeds import Seeds
from privaudit.core.storage import read_bytes, write_bytes
from privaudit.datasets.split import Split


@dataclass(frozen=True)
class Ledger:
    """The truth: who owned and who trained on which record. No attack reaches it.

    Attributes:
        owner: As in :class:`Split`.
        is_member: True where the owner trained on it; never for public and test.
    """

    owner: Int[np.ndarray, " n"]
    is_member: Bool[np.ndarray, " n"]

    @classmethod
    def toss(cls, split: Split, seeds: Seeds) -> "Ledger":
        """Toss a fair coin for each candidate, if the deal's rule is the coin."""
        heads = seeds.stream("membership").coins(0.5, len(split.owner))
        if split.members == "all":
            heads[:] = True
        return cls(split.owner, heads & (split.owner >= 0))

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients' names, by number."""
        return tuple(f"client-{n}" for n in range(int(self.owner.max()) + 1))

    def members_of(self, client: int) -> Int[np.ndarray, " members"]:
        """Return the records that a client trains on."""
        return np.flatnonzero((self.owner == client) & self.is_member)

    @property
    def hash(self) -> str:
        """The SHA-256 of owners and members."""
        content = self.owner.astype("<i8").tobytes() + self.is_member.tobytes()
        return hashlib.sha256(content).hexdigest()

    def fits(self, split: Split) -> bool:
        """Say whether the records belong to whom they were dealt."""
        return np.array_equal(self.owner, split.owner)

    def save(self, path: Path) -> None:
        """Write the ledger as an npz file without objects."""
        buffer = io.BytesIO()
        np.savez(buffer, owner=self.owner, is_member=self.is_member)
        write_bytes(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> "Ledger":
        """Read a ledger.

        Raises:
            MissingFileError: There is none.
            LimitError: It is larger than a bound.
            TranscriptError: It was cut or altered.
        """
        content = read_bytes(path, "arrays")
        try:
            stored = read_npz(content, str(path))
            return cls(*_checked(stored["owner"], stored["is_member"]))
        except LimitError:
            raise
        except DAMAGE as error:
            raise TranscriptError(
                f"{path} cannot be read ({error}): it was cut or altered. Restore it "
                "from a copy, or train again."
            ) from None


def _checked(owner: np.ndarray, is_member: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if owner.ndim != 1 or owner.dtype.kind != "i":
        raise ValueError(f"owner is {owner.dtype} of shape {owner.shape}")
    if is_member.shape != owner.shape or is_member.dtype != bool:
        raise ValueError(f"is_member is {is_member.dtype} of shape {is_member.shape}")
    return owner, is_member
