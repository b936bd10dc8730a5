from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
import torch

from privaudit.core.errors import UnknownNameError, ViewError
from privaudit.core.tensors import Tensors
from privaudit.federation import threat_models
from privaudit.federation.threat_models import (
    View,
    find_threat,
    peer,
    released,
    server,
    server_aggregate,
)
from privaudit.federation.transcript import (
    SERVER,
    ChainEnd,
    Message,
    Shard,
    Transcript,
    TranscriptFolder,
)
from privaudit.privacy.secure_aggregation.ideal_sum import exact_sum, secure_sum
from privaudit.trainers.promptfl import PromptFL
from tests.toy_federation import Play


@pytest.fixture
def messages(play: Play) -> list[Message]:
    return play(PromptFL()).messages


def test_the_server_sees_no_released_model(messages: list[Message]) -> None:
    assert {m.kind for m in server(messages).messages} == {"broadcast", "update"}


def test_the_aggregate_view_is_a_function_of_the_servers(
    messages: list[Message],
) -> None:
    whole, sums = server(messages), server_aggregate(messages)
    again = server_aggregate(whole.messages)
    assert [m.describe() for m in again.messages] == [
        m.describe() for m in sums.messages
    ]


def test_a_secure_sum_holds_sums_and_no_upload(messages: list[Message]) -> None:
    view = server_aggregate(messages)
    sums = [m for m in view.messages if m.kind == "sum"]
    uploads = [m for m in messages if m.kind == "update" and m.round == 1]
    expected = secure_sum([m.tensors for m in uploads])
    torch.testing.assert_close(sums[1].tensors["context"], expected["context"])
    assert not any(view.sees_updates_of(c) for c in ("client-0", "client-1"))
    assert {m.sender for m in view.messages} == {SERVER, "clients"}


def test_a_sum_of_what_is_used_one_by_one_is_refused() -> None:
    alone = Message(0, "a", SERVER, "individual-update", {"x": torch.ones(1)})
    with pytest.raises(ViewError, match="no secure sum"):
        server_aggregate([alone])


def test_a_peer_sees_what_it_receives(messages: list[Message]) -> None:
    view = peer("client-1")(messages)
    assert {m.receiver for m in view.messages} == {"client-1"}
    assert len(view.broadcasts_to("client-1")) == 4
    with pytest.raises(ViewError, match="no update of 'client-0'"):
        view.updates_of("client-0")
    with pytest.raises(ViewError, match="nothing that was sent to 'client-0'"):
        view.broadcasts_to("client-0")


def test_a_buyer_sees_the_released_model_alone(messages: list[Message]) -> None:
    view = released(messages)
    assert {m.kind for m in view.messages} == {"release"}
    assert "context" in view.release_of("client-2").tensors
    with pytest.raises(ViewError, match="holds nothing that was sent"):
        view.broadcasts_to("client-2")


def test_threat_models_have_names() -> None:
    assert find_threat("server") is server
    assert find_threat("peer:client-1")([]).adversary == "peer"
    with pytest.raises(UnknownNameError, match="Did you mean 'server-aggregate'"):
        find_threat("server-agregate")


@pytest.fixture
def many_rounds(tmp_path: Path) -> Transcript:
    """30 rounds of 4 clients, on disk."""
    folder, end = TranscriptFolder(tmp_path), ChainEnd()
    clients = [f"client-{n}" for n in range(4)]
    for index in range(30):
        model = {"w": torch.full((8,), float(index))}
        sent = [Message(index, SERVER, c, "broadcast", model) for c in clients]
        sent += [
            Message(index, c, SERVER, "update", {"w": torch.full((8,), n + index / 8)})
            for n, c in enumerate(clients)
        ]
        end = folder.write(index, sent, end)
    return folder.read(head=end.head, length=end.length)


