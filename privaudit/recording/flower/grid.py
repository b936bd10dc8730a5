"""A Grid that records what passes through it: one line in a ServerApp."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from privaudit.core.errors import ConfigError
from privaudit.core.tensors import Tensors
from privaudit.privacy.events import MechanismEvent
from privaudit.recording.flower.client import KNOWN
from privaudit.recording.flower.mechanisms import (
    UpdateNote,
    local_event,
    masked_of,
    round_of,
    secure_sum_of,
    take_note,
    tensors_of,
    weight_of,
)
from privaudit.recording.flower.strategy import WatchedStrategy, strategy_at_work
from privaudit.recording.opacus import EngineNote
from privaudit.recording.recorder import Recorder
from privaudit.runs.ledger import Ledger
from privaudit.runs.run import Run

_log = logging.getLogger(__name__)


@dataclass
class Seen:
    """What a round's messages show.

    Attributes:
        asked: Nodes that were asked to train.
        masked: Whether any update came masked.
        rate: At which clients were drawn uniformly; 1 claims no amplification.
    """

    asked: set[int] = field(default_factory=set)
    masked: bool = False
    rate: float = 1.0


class RecordingGrid(Grid):
    """Flower's Grid, and a record of every model that is sent through it.

    Use it where the Grid was used, with any strategy or workflow::

        with RecordingGrid(grid, "run", ledger="ledger.npz") as grid:
            strategy.start(grid=grid, initial_arrays=arrays, num_rounds=10)

    What a client sends that cannot be recorded is left out with a warning, and where the
    recorder itself fails it records nothing more: the federation goes on as without it.
    It is stopped in its first round alone, where of nobody anything could be recorded.

    The strategy that sends, and what mods note, are looked at: clipping, noise and
    secure aggregation of Flower's are recorded as they are applied, and what else is
    seen stands in the settings. Train and evaluate messages are broadcasts, what clients
    answer to training is an update, as it was sent. Flower's
    round r is round r - 1 here, and what is sent for evaluation behind it belongs to
    round r, as the model of the next training does. Replies that fail or never come are
    no updates. What comes late, as with asynchronous strategies, belongs to the round in
    which it arrives. Metrics are not recorded, but for the weight.

    All other attributes are the Grid's own.

    Args:
        grid: What Flower hands to a ServerApp.
        folder: Of the run: new, or empty.
        weight: The metric by which the strategy weighs updates; None if it does not.
        ledger: Who owns and who trains on which record, or its file. Then every client
            must name its partition: :func:`~privaudit.recording.flower.name_partition`.
        declared: What else :class:`~privaudit.recording.recorder.Recorder` takes.

    Raises:
        ConfigError: The folder holds something, an argument is out of range, or no
            client of the first round names a partition of the ledger.
    """

    def __init__(
        self,
        grid: Grid,
        folder: str | Path,
        *,
        weight: str | None = "num-examples",
        ledger: Ledger | str | Path | None = None,
        **declared: Any,
    ) -> None:
        self._grid, self._weight = grid, weight
        self._recorder = Recorder(
            folder, weight=weight, ledger=ledger, library="flwr", **declared
        )
        self._ledger = self._recorder.ledger
        self._names: dict[int, str] = {}  # by node; empty for whom nobody may be
        self._holders: dict[str, int] = {}  # the node that named a partition, by client
        self._others: dict[int, str] = {}  # names of nodes that hold none
        self._round, self._trained = 0, -1
        self._shift: int | None = None  # Flower's count less this one's
        self._unnamed = list[tuple[int, Tensors]]()  # broadcasts, until a node answers
        self._notes: dict[int, UpdateNote] = {}
        self._events: list[MechanismEvent] = []
        self._read: dict[int, tuple[dict[str, ArrayRecord], Tensors]] = {}
        self._watched: WatchedStrategy | None = None
        self.seen = Seen()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def set_run(self, run: Any) -> None:
        """Set the Flower run, as the Grid does."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """The Flower run."""
        return self._grid.run

    def create_message(self, *args: Any, **fields: Any) -> Message:
        """Return a new message, as the Grid does."""
        return self._grid.create_message(*args, **fields)

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes' ids, as the Grid does."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        """Return the nodes, as the Grid does."""
        return self._grid.get_nodes()

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | int | None = None
    ) -> Iterable[Message]:
        """Send messages and return their replies, as the Grid does; record both."""
        sent = list(messages)
        self.guarded(self._record_sent, sent)
        replies = list(self._grid.send_and_receive(sent, timeout=timeout))
        self.guarded(self._record_replies, replies)
        self._stop_in_vain()
        return replies

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages, as the Grid does, and record them."""
        sent = list(messages)
        self.guarded(self._record_sent, sent)
        return self._grid.push_messages(sent)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are there, as the Grid does, and record them."""
        replies = list(self._grid.pull_messages(message_ids))
        self.guarded(self._record_replies, replies)
        self._stop_in_vain()
        return replies

    def mechanism(self, event: MechanismEvent) -> None:
        """Record a privacy mechanism as it was applied in the current round."""
        self._events.append(event)

    def watch(self, strategy: Any) -> None:
        """Record what a strategy clips and noises, where no start() of its own sends.

        Of a strategy that is at work, or in a workflow, this is not needed.
        """
        self._leave()
        self._watched = WatchedStrategy(strategy, self)
        self._recorder.declare_once(**self._watched.settings)

    def _leave(self) -> None:
        if self._watched is not None:
            self._watched.leave()
            self._watched = None

    def _stop_in_vain(self) -> None:
        """Stop in the first round where the ledger's clients could not be recorded."""
        if self._ledger is None or self._round or self._trained < 0:
            return
        if len(self._names) >= len(self.seen.asked) and not any(self._names.values()):
            raise ConfigError(
                f"None of {len(self._names)} nodes names a partition of the ledger, so "
                "that nothing of this training could be audited. Put name_partition "
                "first among the ClientApp's mods: ClientApp(mods=[name_partition, ...]) "
                "or @app.train(mods=[name_partition, ...]), and so for evaluate. Or "
                "record without a ledger."
            )

    def guarded(self, what: Callable[..., None], *arguments: Any) -> None:
        """Record something, which raises nothing into the federation."""
        if not self._recorder.omitted.has_stopped:
            with self._recorder.omitted.stop_on_failure():
                what(*arguments)

    @property
    def update_notes(self) -> Sequence[UpdateNote]:
        """What the mods of those noted who sent an update in this round."""
        return list(self._notes.values())

    def summed(
        self, nodes: Iterable[int], tensors: Mapping[str, Any], weight: float
    ) -> None:
        """Record the sum that the server learned of masked updates in this round.

        It is of the updates of ``nodes`` times their weights, and of these weights.
        """
        names = sorted(self._names.get(node, "") for node in nodes)
        if "" in names:
            _log.warning("A sum is not recorded: nobody knows who all are in it.")
            return
        held = {**tensors, self._weight: weight} if self._weight else tensors
        self._trained = self._round
        self.guarded(self._recorder.summed, self._round, names, held)

    def close(self, arrays: ArrayRecord | None = None) -> Run | None:
        """Write what is left, and end the run if there is a ledger.

        Args:
            arrays: The final model, where no evaluation sent it to the clients: it is
                recorded as given to all of them.
        """
        self._leave()
        self.guarded(self._end_round)
        if arrays is not None:
            names = sorted(set(self._names.values()) - {""})
            final, after = self._recorder.broadcast, self._trained + 1
            self.guarded(lambda: final(after, names, tensors_of({"": arrays})))
        return self._recorder.end()

    def __enter__(self) -> "RecordingGrid":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close; after an error only the rounds count that were finished by then."""
        if kind is None:
            self.close()
        else:
            self._leave()
            self._recorder.stop()

    def _record_sent(self, messages: Sequence[Message]) -> None:
        """Record what the server sends, as far as it is known to whom."""
        if self._watched is None and (strategy := strategy_at_work()) is not None:
            self.watch(strategy)
        for message in messages:
            kind = message.metadata.message_type.split(".")[0]
            if kind not in ("train", "evaluate"):
                self._recorder.omitted.warn(
                    "", kind,
                    "Messages of the type %s are not recorded: train and evaluate are.",
                    message.metadata.message_type,
                )  # fmt: skip
                continue
            self._begin(message, kind)
            node, sent = message.metadata.dst_node_id, self._tensors(message)
            if kind == "train":
                self.seen.asked.add(node)
                self._recorder.declare_once(**secure_sum_of(message.content))
            if sent:
                self._unnamed.append((node, sent))
        if self._watched is not None and self._watched.draws_uniformly:
            nodes = len(list(self._grid.get_node_ids())) or 1
            self.seen.rate = min(1.0, len(self.seen.asked) / nodes)
        self._read = {}  # what is sent next may be the same records, changed
        self._record_broadcasts()

    def _record_broadcasts(self) -> None:
        """Record what named nodes were sent, in the order of their names."""
        known = [
            (self._names[n], sent) for n, sent in self._unnamed if self._names.get(n)
        ]
        self._unnamed = [one for one in self._unnamed if not self._names.get(one[0])]
        shared: dict[int, tuple[Tensors, list[str]]] = {}
        for name, sent in sorted(known, key=lambda one: one[0]):
            shared.setdefault(id(sent), (sent, []))[1].append(name)
        for sent, names in shared.values():
            self._recorder.broadcast(self._round, names, sent)

    def _begin(self, message: Message, kind: str) -> None:
        """Begin another round, if the message belongs to a later one.

        Flower's count says so while it begins at 1 and goes up by 1. Where it begins
        elsewhere or jumps, as groups named by a date do, the next round is meant.
        """
        if kind == "train":
            index = self._round + (self._trained == self._round)
        else:
            index = self._trained + 1
        counted = round_of(message)
        if counted is not None:
            counted -= kind == "train"
            ahead = counted - (self._shift or 0) - self._round
            if ahead > (self._shift is not None):
                self._shift = counted - index
            self._shift = self._shift or 0
            index = counted - self._shift
        if index > self._round:
            self._end_round()
            self._round = index

    def _end_round(self) -> None:
        """Record the round's mechanisms, and forget what belongs to it alone."""
        noted = local_event(self.update_notes, self.seen.rate)
        if noted is not None and self._trained == self._round:
            self._events.append(noted)
        for event in self._events:
            self._recorder.mechanism(self._round, event)
        self._say_what_is_missing()
        self._unnamed, self._notes, self._events = [], {}, []
        self.seen = Seen()

    def _say_what_is_missing(self) -> None:
        """Say, once, what of a round's privacy nothing here could see."""
        clips = any(note.clip_norm < float("inf") for note in self._notes.values())
        awaited = self._watched is not None and self._watched.awaits_clipping
        if self._notes and awaited and not clips:
            self._recorder.omitted.warn(
                "", "no clipping",
                "The strategy asks clients to clip, and no mod behind name_partition "
                "does: nothing bounds what its noise hides. Put name_partition first "
                "among the mods, and fixedclipping_mod or adaptiveclipping_mod behind.",
            )  # fmt: skip
        names = {name for note in self._notes.values() for name in note.mods}
        unknown = sorted(names - set(KNOWN))
        if names:
            self._recorder.declare_once(mods=sorted(names))
        if unknown:
            self._recorder.omitted.warn(
                "", "unknown mods",
                "What the mods %s do to an update is not known. If that is clipping or "
                "noise, record an event of it by RecordingGrid.mechanism.",
                ", ".join(unknown),
            )  # fmt: skip

    def _tensors(self, message: Message) -> Tensors:
        """Return a message's arrays; records that many messages share are read once."""
        records = dict(message.content.array_records)
        if len(records) != 1:
            return tensors_of(records)
        key = id(next(iter(records.values())))
        if key not in self._read:
            self._read[key] = (records, tensors_of(records))
        return self._read[key][1]

    def _record_replies(self, replies: Sequence[Message]) -> None:
        """Record what clients sent, in the order of their names."""
        named = []
        for reply in replies:
            if reply.has_error():
                continue
            with self._left_out(reply):
                noted = take_note(reply)
                if reply.metadata.message_type.startswith(("train", "evaluate")):
                    named.append((self._name(reply, noted), noted, reply))
        self._record_broadcasts()
        for name, noted, reply in sorted(named, key=lambda one: one[0]):
            if reply.metadata.message_type.startswith("train"):
                with self._left_out(reply):
                    self._record_update(name, noted, reply)

    @contextmanager
    def _left_out(self, reply: Message) -> Iterator[None]:
        """Leave out a reply that cannot be recorded, as neither clipped nor noised."""
        try:
            yield
        except Exception as error:  # whatever clients send
            node = reply.metadata.src_node_id
            who = self._names.get(node) or f"node {node}"
            self._recorder.omitted.leave_out(who, self._round, "it is odd", error)
            if reply.metadata.message_type.startswith("train"):
                self._notes[node], self._trained = UpdateNote(), self._round

    def _record_update(self, name: str, noted: dict[str, Any], reply: Message) -> None:
        """Record what a client sent; what nobody may have sent counts as noted only."""
        node = reply.metadata.src_node_id
        masked = masked_of(reply.content)
        if masked and name:
            self._recorder.masked(self._round, name, masked)
            self.seen.masked = True
        sent = tensors_of(dict(reply.content.array_records))
        if not (sent or masked):
            return
        weight = weight_of(reply.content, self._weight) if self._weight else None
        self._trained, note = self._round, UpdateNote()
        was_taken = bool(masked) or not name
        if was_taken or self._recorder.update(self._round, name, sent, weight):
            note = self._note_of(name, noted)
        self._notes[node] = note

    def _note_of(self, name: str, noted: dict[str, Any]) -> UpdateNote:
        """Return what a client noted of its update, and record what its engine did."""
        try:
            note = UpdateNote.of(noted)
            if note.engine and name:
                engine = EngineNote.from_json(note.engine)
                self._recorder.engine(self._round, name, engine)
            return note
        except ConfigError as error:
            self._recorder.omitted.warn(
                name, "note", "%s The update counts as neither clipped nor noised.",
                error,
            )  # fmt: skip
            return UpdateNote()

    def _name(self, reply: Message, noted: dict[str, Any]) -> str:
        """Return whose a reply is, and take that from what its mods noted.

        A partition is the node's that named it first, as long as that is there, and a
        node has one. Nothing else that names it is recorded as that client's: it is a
        node without a partition, and left out, under no name, where there is a ledger.
        """
        node, name = reply.metadata.src_node_id, ""
        if "partition" in noted:
            partition = noted.pop("partition")
            if type(partition) is int and 0 <= partition < 2**63:
                name = self._client(partition)
            if not (name and self._takes(node, name)):
                self._recorder.omitted.warn(
                    f"node {node}", "partition",
                    "Node %d calls partition %.40r its own, and is not recorded as "
                    "that client: another node holds it, the node named another one "
                    "before, or it is no partition%s.",
                    *(node, partition, self._known()),
                )  # fmt: skip
                name = ""
        elif node in self._names:
            return self._names[node]
        elif self._ledger is not None:
            self._recorder.omitted.warn(
                f"node {node}", "no partition",
                "Node %d replied without its partition, and is left out: the ledger "
                "knows clients by it. Put name_partition first among the ClientApp's "
                "mods.",
                node,
            )  # fmt: skip
        if not name and self._ledger is None:
            name = self._others.setdefault(node, f"node-{len(self._others)}")
        self._names[node] = name
        return name

    def _takes(self, node: int, name: str) -> bool:
        """Say whether a node may be a client, and let it be if so."""
        holder = self._holders.get(name)
        if holder == node:
            return True
        is_held = holder is not None and holder in set(self._grid.get_node_ids())
        if is_held or node in self._holders.values():
            return False
        if holder is not None:
            del self._names[holder]
        self._holders[name] = node
        return True

    def _client(self, partition: int) -> str:
        """Return the name of a partition's client; empty if the ledger has none."""
        if self._ledger is None:
            return f"client-{partition}"
        names = self._ledger.clients
        return names[partition] if partition < len(names) else ""

    def _known(self) -> str:
        """Return what the ledger knows, for a warning."""
        if self._ledger is None:
            return ""
        count = len(self._ledger.clients)
        return f" of the ledger, which has {count} clients: one for each node is right"
