"""What shadow models say: the signals that LiRA, RMIA and the shadow attack compare.

One :class:`ShadowSignals` for each target serves every attack with shadow models: it is
computed once, and the shadows' part of it is kept beside the run. The models are not:
they are asked and forgotten some at a time, so that memory does not grow with their
number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.shadow_models.splits import ShadowSplit, Source
from privaudit.auditing.shadow_models.training import (
    are_linked,
    draw_splits,
    train_shadows,
)
from privaudit.auditing.signals.signal_cache import content_hash
from privaudit.auditing.signals.signals import SignalTable
from privaudit.auditing.signals.target import (
    ask_signals,
    keep_signals,
    kept_signals,
    target_signals,
)
from privaudit.core.errors import AttackError


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
class ShadowSignals:
    """What the shadows of one target, and the target itself, say about records.

    Attributes:
        candidates: About the target's candidates.
        public: About all public records. Of the target, each is out.
        source: What the shadows were trained on.
    """

    candidates: SignalsWithMembership
    public: SignalsWithMembership
    source: Source

    @classmethod
    def beside(
        cls,
        adversary: Adversary,
        target: Target,
        split: ShadowSplit,
        signals: Sequence[SignalTable],
    ) -> "ShadowSignals":
        """Put shadows' signals beside those of a target, which is asked anew."""
        of_target = target_signals(adversary, target)
        is_in = torch.zeros(len(split.is_in), len(target.candidates), dtype=torch.bool)
        if split.source == "candidates":
            is_in = split.is_in
        public_in, public_out = split.public_in, split.public_out
        return cls(
            SignalsWithMembership(signals[0], is_in, ~is_in, of_target[0]),
            SignalsWithMembership(signals[1], public_in, public_out, of_target[1]),
            split.source,
        )

    @property
    def training_set(self) -> SignalsWithMembership:
        """The records that an attack model learns from: shadows may be trained on them.

        Of the public ones, those of classes that are: others would tell of nothing.
        """
        if self.source == "candidates":
            return self.candidates
        labels = self.public.signals.labels
        return self.public.pick(
            torch.isin(labels, labels[self.public.is_in.any(dim=0)].unique())
        )


def shadow_signals(
    adversary: Adversary,
    targets: Sequence[Target],
    shadows: int,
    source: Source = "public",
) -> list[ShadowSignals]:
    """Return the signals for each target, training the shadows on first use."""
    about = tuple((t.client, content_hash(t.candidates)) for t in targets)
    known = adversary.once(
        ("shadows", shadows, source, about, are_linked(targets)),
        lambda: _kept_or_trained(adversary, targets, shadows, source),
    )
    return [
        ShadowSignals.beside(adversary, target, split, signals)
        for target, (split, signals) in zip(targets, known, strict=True)
    ]


def _kept_or_trained(
    adversary: Adversary, targets: Sequence[Target], shadows: int, source: Source
) -> list[tuple[ShadowSplit, list[SignalTable]]]:
    """Return what is kept beside the run, or train shadows of those of whom nothing is.

    The signals of a target are kept as soon as all of its shadows were asked.
    """
    splits, federated = draw_splits(adversary, targets, shadows, source)
    if source == "public" and adversary.task.kind == "classification":
        _refuse_empty(targets, splits)
    names = [_name(targets, t, shadows, source, bool(federated)) for t in targets]
    known = [kept_signals(adversary, name) for name in names]
    missing = [number for number, signals in enumerate(known) if signals is None]
    asked: dict[int, list[list[SignalTable]]] = {number: [] for number in missing}
    for number, models in train_shadows(
        adversary, targets, splits, federated, only=missing
    ):
        about = targets[number].candidates, adversary.task.public
        asked[number].append([ask_signals(adversary, models, some) for some in about])
        if sum(len(one.log_likelihood) for one, _ in asked[number]) == shadows:
            signals = [
                SignalTable.join(parts)
                for parts in zip(*asked.pop(number), strict=True)
            ]
            keep_signals(adversary, signals, names[number])
            known[number] = signals
    return [
        (split, signals)
        for split, signals in zip(splits, known, strict=True)
        if signals is not None
    ]


def _name(
    targets: Sequence[Target],
    target: Target,
    shadows: int,
    source: Source,
    in_federations: bool,
) -> dict[str, Any]:
    """Return what a target's signals depend on, beside the adversary."""
    return {
        "client": target.client,
        "shadows": shadows,
        "together": [other.client for other in targets] if in_federations else [],
        "linked": are_linked(targets),
        "source": source,
        "candidates": content_hash(target.candidates),
    }


def _refuse_empty(targets: Sequence[Target], splits: Sequence[ShadowSplit]) -> None:
    """Refuse before anything is trained what no attack model can be learned from.

    A client of two records has shadows of one record on average, and e^-n of n none.
    """
    for target, split in zip(targets, splits, strict=True):
        if not split.is_in.any():
            raise AttackError(
                f"{len(split.is_in)} shadow models of {target.client} were requested, "
                f"and with its {len(target.candidates)} candidates chance gave none of "
                "them a record to train on. Use more shadow models, such as 16, or "
                "more public records of the client's classes."
            )
