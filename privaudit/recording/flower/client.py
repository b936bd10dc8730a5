"""On the client's side: who it is, which records are its members, what its mods did."""

from functools import lru_cache
from pathlib import Path

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.clientapp.typing import ClientAppCallable, Mod
from jaxtyping import Int

from privaudit.core.errors import ConfigError
from privaudit.recording.flower.mechanisms import write_note
from privaudit.runs.ledger import Ledger

PARTITION = "partition-id"


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
    """Write into each reply whose it is: node ids are random. A mod of a ClientApp.

    Partition 3 is the ledger's client of that number, "client-3" without one.
    RecordingGrid takes the note out of the reply before a strategy sees it.
    """
    reply = call_next(message, context)
    write_note(reply, partition=partition_of(context))
    return reply


def noted(mod: Mod) -> Mod:
    """Return one of Flower's DP mods, with a note of what it did in every reply.

    That is a LocalDpMod, fixedclipping_mod or adaptiveclipping_mod. Without the note, the
    recording does not know that anything was clipped or noised.
    """
    is_local = isinstance(mod, LocalDpMod)
    if not is_local and mod not in (fixedclipping_mod, adaptiveclipping_mod):
        raise ConfigError(
            f"What {mod!r} does to an update is not known. LocalDpMod, "
            "fixedclipping_mod and adaptiveclipping_mod are; of another mechanism, "
            "record an event by RecordingGrid.mechanism."
        )

    def run(
        message: Message, context: Context, call_next: ClientAppCallable
    ) -> Message:
        clip_norm = mod.clipping_norm if is_local else _asked_norm(message)
        reply = mod(message, context, call_next)
        std = local_noise(mod) if is_local else 0.0
        write_note(reply, clip_norm=float(clip_norm), noise_std=float(std))
        return reply

    return run


def local_noise(mod: LocalDpMod) -> float:
    """Return the standard deviation of the noise that the mod adds to each number.

    Source: as in flwr 1.41, `LocalDpMod.__call__`; the formula is that of Dwork and
    Roth, "The Algorithmic Foundations of Differential Privacy", 2014, theorem A.1,
    which holds for epsilon below 1.
    """
    return mod.sensitivity * float(np.sqrt(2 * np.log(1.25 / mod.delta))) / mod.epsilon


def _asked_norm(message: Message) -> float:
    """Return the clip norm that the server asks for; infinite without one."""
    for record in message.content.config_records.values():
        if "clipping_norm" in record:
            return float(record["clipping_norm"])
    return float("inf")
