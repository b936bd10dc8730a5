"""What a client notices of a server that does not keep to its rule."""

import pytest
import torch

from privaudit.core.tensors import Tensors
from privaudit.trainers.promptfl import PromptFL
from privaudit_labs.active_server.broadcast_checks import MoveBound, differing, distance
from tests.toy_federation import Play


def at(*numbers: float) -> Tensors:
    return {"context": torch.tensor(numbers)}


def test_who_was_sent_something_else_stands_out() -> None:
    same = {"a": at(1.0), "b": at(1.0), "c": at(1.0)}
    assert differing(same) == ()
    assert differing({**same, "b": at(1.0000001)}) == ("b",)
    assert differing({"a": at(1.0), "b": at(2.0)}) == ("a", "b")


def test_a_broadcast_is_held_against_earlier_moves() -> None:
    assert distance(at(0.0, 0.0), at(3.0, 4.0)) == pytest.approx(5)
    earlier, bound = [at(0.0), at(1.0), at(1.5)], MoveBound(factor=2.0)
    assert bound.reach(earlier) == pytest.approx(2)
    assert not bound.alarms(earlier, at(3.4))
    assert bound.alarms(earlier, at(3.6))
    assert not bound.alarms(earlier[:2], at(100.0))  # too few to know


def test_a_client_that_was_sent_something_else_stands_out_in_a_round(
    play: Play,
) -> None:
    played = play(PromptFL(epochs=1), rounds=1)
    crafted = {"context": played.server["context"] + 1}
    sent = played.step(crafted={"client-1": crafted}).messages
    received = {m.receiver: m.tensors for m in sent if m.kind == "broadcast"}
    assert differing(received) == ("client-1",)
