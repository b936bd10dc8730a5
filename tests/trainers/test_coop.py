import torch

from privaudit.core.seeds import Seeds
from privaudit.federated.federation import Federation, give_away, run_round
from privaudit.federated.threat_models import find_threat
from privaudit.federated.trainer import Records, Task
from privaudit.trainers.coop import CoOp


def test_a_client_alone_is_the_same_with_or_without_others(
    task: Task, shards: dict[str, Records]
) -> None:
    """Without federation nothing of the others reaches a client."""
    together = Federation.begin(CoOp(), task, shards, Seeds(0))
    alone = Federation.begin(CoOp(), task, {"client-1": shards["client-1"]}, Seeds(0))
    for index in range(2):
        run_round(CoOp(), task, [together], index)
        run_round(CoOp(), task, [alone], index)
    torch.testing.assert_close(
        together.kept["client-1"]["context"],
        alone.kept["client-1"]["context"],
        rtol=1e-4,
        atol=1e-5,
    )


def test_a_buyer_gets_the_prompt_and_the_server_gets_nothing(
    task: Task, shards: dict[str, Records]
) -> None:
    federation = Federation.begin(CoOp(), task, shards, Seeds(0))
    run_round(CoOp(), task, [federation], 0)
    _, last = give_away(CoOp(), task, federation, 1)
    bought = CoOp().reconstruct(task, find_threat("released")(last), "client-0")
    seen = CoOp().reconstruct(task, find_threat("server")(last), "client-0")
    assert torch.equal(bought.model["context"], federation.kept["client-0"]["context"])
    assert seen.missing == ("the client's prompt",)
    assert torch.equal(seen.model["text"], task.zero_shot)
