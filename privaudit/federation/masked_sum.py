"""What a federation asks of a protocol for masked sums, and what it must give.

Protocols are plugins of the group ``privaudit.secure_sums``; ``--secure-aggregation masked``
asks for the one of that name, of privaudit-labs. What a sum reveals is the same for all:
threat models, rules of lint and certificates read messages, and need none.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from privaudit.core.errors import PluginError
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.registry import Registry
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Tensors
from privaudit.datasets.records import ClientId
from privaudit.federation.transcript import MASKED_KINDS, SERVER, Message
from privaudit.privacy.secure_aggregation.ideal_sum import secure_sum

Graph = Literal["all", "active", "passive"]
COARSEST = 2.0**-10
"""Largest step of a sum's grid, where noise lies, too; a larger one would drown updates."""


@dataclass(frozen=True)
class MaskedSum:
    """What came of one round's sum.

    Attributes:
        total: Of what the survivors sent; None if the round was aborted.
        survivors: Who is in it, in the order of clients.
        messages: The protocol's, and then the sum that the server learned. Each survivor's
            upload is a "masked" one of integers, to the server, of all names and shapes;
            a "survivors" one has their places among the round's clients as "clients".
        report: For metrics.jsonl: what came of it ("outcome": "summed", or "aborted, "
            and why), who was lost when, what was wrong.
    """

    total: Tensors | None
    survivors: tuple[ClientId, ...]
    messages: tuple[Message, ...]
    report: Mapping[str, Any]


@runtime_checkable
class Masks(Protocol):
    """How uploads are masked; see ``privaudit_labs.secure_aggregation``."""

    def step(self, parties: int) -> float:
        """Return the step of the grid on which numbers of so many parties lie.

        A power of two up to 2^-10. A masked number is an integer; the upload's number is
        so many steps, to the nearest.
        """

    def sum_of(
        self,
        uploads: Mapping[ClientId, Tensors],
        seeds: Seeds,
        index: int,
        streams: Sequence[str],
    ) -> MaskedSum:
        """Sum a round's uploads so that the server learns the sum only.

        Args:
            uploads: A tensor that a client does not send counts as zeros.
            seeds: Of who is lost in the round.
            index: Number of the round, from 0.
            streams: The names of the clients' random streams.

        Raises:
            ConfigError: There are fewer than two clients, or one tensor has two shapes.
            TrainingError: A number is too large for the protocol.
        """


@runtime_checkable
class MakesMasks(Protocol):
    """A protocol: it makes the masks of a run."""

    def __call__(self, key: bytes, dropout: float, graph: Graph) -> Masks:
        """Return how the uploads of a run are masked.

        Args:
            key: 32 bytes that all of the run's masks follow from: who has them removes
                all. Equal keys give equal messages, so that a run can be resumed.
            dropout: Chance that a participant is lost in a round, in [0, 1).
            graph: Who masks with whom: "all" pairs do, or neighbours, as many as an
                "active" or a "passive" server asks for.
        """


SECURE_SUMS: Registry[MakesMasks] = Registry(
    "secure-sum protocol",
    "privaudit.privacy.secure_aggregation",
    "privaudit.secure_sums",
)


def sum_under_masks(
    masks: Masks,
    uploads: Mapping[ClientId, Tensors],
    seeds: Seeds,
    index: int,
    streams: Sequence[str],
) -> MaskedSum:
    """Return a round's sum, if it is one, and no number of an upload stands in the clear.

    Errors of a package are noticed so. Its malice is not: it is code that runs here.

    Raises:
        PluginError: It is not; nothing of the round is kept.
    """
    found = masks.sum_of(uploads, seeds, index, streams)
    if fault := next(_faults(found, masks, uploads, index), ""):
        raise PluginError(
            f"In round {index} {type(masks).__name__}.sum_of gave {fault}. What was "
            "recorded before this round is kept. Install another version of its package, "
            "or train anew without --secure-aggregation."
        )
    return found


