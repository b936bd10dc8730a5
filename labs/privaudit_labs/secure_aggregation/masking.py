"""Named clients' tensors, summed by the protocol, and the messages it leaves behind."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

import numpy as np
import pydantic.dataclasses
from jaxtyping import Shaped, UInt
from pydantic import Field

from privaudit.core.errors import ConfigError
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Tensors
from privaudit.datasets.records import ClientId
from privaudit.federation.masked_sum import Graph, MaskedSum
from privaudit.federation.transcript import SERVER, Message
from privaudit_labs.secure_aggregation import packets
from privaudit_labs.secure_aggregation.packets import (
    STAGES,
    Assumptions,
    Carrier,
    Fault,
    Identity,
    MaskingGraph,
    Packet,
    sparsest,
)
from privaudit_labs.secure_aggregation.primitives import (
    KEY,
    SEED,
    FixedPoint,
    KeyedSecrets,
    RunKey,
    SecretSource,
    SystemSecrets,
)
from privaudit_labs.secure_aggregation.protocol import (
    ProtocolOutcome,
    aggregate,
    threshold_of,
)

BEFORE_ROUNDS = -1
RARELY = 1e-3  # how often more clients are lost than a graph is made for
Shapes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


@pydantic.dataclasses.dataclass(frozen=True)
class Masking:
    """How uploads are masked.

    Attributes:
        dropout: Chance that a participant is lost in a round, in [0, 1); where is
            drawn evenly from the five points at which one can be.
        bits: Of each coordinate's code, as in :class:`FixedPoint`.
        largest: Magnitude of a coordinate that a code holds, as there.
        graph: Who masks with whom: "all" pairs do; or random neighbours, as many as an
            "active" or a "passive" server asks for (:class:`Assumptions`), and all
            pairs where that is no fewer.
        secrets: From a run's own key, so that the run can be repeated and resumed; or
            from the operating system; or from a seed, for one sum: two of one seed
            share their masks.
    """

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    bits: Literal[32, 64] = 64
    largest: Annotated[float, Field(ge=2.0**-60, le=2.0**60)] = 2.0**20
    graph: Graph = "all"
    secrets: RunKey | Literal["seed", "system"] = "seed"

    def code(self, parties: int) -> FixedPoint:
        """Return how the numbers of so many parties are coded."""
        return FixedPoint(parties, self.bits, self.largest)

    def step(self, parties: int) -> float:
        """Return the step of the fixed-point grid of so many parties."""
        return self.code(parties).step

    def sum_of(
        self,
        uploads: Mapping[ClientId, Tensors],
        seeds: Seeds,
        index: int,
        streams: Sequence[str],
    ) -> MaskedSum:
        """Sum a round's uploads: :func:`masked_sum`."""
        return masked_sum(uploads, self, seeds, index, streams=streams)

    def lost(self, streams: Sequence[str], seeds: Seeds, index: int) -> dict[int, int]:
        """Draw who is lost in a round, by position, and from which stage on."""
        lost = {}
        for position, stream in enumerate(streams):
            drawn = seeds.stream("dropout", round=index, client=stream)
            if drawn.coin(self.dropout):
                lost[position] = int(drawn.below(len(STAGES), 1)[0])
        return lost

    def entropy(self, seeds: Seeds, index: int, stream: str) -> SecretSource:
        """Return where a client's secrets come from in a round."""
        if self.secrets == "system":
            return SystemSecrets()
        if isinstance(self.secrets, RunKey):
            return KeyedSecrets(self.secrets, index, stream)
        return KeyedSecrets.of_seed(seeds, index, stream)

    def drawn_graph(
        self, seeds: Seeds, index: int, parties: int
    ) -> MaskingGraph | None:
        """Draw who masks with whom in a round; None if all pairs do.

        A tenth may be lost, or what one round in a thousand exceeds by chance.
        """
        if self.graph == "all":
            return None
        from scipy.stats import binom  # slow to import

        lost = max(0.1, float(binom.isf(RARELY, parties, self.dropout)) / parties)
        if lost >= 1:
            return None
        density = sparsest(parties, Assumptions(self.graph, lost=lost))
        if density is None:
            return None
        seed = self.entropy(seeds, index, "run")("masking graph", KEY)
        return MaskingGraph.drawn(parties, density, seed)

    def identity(self, seeds: Seeds, stream: str) -> Identity:
        """Return a client's long-term key: one a run, from before its first round.

        With ``secrets="system"`` it is one a sum.
        """
        entropy = self.entropy(seeds, BEFORE_ROUNDS, stream)
        return Identity(entropy("identity key", KEY))

    def label(self, seeds: Seeds, index: int) -> str:
        """Return what a round's signatures name it by: no other run has its like."""
        entropy = self.entropy(seeds, BEFORE_ROUNDS, "run")
        return f"run {entropy('name of the run', SEED).hex()}, round {index}"


def masked(key: bytes, dropout: float, graph: Graph) -> Masking:
    """Return how a run's uploads are masked; ``--secure-aggregation masked``."""
    return Masking(dropout, graph=graph, secrets=RunKey(key))


