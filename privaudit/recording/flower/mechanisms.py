"""Flower's messages as tensors, weights, rounds and notes, and its differential privacy.

All of it protects a client by clipping its model update, and certificates take another
client's update in its place for a neighbour (replace-one): two clipped updates are up to
two clip norms apart, and Flower's means are over those who replied, so that a client
more or less would change what all others are divided by. Flower's own formulas count one
clip norm. Weights of updates are taken as public, and as the same for neighbours.
"""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.server import strategy as older
from flwr.serverapp import strategy as newer
from torch import Tensor

from privaudit.core.errors import ConfigError, shown
from privaudit.core.tensors import Tensors
from privaudit.privacy.events import MechanismEvent

NOTE = "privaudit"
"""The ConfigRecord of a reply in which mods write what the recording needs."""
SERVER_ROUND = "server-round"
SECAGG, MASKED = "secaggplus_configs", "masked_params"  # as Flower's SecAgg+ names them
MOST_MODS = 16  # of which a client's note is read


def tensors_of(records: dict[str, ArrayRecord]) -> Tensors:
    """Return the arrays of a message by name, under the record's name if it has more."""
    return {
        name if len(records) == 1 else f"{key}.{name}": _tensor(array, name)
        for key, record in records.items()
        for name, array in record.items()
    }


def _tensor(array: Any, name: str) -> Tensor:
    try:
        return torch.from_numpy(array.numpy())
    except Exception as error:  # whatever its bytes are
        raise ConfigError(
            f"The array {shown(name)} of a message cannot be recorded ({error}): arrays of "
            "numbers can."
        ) from None


def weight_of(content: RecordDict, key: str) -> float | None:
    """Return the weight that a client declares in its metrics; None if it does not."""
    records = content.metric_records.values()
    return next((float(record[key]) for record in records if key in record), None)


def round_of(message: Message) -> int | None:
    """Return Flower's round, counted from 1; None where a message does not say.

    Strategies of the message API write it into the configuration, the workflows of the
    older API into the message's group.
    """
    for record in message.content.config_records.values():
        if SERVER_ROUND in record:
            return int(record[SERVER_ROUND])
    group = message.metadata.group_id
    return int(group) if group.isdecimal() else None


def write_note(reply: Message, **fields: Any) -> None:
    """Add to what a client's mods note in its reply; a failed reply holds nothing."""
    if reply.has_content():
        noted = reply.content.config_records.get(NOTE, ConfigRecord())
        reply.content[NOTE] = ConfigRecord({**noted, **fields})


def take_note(reply: Message) -> dict[str, Any]:
    """Return what mods noted, and leave the reply as it was without them."""
    noted = dict(reply.content.config_records.get(NOTE, {}))
    if noted:
        del reply.content[NOTE]
    return noted


def masked_of(content: RecordDict) -> dict[str, np.ndarray]:
    """Return the masked vectors of an upload under SecAgg+; empty for any other."""
    vectors = content.config_records.get(SECAGG, {}).get(MASKED, [])
    return {
        str(number): np.load(io.BytesIO(one), allow_pickle=False)
        for number, one in enumerate(vectors)
    }


_AGREED = ("clipping_range", "target_range", "max_weight", "threshold")


def secure_sum_of(content: RecordDict) -> dict[str, Any]:
    """Return, as a setting, what SecAgg+ sets up; empty of any other message.

    It clips each number to its range, and rounds to so many steps, before it masks.
    """
    agreed = content.config_records.get(SECAGG, {})
    if "clipping_range" not in agreed:
        return {}
    said = {name: agreed[name] for name in _AGREED if name in agreed}
    return {"secure_sum": {"protocol": "SecAgg+", **said}}


REPLACED = 2.0  # clip norms between two clients' updates
CLIENT_SIDE, SERVER_SIDE = (
    tuple(
        getattr(api, f"DifferentialPrivacy{side}Side{how}Clipping")
        for api in (newer, older)
        for how in ("Adaptive", "Fixed")
    )
    for side in ("Client", "Server")
)
"""Flower's DP wrappers, of both of its APIs."""


@dataclass(frozen=True)
class UpdateNote:
    """What a client's mods did to one update, as they noted it.

    Attributes:
        clip_norm: To which it was clipped; infinite if it was not.
        noise_std: Standard deviation of the noise on each number; 0 is none.
        mods: What else its app applies to messages, by name.
        engine: What a privacy engine did in training, as :class:`EngineNote` in JSON.
    """

    clip_norm: float = float("inf")
    noise_std: float = 0.0
    mods: tuple[str, ...] = ()
    engine: str = ""

    @classmethod
    def of(cls, noted: Mapping[str, Any]) -> "UpdateNote":
        """Return what a client noted: its word, so anything may stand there."""
        numbers = {k: v for k, v in noted.items() if k in ("clip_norm", "noise_std")}
        mods, engine = noted.get("mods", []), noted.get("engine", "")
        if (
            noted.keys() <= {"clip_norm", "noise_std", "mods", "engine"}
            and all(type(value) in (int, float) for value in numbers.values())
            and isinstance(mods, list)
            and isinstance(engine, str)
        ):
            named = tuple(str(name)[:80] for name in mods[:MOST_MODS])
            note = cls(**numbers, mods=named, engine=engine)
            # Over a tiny clip norm finite noise is an infinite multiplier.
            if (
                note.clip_norm > 0
                and 0 <= note.noise_std < math.inf
                and note.noise_std / note.clip_norm < math.inf
            ):
                return note
        raise ConfigError(
            f"A client notes {shown(dict(noted))} of its update. A note holds "
            "clip_norm, a number above 0, and noise_std, a finite one of at least 0."
        )


