"""The masks: key streams as integers, which cancel in a sum or can be taken off."""

from typing import Any

import numpy as np
from jaxtyping import UInt

from privaudit.privacy.secure_aggregation.packets import Party
from privaudit.privacy.secure_aggregation.primitives import KEY, derive, key_stream


def self_mask(seed: bytes, like: UInt[np.ndarray, " n"]) -> UInt[np.ndarray, " n"]:
    """Return the mask that a client alone puts on its update."""
    return _stream(derive(seed, "own mask", KEY), like)


def pair_mask(
    shared: bytes, like: UInt[np.ndarray, " n"], label: str, one: Party, other: Party
) -> UInt[np.ndarray, " n"]:
    """Return the mask that two clients put on, one of them with a minus.

    The pair is part of it. One X25519 key can be written in two ways, so a client may
    advertise another one's; what it agrees on is then the same, and would cancel.

    Args:
        shared: What they agreed on.
        like: Gives number and type.
        label: Of the round.
        one: Either of them.
        other: The other.
    """
    pair = f"{min(one, other)}|{max(one, other)}"
    return _stream(derive(shared, f"pair mask|{label}|{pair}", KEY), like)


def pair_sign(client: Party, peer: Party) -> Any:
    """Return how ``client`` puts on the mask that it has with ``peer``."""
    return np.add if client < peer else np.subtract


def _stream(key: bytes, like: UInt[np.ndarray, " n"]) -> UInt[np.ndarray, " n"]:
    # Of little-endian order, so that all machines agree.
    order = like.dtype.newbyteorder("<")
    return np.frombuffer(key_stream(key, like.nbytes), dtype=order).astype(
        like.dtype, copy=False
    )