def masked_sum(
    uploads: Mapping[ClientId, Tensors],
    masking: Masking,
    seeds: Seeds,
    index: int,
    *,
    streams: Sequence[str] = (),
    carry: Carrier = lambda packet: packet,
) -> MaskedSum:
    """Sum the clients' tensors so that the server learns the sum only.

    A tensor that a client does not send counts as zeros, and is masked like others:
    the server does not learn who sent it.

    ``streams`` name the clients' random streams, by default by their own names; where
    federations share seeds they must differ, as masks serve once. ``carry`` is what
    happens to the protocol's packets on their way.

    Raises:
        ConfigError: There are fewer than two clients, or one tensor has two shapes.
        TrainingError: A number is too large for the fixed-point code.
    """
    clients = tuple(uploads)
    shapes = _shapes(list(uploads.values()))
    if not shapes:  # nothing is sent, so nothing needs a mask
        return MaskedSum({}, clients, (), {"outcome": "nothing to sum"})
    threshold_of(len(clients))
    code = masking.code(len(clients))
    codes = [
        code.encode(_flat(sent, shapes), f"Round {index}, {client}: its upload")
        for client, sent in uploads.items()
    ]
    streams = streams or clients
    outcome = aggregate(
        codes,
        [masking.identity(seeds, stream) for stream in streams],
        [masking.entropy(seeds, index, stream) for stream in streams],
        code,
        label=masking.label(seeds, index),
        graph=(graph := masking.drawn_graph(seeds, index, len(clients))),
        lost=(lost := masking.lost(streams, seeds, index)),
        carry=carry,
    )
    messages = [_message(p, clients, shapes, index) for p in outcome.packets]
    total = None
    if outcome.total is not None:
        total = _split(torch.from_numpy(code.decode(outcome.total)), shapes, cast=True)
        messages.append(Message(index, "clients", SERVER, "sum", total))
    survivors = tuple(clients[position] for position in outcome.survivors)
    report = _report(outcome, clients, lost, graph)
    return MaskedSum(total, survivors, tuple(messages), report)


def _shapes(uploads: Sequence[Tensors]) -> Shapes:
    """Return what the tensors look like that anybody sends."""
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    for number, sent in enumerate(uploads):
        for name, tensor in sent.items():
            shape, _ = shapes.setdefault(name, (tuple(tensor.shape), tensor.dtype))
            if tensor.shape != shape:
                raise ConfigError(
                    f"A secure sum needs equal shapes. The first {name!r} is {shape}, "
                    f"number {number} {tuple(tensor.shape)}. Pad them, or send weights "
                    "apart."
                )
    return shapes


def _flat(sent: Tensors, shapes: Shapes) -> Shaped[np.ndarray, " n"]:
    parts = [
        sent[name].detach().cpu().double().flatten()
        if name in sent
        else torch.zeros(math.prod(shape), dtype=torch.float64)
        for name, (shape, _) in shapes.items()
    ]
    return torch.cat(parts).numpy()


def _split(vector: Tensor, shapes: Shapes, *, cast: bool) -> dict[str, Tensor]:
    sizes = [math.prod(shape) for shape, _ in shapes.values()]
    parts = zip(shapes.items(), vector.split(sizes), strict=True)
    return {
        name: part.reshape(shape).to(dtype if cast else part.dtype).clone()
        for (name, (shape, dtype)), part in parts
    }


def _message(
    packet: Packet, clients: Sequence[ClientId], shapes: Shapes, index: int
) -> Message:
    """Return a packet as the transcript records it."""
    names = {packets.SERVER: SERVER, **dict(enumerate(clients))}
    tensors = {name: _tensor(array) for name, array in packet.arrays.items()}
    masked = tensors.get("masked")
    size = sum(math.prod(shape) for shape, _ in shapes.values())
    if packet.kind == "masked" and masked is not None and masked.shape == (size,):
        tensors = _split(masked, shapes, cast=False)
    return Message(
        index, names[packet.sender], names[packet.receiver], packet.kind, tensors
    )


def _tensor(array: UInt[np.ndarray, "..."] | Shaped[np.ndarray, "..."]) -> Tensor:
    """Return an array as a tensor; unsigned numbers by the signed of equal bits.

    Of a type that no honest party sends and torch has not, its bytes.
    """
    signed = {np.dtype(np.uint64): np.int64, np.dtype(np.uint32): np.int32}
    kind = signed.get(array.dtype)
    try:
        return torch.from_numpy((array.view(kind) if kind else array).copy())
    except (TypeError, ValueError):
        return torch.from_numpy(np.frombuffer(array.tobytes(), np.uint8).copy())


def _report(
    outcome: ProtocolOutcome,
    clients: Sequence[ClientId],
    lost: Mapping[int, int],
    graph: MaskingGraph | None,
) -> dict[str, Any]:
    aborted = outcome.why_aborted
    density = asdict(graph.density) if graph is not None else {}
    return {
        "outcome": f"aborted, {aborted}" if aborted else "summed",
        "asked": len(clients),
        "in_the_sum": len(outcome.survivors),
        **(density or {"threshold": threshold_of(len(clients))}),
        "lost_before": {clients[c]: STAGES[stage] for c, stage in lost.items()},
        "faults": [_sentence(fault, clients) for fault in outcome.faults],
    }


def _sentence(fault: Fault, clients: Sequence[ClientId]) -> str:
    names: dict[int | None, str] = {packets.SERVER: SERVER, None: "somebody"}
    names |= dict(enumerate(clients))
    about = f" (of {names[fault.about]})" if fault.about is not None else ""
    said = f", says {names[fault.accuser]}" if fault.accuser is not None else ""
    return f"{names[fault.client]}: {fault.what}{about}{said}"
