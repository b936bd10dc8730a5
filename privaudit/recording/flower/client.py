"""On the client's side: who it is, which records are its members, what its mods did."""

import inspect
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message
from flwr.client import mod as older
from flwr.clientapp import mod as newer
from flwr.clientapp.typing import ClientAppCallable
from jaxtyping import Int

from privaudit.core.errors import ConfigError
from privaudit.recording.flower.mechanisms import write_note
from privaudit.recording.opacus import engines_in_use
from privaudit.runs.ledger import Ledger

PARTITION = "partition-id"
LOCAL_DP = (newer.LocalDpMod, older.LocalDpMod)
CLIPPING = tuple(
    getattr(api, f"{how}clipping_mod")
    for api in (newer, older)
    for how in ("fixed", "adaptive")
)
MASKING = (older.secagg_mod, older.secaggplus_mod)
SIZES = ("arrays_size_mod", "message_size_mod", "name_partition")
KNOWN = (*SIZES, *(m.__name__ for m in (*LOCAL_DP, *CLIPPING, *MASKING)))
"""Mods whose doing is known; the first look at sizes only."""


def partition_of(context: Context) -> int:
    """Return the number of the partition that a node holds.

    A simulation sets it; `flower-supernode --node-config "partition-id=3"` does
    elsewhere.
    """
    if PARTITION not in context.node_config:
        raise ConfigError(
            f"The node's configuration has {sorted(context.node_config)}, and no "
            f"{PARTITION}. Start it with --node-config '{PARTITION}=0', 1, 2 and so on."
        )
    return int(context.node_config[PARTITION])


def members_of(context: Context, ledger: str | Path) -> Int[np.ndarray, " members"]:
    """Return the positions of the records that this client trains on, by its coins.

    Args:
        context: What Flower hands to a ClientApp.
        ledger: The file that `privaudit split` wrote.

    Raises:
        ConfigError: The node has no partition, or the ledger no such client.
        MissingFileError: There is no such file.
    """
    partition = partition_of(context)
    truth = _read(Path(ledger))
    if not 0 <= partition < len(truth.clients):
        raise ConfigError(
            f"{ledger} has {len(truth.clients)} clients, and none of number {partition}. "
            "Split again with as many clients as there are nodes."
        )
    return truth.members_of(partition)


@lru_cache(maxsize=4)
def _read(ledger: Path) -> Ledger:
    return Ledger.load(ledger)


def name_partition(
    message: Message, context: Context, call_next: ClientAppCallable
) -> Message:
    """Note whose each reply is, and what was done to it. A mod of a ClientApp, the first.

    Node ids are random: partition 3 is the ledger's client of that number, "client-3"
    without one. Of the mods behind this one it notes clipping and noise, and of Opacus
    in the client what was clipped, noised and sampled. RecordingGrid takes the note out
    of the reply before a strategy sees it.
    """
    engines = engines_in_use()
    if engines is not None:
        engines.take()  # what an earlier message left
    reply = call_next(message, context)
    noted: dict[str, Any] = {"partition": partition_of(context)}
    if message.metadata.message_type.startswith("train"):
        noted |= _done_by(_mods_behind(call_next), message)
        engine = None if engines is None else engines.take()
        if engine is not None:
            noted["engine"] = engine.to_json()
    write_note(reply, **noted)
    return reply


def _mods_behind(call_next: ClientAppCallable) -> list[Any]:
    """Return the mods that a message passes on its way to the app, outermost first.

    Flower nests them in closures, and tells nobody. What a closure of Flower's of
    another form hides is not known: it counts as a mod that nobody knows.
    """
    mods: list[Any] = []
    while inspect.isfunction(call_next):
        names, cells = call_next.__code__.co_freevars, call_next.__closure__ or ()
        held = dict(zip(names, cells, strict=True))
        if not {"_mod", "_ffn"} <= held.keys():
            break
        mods.append(held["_mod"].cell_contents)
        call_next = held["_ffn"].cell_contents
    made_by = str(getattr(call_next, "__module__", None) or type(call_next).__module__)
    is_app = getattr(call_next, "__qualname__", "").startswith("ClientApp.")
    return mods if is_app or not made_by.startswith("flwr.") else [*mods, call_next]


def _done_by(mods: Sequence[Any], message: Message) -> dict[str, Any]:
    """Return what mods do to an update, the innermost first.

    Clipping behind noise only cuts the noise: what bounds an update is the clip before
    it. A mod outside of masks clips nothing.
    """
    clip_norm, noise_std = math.inf, 0.0
    for mod in reversed(mods):
        if isinstance(mod, LOCAL_DP):
            clip_norm, noise_std = float(mod.clipping_norm), local_noise(mod)
        elif mod in CLIPPING and not noise_std:
            clip_norm = min(clip_norm, _asked_norm(message))
        elif mod in MASKING:
            break
    names = [getattr(mod, "__name__", type(mod).__name__) for mod in mods]
    noted: dict[str, Any] = {"mods": names} if names else {}
    if clip_norm < math.inf:
        noted |= {"clip_norm": clip_norm, "noise_std": float(noise_std)}
    return noted


def local_noise(mod: newer.LocalDpMod) -> float:
    """Return the standard deviation of the noise that the mod adds to each number.

    Source: as in flwr 1.41, `LocalDpMod.__call__`; the formula is that of Dwork and
    Roth, "The Algorithmic Foundations of Differential Privacy", 2014, theorem A.1,
    which holds for epsilon below 1.
    """
    return mod.sensitivity * float(np.sqrt(2 * np.log(1.25 / mod.delta))) / mod.epsilon


def _asked_norm(message: Message) -> float:
    """Return the clip norm that the server asks for; infinite without one."""
    records = message.content.config_records.values()
    asked = (one["clipping_norm"] for one in records if "clipping_norm" in one)
    return float(next(asked, math.inf))
