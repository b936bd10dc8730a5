"""The masks: key streams as integers, which cancel in a sum or can be taken off."""

from typing import Any

import numpy as np

from privaudit.core.streams import Stream
from privaudit.privacy.secure_aggregation.packets import Codes, Party
from privaudit.privacy.secure_aggregation.primitives import KEY, derive


def self_mask(seed: bytes, like: Codes) -> Codes:
    """Return the mask that a client alone puts on its update."""
    return _stream(derive(seed, "own mask", KEY), like)


def pair_mask(
    shared: bytes, like: Codes, label: str, one: Party, other: Party
) -> Codes:
    """Return the mask that two clients put on, one of them with a minus.

    The pair is part of it. One X25519 key can be written in two ways, so a client may
    advertise another one's; what it agrees on is then the same, and would cancel.
    ``like`` gives number and type, and the label is the round's.
    """
    pair = f"{min(one, other)}|{max(one, other)}"
    return _stream(derive(shared, f"pair mask|{label}|{pair}", KEY), like)


def pair_sign(client: Party, peer: Party) -> Any:
    """Return how ``client`` puts on the mask that it has with ``peer``."""
    return np.add if client < peer else np.subtract


def _stream(key: bytes, like: Codes) -> Codes:
    # Of little-endian order, so that all machines agree. A key is used for one stream.
    drawn = np.frombuffer(Stream(key).take(like.nbytes), like.dtype.newbyteorder("<"))
    return drawn.astype(like.dtype, copy=False)
