"""Replies that Flower itself survives: none ends a recorded training either."""

import io
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
)
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping

from privaudit import lint
from privaudit.recording.bundle import INCOMPLETE
from privaudit.recording.flower.mechanisms import ServerNoise, UpdateNote, weights_of
from privaudit.runs.ledger import Ledger
from tests.privaudit.recording.flower.conftest import Recorded
from tests.privaudit.recording.flower.small_app import (
    InProcessGrid,
    arrays_of,
    asked,
    client_app,
    ended,
    fed_avg,
)
from tests.privaudit.recording.flower.test_grid import CLIENTS, echo, start

pytestmark = pytest.mark.flower
Spoil = Callable[[Message, Message], object]  # of a reply; what was asked


def raw(data: bytes, dtype: str = "float32", shape: tuple[int, ...] = (2,)) -> Array:
    return Array(dtype=dtype, shape=shape, stype="numpy.ndarray", data=data)


def saved(array: Any) -> bytes:
    held = io.BytesIO()
    np.save(held, array, allow_pickle=True)
    return held.getvalue()


def with_array(array: Array, name: str = "w") -> Spoil:
    return lambda reply, _: reply.content.update({"arrays": ArrayRecord({name: array})})


def of(*values: Any, dtype: Any = np.float32) -> Spoil:
    return with_array(Array(np.array(values, dtype=dtype)))


def weighing(value: Any) -> Spoil:
    record = MetricRecord({} if value is None else {"num-examples": value})
    return lambda reply, _: reply.content.update({"metrics": record})


def noting(value: Any) -> Spoil:
    return lambda reply, _: reply.content.update({"privaudit": value})


def another_round(reply: Message, asked: Message) -> None:
    config = ConfigRecord({"server-round": 10**9})
    reply.content.update({"config": config})


def not_asked(reply: Message, asked: Message) -> None:
    reply.metadata.__dict__["_src_node_id"] = 999


LIES = saved(np.zeros(2)).replace(b"(2,), }      ", b"(99999999,), }")
LEFT_OUT: dict[str, Spoil] = {
    "no records": lambda reply, _: [
        reply.content.pop(n) for n in ("arrays", "metrics")
    ],
    "no arrays": lambda reply, _: reply.content.pop("arrays"),
    "an empty record of arrays": lambda reply, _: reply.content.update(
        {"arrays": ArrayRecord()}
    ),
    "bytes that are no array": with_array(raw(b"\x93NUMPY and then nothing")),
    "no bytes": with_array(raw(b"")),
    "a header that lies": with_array(raw(LIES)),
    "cut": with_array(raw(saved(np.zeros(99))[:-50])),
    "pickled objects": with_array(raw(saved(np.array([None, {}], dtype=object)))),
    "texts": with_array(raw(saved(np.array(["a", "b"])))),
    "dates": with_array(raw(saved(np.array(["2026"], dtype="datetime64[Y]")))),
    "big-endian": with_array(raw(saved(np.zeros(2, dtype=">f4")))),
    "extended precision": with_array(raw(saved(np.zeros(2, dtype=np.longdouble)))),
    "complex": with_array(raw(saved(np.zeros(2, dtype=np.complex128)))),
    "another format": lambda reply, _: reply.content.update(
        {"arrays": ArrayRecord({"w": Array("float32", (2,), "torch", b"abc")})}
    ),
    "no weight": weighing(None),
    "a weight of NaN": weighing(math.nan),
    "an infinite weight": weighing(math.inf),
    "a negative weight": weighing(-1),
    "a list as weight": weighing([1, 2]),
    "a huge weight": weighing(1e308),
    "a partition in words": noting(ConfigRecord({"partition": "client-1"})),
    "a partition beyond the ledger": noting(ConfigRecord({"partition": 7})),
    "another's partition": noting(ConfigRecord({"partition": 0})),
    "no partition": lambda reply, _: reply.content.pop("privaudit"),
    "a note of arrays": noting(arrays_of(1, 1)),
}
RECORDED: dict[str, Spoil] = {
    "NaN": of(math.nan, math.nan),
    "infinite": of(math.inf, -math.inf),
    "other shapes": of([[1.0], [2.0]]),
    "empty arrays": of(),
    "a number without a shape": with_array(Array(np.array(1.0, dtype=np.float32))),
    "other types": of(1, 2, dtype=np.int8),
    "an odd name": with_array(Array(np.zeros(2)), "../\x1b[31m\n\u202e"),
    "a long name": with_array(Array(np.zeros(2)), "x" * 10_000),
    "two records": lambda reply, _: reply.content.update({"more": arrays_of(1, 2, 3)}),
    "weighs nothing": weighing(0),
    "another round": another_round,
    "an unasked node": not_asked,
    "a note of noise in words": noting(
        ConfigRecord({"partition": 1, "noise_std": "much"})
    ),
}