@pytest.fixture
def most_alive(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Say how many tensors that were read were held at once, at most."""
    alive: WeakSet[torch.Tensor] = WeakSet()
    counts = [0]
    real = Shard._read

    def watched(shard: Shard, place: Any, key: str) -> torch.Tensor:
        tensor = real(shard, place, key)
        alive.add(tensor)
        counts.append(len(alive))
        return tensor

    monkeypatch.setattr(Shard, "_read", watched)
    return lambda: max(counts)


def test_an_update_beside_a_sum_on_record_is_in_it_and_not_added() -> None:
    one = {"w": torch.ones(2)}
    seen = server(
        [
            Message(0, SERVER, "a", "broadcast", {"w": torch.zeros(2)}),
            Message(0, "a", SERVER, "update", one),
            Message(0, "clients", SERVER, "sum", {"w": torch.full((2,), 3.0)}),
        ]
    )
    assert seen.sums[0].total["w"].tolist() == [3, 3]
    assert torch.equal(seen.updates_of("a")[0].tensors["w"], one["w"])


def test_no_view_reads_what_is_not_asked_for_or_holds_more_than_a_round(
    many_rounds: Transcript, most_alive: Callable[[], int]
) -> None:
    view, aggregate = server(many_rounds), server_aggregate(many_rounds)
    assert view.sees_updates_of("client-3")
    assert view.received_in("client-2", 7).round == 7
    assert view.last_broadcast("client-1").round == 29
    assert not view.is_masked
    assert [one.parties for one in view.sums] == [4] * 30
    assert most_alive() == 0
    for whole, summed in zip(view.sums, aggregate.sums, strict=True):
        assert torch.equal(whole.total["w"], summed.total["w"])
        assert whole.mean("w")[0] == 1.5 + whole.index / 8
    for client in ("client-0", "client-1"):
        for sent in view.updates_of(client):
            received = view.received_in(client, sent.round)
            assert float(received.tensors["w"][0]) == sent.round
    many_rounds.check()
    assert 1 <= most_alive() <= 3


def test_uploads_of_one_client_can_be_exchanged(many_rounds: Transcript) -> None:
    """As if the messages had been listed anew: what shadows are looked at through."""
    other = Message(29, "client-1", SERVER, "update", {"w": torch.zeros(8)})
    view = server(many_rounds)
    shadow = view.with_uploads("client-1", [other])
    listed = [m for m in many_rounds if m.sender != "client-1"] + [other]
    same = View("server", listed)
    assert list(shadow.messages) == list(same.messages) == listed
    assert len(shadow.messages) == len(listed)
    for client in ("client-0", "client-1", "client-3"):
        assert shadow.updates_of(client) == same.updates_of(client)
        assert shadow.broadcasts_to(client) == same.broadcasts_to(client)
    assert shadow.in_round(29) == same.in_round(29)
    assert shadow.of_kind("update") == same.of_kind("update")
    assert [s.index for s in shadow.sums] == [s.index for s in same.sums]
    assert shadow.last_sum is not None
    assert same.last_sum is not None
    assert torch.equal(shadow.last_sum.total["w"], same.last_sum.total["w"])
    assert shadow.is_masked is same.is_masked is False
    assert view.updates_of("client-1") != shadow.updates_of("client-1")


def test_others_uploads_are_summed_once_and_to_the_same_bytes(
    many_rounds: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in rounds in which a shadow sends what nobody else does, or nothing."""
    view, summed = server(many_rounds), list[int]()

    def counted(messages: list[Tensors]) -> dict[str, torch.Tensor]:
        summed.append(len(messages))
        return exact_sum(messages)

    monkeypatch.setattr(threat_models, "exact_sum", counted)
    for shadow in range(3):
        uploads = [
            Message(m.round, "client-1", SERVER, "update", {
                "w": torch.randn(8) + shadow, **({"v": torch.ones(2)} if m.round % 2 else {})
            })
            for m in view.updates_of("client-1")[shadow:]
        ]  # fmt: skip
        others = [m for m in many_rounds if m.sender != "client-1"]
        found, want = (
            view.with_uploads("client-1", uploads),
            View("server", [*others, *uploads]),
        )
        for one, other in zip(found.sums, want.sums, strict=True):
            assert one.total.keys() == other.total.keys()
            assert all(torch.equal(one.total[n], other.total[n]) for n in one.total)
    assert len(summed) == len(view.updates_of("client-1"))


def test_what_is_made_of_a_whole_view_is_made_once(messages: list[Message]) -> None:
    view, calls = server(messages), list[int]()

    def made() -> int:
        calls.append(1)
        return 7

    assert [view.once("length", made) for _ in range(2)] == [7, 7]
    assert calls == [1]
