import json
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from privaudit.core.errors import ConfigError
from privaudit.recording.flower import RecordingGrid
from privaudit.recording.flower.mechanisms import UpdateNote
from privaudit.runs.ledger import Ledger
from tests.privaudit.recording.flower.conftest import Recorded
from tests.privaudit.recording.flower.small_app import (
    NODES,
    WEIGHTS,
    InProcessGrid,
    arrays_of,
    asked,
    client_app,
    ended,
    fed_avg,
)
from tests.privaudit.recording.small_federation import recorded_messages

pytestmark = pytest.mark.flower
CLIENTS = [f"client-{n}" for n in range(NODES)]


def start(grid: object, strategy: FedAvg | None = None, rounds: int = 2) -> list[float]:
    random.seed(0)  # Flower's own draws of nodes
    chosen = strategy or fed_avg()
    result = chosen.start(grid=grid, initial_arrays=arrays_of(0, 0), num_rounds=rounds)
    return result.arrays["w"].numpy().tolist()


def test_every_model_that_was_sent_is_recorded_once_and_in_order(
    recording: Recorded, tmp_path: Path
) -> None:
    with recording() as grid:
        start(grid)
    sent = [
        (m.round, m.sender, m.receiver, m.kind)
        for m in recorded_messages(tmp_path / "run")
    ]
    rounds = [
        [("server", c, "broadcast") for c in CLIENTS]
        + [(c, "server", "update") for c in CLIENTS]
        for _ in range(2)
    ]
    last = [("server", c, "broadcast") for c in CLIENTS]  # of the evaluation
    last += [(c, "public", "release") for c in CLIENTS]
    assert sent == [(n, *one) for n, all_ in enumerate([*rounds, last]) for one in all_]


def test_updates_are_recorded_as_they_were_sent_with_their_weights(
    recording: Recorded, tmp_path: Path
) -> None:
    with recording() as grid:
        start(grid, rounds=1)
    updates = {
        m.sender: m.tensors for m in recorded_messages(tmp_path / "run") if m.is_update
    }
    for number, client in enumerate(CLIENTS):
        assert updates[client]["w"].tolist() == [number + 1.0, number + 1.0]
        assert float(updates[client]["num-examples"]) == WEIGHTS[number]