def local_event(notes: Sequence[UpdateNote], rate: float) -> MechanismEvent | None:
    """Return the mechanism of clients that add noise themselves; None if none does.

    Of a round's clients the least protected counts. Each upload has its own noise only:
    a weighted mean does not add it up evenly.

    Args:
        notes: Of each update of a round.
        rate: At which clients were drawn uniformly; 1 claims no amplification.
    """
    if not any(note.noise_std for note in notes):
        return None
    weakest = min(notes, key=lambda note: note.noise_std / note.clip_norm)
    is_clipped = weakest.clip_norm < float("inf")
    clip_norm = weakest.clip_norm if is_clipped else 1.0
    return MechanismEvent(
        release="upload",
        noise_multiplier=weakest.noise_std / clip_norm,
        sensitivity=REPLACED,
        clip_norm=clip_norm,
        sampling_rate=rate,
        sampling="without-replacement",
        noise_at="client",
        parties=len(notes),
        per_record=False,
        unit="client",
        adjacency="replace-one",
        bounded=is_clipped,
    )


@dataclass(frozen=True)
class ServerNoise:
    """What one of Flower's DP strategies does in a round.

    Attributes:
        strategy: One of ``CLIENT_SIDE`` or ``SERVER_SIDE``.
        clip_norm: Before the round: an adaptive one changes before noise is drawn.
        rate: At which clients are drawn uniformly.
        masked: Whether it gets the mean of masked updates, and no update.
    """

    strategy: Any
    clip_norm: float
    rate: float
    masked: bool = False

    def events(
        self, weights: Sequence[float], notes: Sequence[UpdateNote]
    ) -> list[MechanismEvent]:
        """Return the mechanisms of the round, after it was aggregated.

        The noise on the mean has the standard deviation z C' / n: z the strategy's noise
        multiplier, n the clients it counts on, C' the clip norm as it is then. One update
        of weight w moves a weighted mean by w / sum(w) clip norms C. So in the mean's
        units noise over clip norm is z (C' / C) / (n max(w) / sum(w)), which is z where
        C' = C and the n updates weigh alike. Nothing is bounded where a weight is negative
        or not finite, or all are 0.

        Source: as in flwr 1.41, dp_fixed_clipping.py and dp_adaptive_clipping.py.
        """
        try:
            total = sum(weights)
            is_mean = all(weight >= 0 for weight in weights) and 0 < total < math.inf
            largest = max(weights) / total if is_mean else 1.0
            spread = self.strategy.clipping_norm / self.clip_norm
            clients = self.strategy.num_sampled_clients
            noise = self.strategy.noise_multiplier * spread / (clients * largest)
            bounded = is_mean and self._is_bounded(notes)
            moved = self._event(noise, REPLACED, self.clip_norm, len(weights), bounded)
            counted = getattr(self.strategy, "clipped_count_stddev", None)
            if counted is None:
                return [moved]
            return [moved, self._event(counted, 1.0, 1.0, len(weights), True)]
        except (ValueError, ArithmeticError):  # a norm that clients made no number
            return [self._event(0.0, REPLACED, 1.0, len(weights), False)]

    def _event(
        self, noise: float, sensitivity: float, clip: float, parties: int, bounded: bool
    ) -> MechanismEvent:
        return MechanismEvent(
            release="global",
            noise_multiplier=noise,
            sensitivity=sensitivity,
            clip_norm=clip,
            sampling_rate=self.rate,
            sampling="without-replacement",
            noise_at="server",
            parties=parties,
            per_record=False,
            unit="client",
            adjacency="replace-one",
            bounded=bounded,
        )

    def _is_bounded(self, notes: Sequence[UpdateNote]) -> bool:
        """Say whether every update was clipped, and a plain weighted mean was taken."""
        inner = self.strategy.strategy
        if not acts_as_fed_avg(inner, "aggregate_train", "aggregate_fit"):
            return False
        limit = self.clip_norm * (1 + 1e-6)
        by_clients = bool(notes) and all(note.clip_norm <= limit for note in notes)
        by_server = isinstance(self.strategy, SERVER_SIDE) and not self.masked
        return by_server or by_clients


def acts_as_fed_avg(strategy: Any, newer_name: str, older_name: str) -> bool:
    """Say whether a strategy has FedAvg's own method, of either API."""
    own = ((newer.FedAvg, newer_name), (older.FedAvg, older_name))
    return any(
        getattr(type(strategy), name, None) is getattr(made, name) for made, name in own
    )


def weights_of(strategy: Any, replies: Sequence[Message]) -> list[float]:
    """Return the weight of each reply that did not fail, as a strategy takes it."""
    key = getattr(strategy, "weighted_by_key", "num-examples")
    sent = [reply.content for reply in replies if not reply.has_error()]
    weights = [_readable_weight(content, key) for content in sent]
    return [1.0 if weight is None else weight for weight in weights]


def _readable_weight(content: RecordDict, key: str) -> float | None:
    """Return a weight; NaN, which bounds nothing, where it is no number."""
    try:
        return weight_of(content, key)
    except (TypeError, ValueError, OverflowError):
        return math.nan
