"""What Flower's messages hold, as tensors, weights, rounds and notes."""

import io
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from torch import Tensor

from privaudit.core.errors import ConfigError, shown
from privaudit.core.tensors import Tensors

NOTE = "privaudit"
"""The ConfigRecord of a reply in which mods write what the recording needs."""
SERVER_ROUND = "server-round"
SECAGG, MASKED = "secaggplus_configs", "masked_params"  # as Flower's SecAgg+ names them


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
    for record in content.metric_records.values():
        if key in record:
            return float(record[key])
    return None


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


def write_note(reply: Message, **fields: int | float) -> None:
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
