"""What one target's shadows say, gathered model by model and kept beside the run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.shadow_models.splits import ShadowSplit, Source
from privaudit.auditing.signals.signal_cache import content_hash
from privaudit.auditing.signals.signals import SignalTable
from privaudit.auditing.signals.target import (
    ask_signals,
    folded,
    target_signals,
    unfolded,
)
from privaudit.core.tensors import Tensors


@dataclass(frozen=True)
class SignalsWithMembership:
    """What shadows say of some records, and which shadow was trained on which.

    Attributes:
        signals: Of every shadow about every record.
        is_in: Which shadow was trained on which record.
        is_out: Which record nobody around the shadow was trained on. In a shadow
            federation a record may be neither: it was another client's.
        target: What the target says of the same records, as a table of one model.
    """

    signals: SignalTable
    is_in: Bool[Tensor, "shadows records"]
    is_out: Bool[Tensor, "shadows records"]
    target: SignalTable

    def pick(self, records: Tensor) -> "SignalsWithMembership":
        """Return the columns that an index or a mask picks."""
        return SignalsWithMembership(
            self.signals.pick(records),
            self.is_in[:, records],
            self.is_out[:, records],
            self.target.pick(records),
        )


@dataclass(frozen=True)
class ShadowTable:
    """What the shadows of one target, and the target itself, say about records.

    Attributes:
        candidates: About the target's candidates.
        public: About all public records. Of the target, each is out.
        source: What the shadows were trained on.
    """

    candidates: SignalsWithMembership
    public: SignalsWithMembership
    source: Source

    @property
    def pool(self) -> SignalsWithMembership:
        """The records that shadows may be trained on.

        Of the public ones, those of classes that are: others would tell of nothing.
        """
        if self.source == "candidates":
            return self.candidates
        labels = self.public.signals.labels
        return self.public.pick(
            torch.isin(labels, labels[self.public.is_in.any(dim=0)].unique())
        )


class ShadowCache:
    """Where the answers of one target's shadows are gathered, model by model.

    They do not depend on what is known of the target itself, which is asked anew.
    """

    def __init__(
        self,
        adversary: Adversary,
        target: Target,
        pool: ShadowSplit,
        about: dict[str, Any],
    ) -> None:
        self.adversary, self.target, self.pool = adversary, target, pool
        self.about = about | {
            "source": pool.source,
            "candidates": content_hash(target.candidates),
        }
        self.tables = self._kept()
        self._parts: tuple[list[SignalTable], ...] = ([], [])

    @property
    def is_done(self) -> bool:
        """Whether nothing need be trained: it was kept, or is gathered."""
        return self.tables is not None

    def add(self, models: Sequence[Tensors]) -> None:
        """Ask some more shadows, which can be forgotten then."""
        about = self.target.candidates, self.adversary.task.public
        for records, parts in zip(about, self._parts, strict=True):
            parts.append(ask_signals(self.adversary, models, records))

    def close(self) -> None:
        """Join what was gathered, and keep it."""
        if self.tables is not None:
            return
        self.tables = [SignalTable.join(parts) for parts in self._parts]
        self._parts = ([], [])
        if self.adversary.store:
            self.adversary.store.save(folded(self.tables), **self.about)

    def table(self, target: Target) -> ShadowTable:
        """Return the shadows' answers beside those of a target of these candidates."""
        assert self.tables is not None
        target_tables = target_signals(self.adversary, target)
        nothing = torch.zeros(len(self.pool.is_in), len(target.candidates)) > 0
        is_in = self.pool.is_in if self.pool.source == "candidates" else nothing
        return ShadowTable(
            SignalsWithMembership(self.tables[0], is_in, ~is_in, target_tables[0]),
            SignalsWithMembership(
                self.tables[1],
                self.pool.public_in,
                self.pool.public_out,
                target_tables[1],
            ),
            self.pool.source,
        )

    def _kept(self) -> list[SignalTable] | None:
        store = self.adversary.store
        stored = store.load(**self.about) if store else None
        return None if stored is None else unfolded(stored)