def test_the_federation_goes_as_without_a_recording(recording: Recorded) -> None:
    class Watching(FedAvg):
        seen: tuple[str, ...] = ()

        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            received = list(replies)
            self.seen += tuple(key for reply in received for key in reply.content)
            return super().aggregate_train(server_round, received)

    strategy = Watching(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
    with recording() as grid:
        assert start(grid, strategy) == start(InProcessGrid(client_app()))
        assert grid.contexts  # what else the grid has
    assert set(strategy.seen) == {"arrays", "metrics"}


def test_with_a_ledger_the_recording_ends_as_a_run(
    recording: Recorded, ledger: Ledger
) -> None:
    grid = recording(ledger=ledger, trainer="small")
    start(grid)
    run = ended(grid)
    assert run.is_complete
    assert run.config.trainer == "small"
    assert run.participants == [tuple(CLIENTS)] * 2


def test_clients_bear_the_ledgers_names(recording: Recorded, ledger: Ledger) -> None:
    names = ("ward-a", "ward-b", "ward-c")
    grid = recording(ledger=replace(ledger, names=names))
    start(grid, rounds=1)
    assert ended(grid).participants == [names]


def test_a_node_that_the_ledger_does_not_know_is_left_out(
    recording: Recorded, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    owner = np.where(ledger.owner == 2, -1, ledger.owner)
    grid = recording(ledger=Ledger(owner, ledger.is_member, coin=ledger.coin))
    start(grid)
    assert ended(grid).participants == [("client-0", "client-1")] * 2
    assert "calls partition 2 its own" in caplog.text
    assert "of the ledger, which has 2 clients" in caplog.text


def test_failed_and_missing_replies_are_no_updates(
    recording: Recorded, tmp_path: Path
) -> None:
    def fails(partition: int, at: int) -> bool:
        return partition == 1 and at == 2

    with recording(client_app(fails=fails)) as grid:
        start(grid)
    sent = recorded_messages(tmp_path / "run")
    updates = [(m.round, m.sender) for m in sent if m.is_update]
    assert (1, "client-1") not in updates
    assert len(updates) == 2 * NODES - 1
    down = [(m.round, m.receiver) for m in sent if m.kind == "broadcast"]
    assert (1, "client-1") in down  # it got the model all the same


def test_a_node_that_never_replied_has_no_name_and_is_left_out(
    recording: Recorded, tmp_path: Path
) -> None:
    with recording(client_app(fails=lambda partition, _: partition == 2)) as grid:
        start(grid, fed_avg(fraction_evaluate=0.0))
    parties = {m.receiver for m in recorded_messages(tmp_path / "run") if m.round == 0}
    assert parties == {"client-0", "client-1", "server"}


def test_without_an_evaluation_the_final_model_is_given(
    recording: Recorded, tmp_path: Path
) -> None:
    grid = recording()
    final = start(grid, fed_avg(fraction_evaluate=0.0))
    grid.close(arrays_of(*final))
    given = [m for m in recorded_messages(tmp_path / "run") if m.kind == "release"]
    assert [m.tensors["w"].tolist() for m in given] == [final] * NODES


def test_after_an_error_the_finished_rounds_are_whole(
    recording: Recorded, tmp_path: Path
) -> None:
    class Breaking(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            if server_round == 3:
                raise RuntimeError("the server stops")
            return super().aggregate_train(server_round, replies)

    with pytest.raises(RuntimeError, match="stops"), recording() as grid:
        start(grid, Breaking(), rounds=4)
    assert max(m.round for m in recorded_messages(tmp_path / "run")) == 1
    assert json.loads((tmp_path / "run/bundle.json").read_text())["rounds"] >= 2


def test_what_comes_late_belongs_to_the_round_in_which_it_arrives(
    recording: Recorded, tmp_path: Path
) -> None:
    with recording() as grid:
        first = list(grid.push_messages(asked(grid.nodes, 1, arrays_of(1, 1))))
        grid.pull_messages(first[:1])
        second = list(grid.push_messages(asked(grid.nodes[:1], 2, arrays_of(2, 2))))
        grid.pull_messages([*first[1:], *second])
    updates = [
        (m.round, m.sender) for m in recorded_messages(tmp_path / "run") if m.is_update
    ]
    assert updates == [(0, "client-0"), *((1, client) for client in CLIENTS)]


def test_with_a_ledger_a_client_must_name_its_partition(
    recording: Recorded, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """Else it is left out, with the reason; without any there is nothing to train for."""
    silent = ClientApp()
    named = client_app()

    @silent.train()
    def train(message: Message, context: object) -> Message:
        reply = named(message, context)
        del reply.content["privaudit"]
        return reply

    grid = recording(silent, ledger=ledger)
    with pytest.raises(ConfigError, match=f"None of {NODES} nodes names a partition"):
        echo(grid, 1, grid.nodes)
    assert grid.close() is None
    assert caplog.text.count("name_partition first among") == NODES
    assert "no run yet: " in caplog.text


def test_memory_does_not_grow_with_the_rounds(tmp_path: Path) -> None:
    grid = RecordingGrid(InProcessGrid(client_app()), tmp_path / "run")
    start(grid, rounds=6)
    assert len(grid._recorder._rounds.messages) <= NODES
    assert len(grid._read) + len(grid._unnamed) <= 1


def echo(grid: RecordingGrid, at: int, nodes: list[int]) -> None:
    """Train once at nodes, in the round that Flower counts so."""
    grid.send_and_receive(asked(nodes, at))


def noting(**note: object) -> ClientApp:
    """Return the small app, whose client-1 notes something else of itself."""

    def other(message: Message, context: Context, call_next: Any) -> Message:
        reply = call_next(message, context)
        if context.node_config["partition-id"] == 1:
            reply.content["privaudit"] = ConfigRecord(note)
        return reply

    app, named = ClientApp(), client_app()

    @app.train(mods=[other])
    def train(message: Message, context: Context) -> Message:
        return named(message, context)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(RecordDict({"config": ConfigRecord()}), reply_to=message)

    return app


@pytest.mark.parametrize("partition", ["x", 1.5, -1, True, 0])
def test_a_node_is_not_taken_for_a_client_that_it_is_not(
    recording: Recorded,
    ledger: Ledger,
    caplog: pytest.LogCaptureFixture,
    partition: object,
) -> None:
    grid = recording(noting(partition=partition), ledger=ledger)
    echo(grid, 1, grid.nodes)
    run = ended(grid)
    assert run.participants == [("client-0", "client-2")]
    assert f"calls partition {partition!r} its own" in caplog.text
    sent = recorded_messages(run.path)
    updates = {m.sender: m.tensors["w"][0] for m in sent if m.is_update}
    assert updates == {"client-0": 1.0, "client-2": 3.0}


def test_without_a_ledger_such_a_node_is_one_without_a_partition(
    recording: Recorded, tmp_path: Path
) -> None:
    with recording(noting(partition=0)) as grid:
        echo(grid, 1, grid.nodes)
    sent = recorded_messages(tmp_path / "run")
    updates = {m.sender: m.tensors["w"][0] for m in sent if m.is_update}
    assert updates == {"client-0": 1.0, "node-0": 2.0, "client-2": 3.0}


def test_a_node_keeps_its_partition_until_it_is_gone(
    recording: Recorded, ledger: Ledger
) -> None:
    grid = recording(ledger=ledger)
    first, second, third = grid.nodes
    echo(grid, 1, [first, second, third])
    grid.contexts[third].node_config["partition-id"] = 0  # changes its own
    grid.contexts[5] = grid.contexts[second]  # restarts with another id
    echo(grid, 2, [first, third, 5])
    grid.nodes.remove(second)
    echo(grid, 3, [first, 5])
    both = ("client-0", "client-1")
    assert ended(grid).participants == [(*both, "client-2"), ("client-0",), both]


def test_a_note_that_is_none_counts_as_no_protection(
    recording: Recorded, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    app = noting(partition=1, clip_norm=0.0, noise_std="big")
    grid = recording(app, ledger=ledger)
    echo(grid, 1, grid.nodes)
    assert UpdateNote() in grid.update_notes
    assert "neither clipped nor noised" in caplog.text
    assert ended(grid).participants == [tuple(CLIENTS)]


def test_replies_to_queries_need_no_name(recording: Recorded, ledger: Ledger) -> None:
    grid = recording(noting(), ledger=ledger)
    content = RecordDict({"config": ConfigRecord()})
    sent = [Message(content, node, "query") for node in grid.nodes]
    assert len(list(grid.send_and_receive(sent))) == NODES


@pytest.mark.parametrize("counts", [(20261122, 20261123), (1, 20261123), (4, 5)])
def test_rounds_count_from_0_whatever_flower_calls_them(
    recording: Recorded, tmp_path: Path, counts: tuple[int, int]
) -> None:
    with recording() as grid:
        for at in counts:
            echo(grid, at, grid.nodes)
    updates = [m.round for m in recorded_messages(tmp_path / "run") if m.is_update]
    assert updates == [0] * NODES + [1] * NODES


def test_records_that_change_between_two_sends_are_read_again(
    recording: Recorded, tmp_path: Path
) -> None:
    arrays = arrays_of(0, 0)
    with recording() as grid:
        for number, node in enumerate(grid.nodes):
            arrays["w"] = Array(np.full(2, number, dtype=np.float32))
            grid.send_and_receive(asked([node], arrays=arrays))
    sent = [m for m in recorded_messages(tmp_path / "run") if m.kind == "broadcast"]
    assert [m.tensors["w"][0] for m in sent] == [0, 1, 2]