def _faults(
    found: Any, masks: Masks, uploads: Mapping[ClientId, Tensors], index: int
) -> Iterator[str]:
    """Yield what is wrong with a round's sum."""
    if not isinstance(found, MaskedSum) or not _is_whole(found):
        yield f"a {type(found).__name__}, and not a MaskedSum as its docstring says"
        return
    there = found.survivors
    if there != tuple(client for client in uploads if client in there):
        yield f"{there} as survivors of {tuple(uploads)}"
        return
    if any(message.round != index for message in found.messages):
        yield "a message of another round"
    if not any(uploads.values()):  # nothing is sent, so nothing needs a mask
        return
    step = masks.step(len(uploads))
    if not 0 < step <= COARSEST or math.frexp(step)[0] != 0.5:
        yield f"sums in steps of {step}, and a power of two up to 2^-10 is asked for"
        return
    nothing = {
        n: torch.zeros_like(t) for one in uploads.values() for n, t in one.items()
    }
    yield from _in_the_clear(found, uploads, nothing, step)
    learned = [m.tensors for m in found.messages if m.kind == "sum"]
    if len(learned) != bool(found.total) or (found.total and len(there) < 2):
        yield f"{len(learned)} sums on record, of {len(there)} clients"
    if found.total is None:
        return
    places = [place for place, client in enumerate(uploads) if client in there]
    lists = [m.tensors["clients"] for m in found.messages if m.kind == "survivors"]
    if not lists or any(one.tolist() != places for one in lists):
        yield f"no message of survivors whose list is {places}"
    expected = secure_sum([nothing, *(uploads[client] for client in there)])
    for total in (*learned, found.total):
        for name in total.keys() | expected.keys():
            wanted = expected.get(name)
            if not _is_near(total.get(name), wanted, len(there) * step / 2):
                yield f"a sum of {name!r} that is not what {len(there)} clients sent"
    hidden = {m.sender for m in found.messages if m.kind == "masked"}
    for client in there:
        if client not in hidden:
            yield f"no masked upload of {client}"


def _is_whole(found: MaskedSum) -> bool:
    """Say whether the parts of a sum are what the rest reads."""
    return (
        isinstance(found.survivors, tuple)
        and isinstance(found.messages, tuple)
        and all(isinstance(message, Message) for message in found.messages)
        and all("clients" in m.tensors for m in found.messages if m.kind == "survivors")
        and isinstance(found.report, Mapping)
        and isinstance(found.report.get("outcome"), str)
    )


def _in_the_clear(
    found: MaskedSum, uploads: Mapping[ClientId, Tensors], nothing: Tensors, step: float
) -> Iterator[str]:
    """Yield what of a protocol's messages no mask hides; the sum is none of them.

    By chance a number of 64 bits is within a step of its upload's once in 2^62.
    """
    for message in found.messages:
        if message.kind == "sum":
            continue
        if message.kind not in MASKED_KINDS:
            yield f"a message of kind {message.kind!r}, and masked sums have none"
        if any(
            t.is_floating_point() or t.is_complex() for t in message.tensors.values()
        ):
            yield f"numbers of {message.sender} as no integers, which masks hide"
        elif message.kind != "masked":
            if any(t.dtype == torch.int64 for t in message.tensors.values()):
                yield f"integers of 64 bits in {message.kind!r} of {message.sender}"
        elif message.sender not in uploads or message.receiver != SERVER:
            yield f"a masked upload from {message.sender} to {message.receiver}"
        elif {n: t.shape for n, t in message.tensors.items()} != {
            n: t.shape for n, t in nothing.items()
        }:
            yield f"a masked upload of {message.sender} of other names or shapes"
        else:
            sent = {**nothing, **uploads[message.sender]}
            for name, tensor in message.tensors.items():
                apart = (tensor.double() * step - sent[name].double()).abs()
                if bool((apart <= step).any()):
                    yield f"{name!r} of {message.sender} without a mask"


def _is_near(found: Tensor | None, wanted: Tensor | None, off: float) -> bool:
    """Say whether numbers are others by so much at most, and by how they are stored."""
    if found is None or wanted is None or found.shape != wanted.shape:
        return False
    exact = wanted.double()
    last = torch.finfo(wanted.dtype).eps if wanted.is_floating_point() else 0.0
    return bool(((found.double() - exact).abs() <= off + last * exact.abs()).all())
