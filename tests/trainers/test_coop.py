import torch

from privaudit.federation.trainer import Task
from privaudit.trainers.coop import CoOp
from tests.toy_federation import Play, Shards


def test_a_client_alone_is_the_same_with_or_without_others(
    play: Play, shards: Shards
) -> None:
    """Without federation nothing of the others reaches a client."""
    together = play(CoOp(), rounds=2).kept["client-1"]["context"]
    only = {"client-1": shards["client-1"]}
    alone = play(CoOp(), rounds=2, shards=only).kept["client-1"]["context"]
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_a_buyer_gets_the_prompt_and_the_server_gets_nothing(
    play: Play, task: Task
) -> None:
    played = play(CoOp(), rounds=1)
    bought, seen = played.rebuild("released"), played.rebuild("server")
    assert torch.equal(bought.model["context"], played.kept["client-0"]["context"])
    assert seen.missing == ("the client's prompt",)
    assert torch.equal(seen.model["text"], task.zero_shot)
