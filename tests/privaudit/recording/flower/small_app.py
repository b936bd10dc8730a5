"""A Flower app of two numbers, and a Grid that runs its clients in this process."""

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from types import SimpleNamespace

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

from privaudit.recording.flower import RecordingGrid, name_partition
from privaudit.runs.run import Run

NODES = 3
WEIGHTS = (1.0, 2.0, 3.0)


def arrays_of(*values: float) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.array(values, dtype=np.float32))})


def client_app(
    *mods: Mod, fails: Callable[[int, int], bool] = lambda *_: False
) -> ClientApp:
    """Move each number by one more than the partition's; weigh by partition."""
    app = ClientApp()

    @app.train(mods=[name_partition, *mods])
    def train(message: Message, context: Context) -> Message:
        partition = int(context.node_config["partition-id"])
        at = int(message.content["config"]["server-round"])
        if fails(partition, at):
            return Message(Error(code=0, reason="it fails"), reply_to=message)
        received = message.content["arrays"]["w"].numpy()
        metrics = {"num-examples": WEIGHTS[partition], "loss": 0.5}
        content = {
            "arrays": arrays_of(*(received + 1 + partition)),
            "metrics": MetricRecord(metrics),
        }
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate(mods=[name_partition])
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 1, "accuracy": 0.5})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


class InProcessGrid(Grid):
    """Nodes of odd ids, whose replies come in another order, after a pull or at once."""

    def __init__(self, app: ClientApp, nodes: int = NODES) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 0, 1, 0
        self.app = app
        self.nodes = [
            7919 * (nodes - n) for n in range(nodes)
        ]  # no order of partitions
        self.contexts = {
            node: Context(0, node, {"partition-id": n}, RecordDict(), {})
            for n, node in enumerate(self.nodes)
        }
        self.waiting: dict[str, Message] = {}

    def set_run(self, run: object) -> None:
        raise NotImplementedError

    @property
    def run(self) -> SimpleNamespace:
        return SimpleNamespace(run_id=0)

    def create_message(self, *args: object, **fields: object) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return self.nodes

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        return list(self.pull_messages(self.push_messages(messages)))

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            name = f"message-{len(self.waiting)}"
            message.metadata.__dict__["_message_id"] = name
            self.waiting[name] = deepcopy(message)  # nodes share nothing
            ids.append(name)
        return ids

    def pull_messages(self, message_ids: Sequence[str]) -> list[Message]:
        asked = [self.waiting[name] for name in message_ids]
        return [
            self.app(message, self.contexts[message.metadata.dst_node_id])
            for message in asked
        ]


def ended(grid: RecordingGrid) -> Run:
    """Close a grid whose recording is a run."""
    run = grid.close()
    assert run is not None
    return run


def asked(
    nodes: Iterable[int], at: int = 1, arrays: ArrayRecord | None = None
) -> list[Message]:
    """Ask nodes to train, in the round that Flower counts so."""
    config = ConfigRecord({"server-round": at})
    content = {"arrays": arrays or arrays_of(0, 0), "config": config}
    return [Message(RecordDict(content), node, "train") for node in nodes]


def fed_avg(**changed: object) -> FedAvg:
    least = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}
    return FedAvg(**{**least, **changed})
