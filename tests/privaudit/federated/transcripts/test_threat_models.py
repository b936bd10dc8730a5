import pytest
import torch

from privaudit.core.errors import UnknownNameError, ViewError
from privaudit.federated.transcripts.threat_models import (
    find_threat,
    peer,
    released,
    server,
    server_aggregate,
)
from privaudit.federated.transcripts.transcript import SERVER, Message
from privaudit.privacy.secure_aggregation.ideal_sum import secure_sum
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