def spoilt(spoil: Spoil, partition: int = 1) -> ClientApp:
    """Return the small app, of which one client replies oddly."""
    app, named = ClientApp(), client_app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        reply = named(message, context)
        if context.node_config["partition-id"] == partition:
            spoil(reply, message)
        return reply

    return app


RESHAPED = ("other shapes", "empty arrays", "a number without a shape")
PARTIAL = ("an odd name", "a long name", "two records", "an unasked node")


@pytest.mark.parametrize("odd", [*LEFT_OUT, *RECORDED])
def test_an_odd_reply_ends_no_training(
    recording: Recorded, ledger: Ledger, caplog: pytest.LogCaptureFixture, odd: str
) -> None:
    """Left out or recorded, said once, and the run is one that lint reads."""
    caplog.set_level(logging.WARNING, "privaudit.recording")
    grid = recording(spoilt({**LEFT_OUT, **RECORDED}[odd]), ledger=ledger)
    for at in (1, 2):
        echo(grid, at, grid.nodes)
    run = ended(grid)
    others = (CLIENTS[0], CLIENTS[2])
    wanted = tuple(CLIENTS) if odd in RECORDED else others
    assert [tuple(sorted(one)) for one in run.participants] == [wanted] * 2
    said = [r for r in caplog.records if r.name.startswith("privaudit")]
    told = ("a note of noise in words", *RESHAPED, *PARTIAL, *LEFT_OUT)
    silent = odd not in told
    silent |= odd in ("no records", "no arrays", "an empty record of arrays")
    assert len(said) == (not silent)
    assert not [one for one in lint(run) if one.severity == "error"]


def test_every_reply_may_be_odd(recording: Recorded, ledger: Ledger) -> None:
    """Nothing is recorded then, and no run made; the federation goes on."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(Error(code=0, reason="\x1b[31m"), reply_to=message)

    grid = recording(app, ledger=ledger)
    echo(grid, 1, grid.nodes)
    assert grid.close() is None


def test_an_odd_update_counts_as_neither_clipped_nor_noised(
    recording: Recorded, ledger: Ledger
) -> None:
    """It is in the mean, whatever is recorded of it."""
    grid = recording(spoilt(LEFT_OUT["big-endian"]), ledger=ledger)
    echo(grid, 1, grid.nodes)
    assert grid.update_notes.count(UpdateNote()) == 3
    assert len(grid.update_notes) == 3


@pytest.mark.parametrize("odd", ["a list as weight", "a weight of NaN"])
def test_an_odd_weight_bounds_nothing_and_raises_nothing(
    recording: Recorded, odd: str
) -> None:
    grid = recording(spoilt(LEFT_OUT[odd]))
    strategy = DifferentialPrivacyClientSideFixedClipping(fed_avg(), 1.0, 1.0, 3)
    replies = list(grid.send_and_receive(asked(grid.nodes)))
    weights = weights_of(fed_avg(), replies)
    assert sum(map(math.isnan, weights)) == 1
    noise = ServerNoise(strategy, 1.0, 1.0)
    events = noise.events(weights, grid.update_notes)
    assert [event.bounded for event in events] == [False]


@pytest.mark.parametrize("at", ["sending", "receiving"])
def test_a_recorder_that_fails_stops_and_the_federation_goes_on(
    recording: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Whatever fails: the disk, or the recorder's own code."""
    grid = recording()
    name = "_record_sent" if at == "sending" else "_record_replies"
    whole = getattr(grid, name)

    def fail(messages: Any) -> None:
        if grid._round:
            raise OSError(28, "No space left on device")
        whole(messages)

    monkeypatch.setattr(grid, name, fail)
    with grid:
        assert start(grid, rounds=3) == start(InProcessGrid(client_app()), rounds=3)
    assert (tmp_path / "run" / INCOMPLETE).exists()
