import pytest
import torch

from privaudit.core.seeds import Seeds
from privaudit.federated.federation import Federation, give_away, run_round
from privaudit.federated.threat_models import find_threat
from privaudit.federated.trainer import Cohort, Records, Round, Task
from privaudit.trainers.promptfl import PromptFL


def test_the_server_weighs_by_hand(task: Task) -> None:
    """Two clients with 1 and 3 records: (1 * 2 + 3 * 6) / 4 = 5."""
    sums = {"context": torch.tensor([[1 * 2.0 + 3 * 6.0]]), "weight": torch.tensor(4.0)}
    at = Round(0, Seeds(0), ("a", "b"))
    after, events = PromptFL().aggregate(task, {}, sums, at)
    assert after["context"].item() == 5.0
    assert events == ()


def test_a_round_in_which_nobody_has_records_changes_nothing(task: Task) -> None:
    before = {"context": torch.ones(1, 1)}
    sums = {"context": torch.zeros(1, 1), "weight": torch.tensor(0.0)}
    at = Round(0, Seeds(0), ("a",))
    after, _ = PromptFL().aggregate(task, before, sums, at)
    assert after is before


def test_one_full_batch_step_is_gradient_descent_by_hand(
    task: Task, shards: dict[str, Records]
) -> None:
    trainer = PromptFL(epochs=1, batch_size=0, learning_rate=0.3)
    shard = shards["client-0"]
    context = torch.zeros(1, 3, 5, requires_grad=True)
    logits = 10 * shard.features @ task.prompts(context)[0].T
    loss = torch.nn.functional.cross_entropy(logits, shard.labels)
    (gradient,) = torch.autograd.grad(loss, context)
    done = trainer.local_update(
        task,
        Cohort.of(["client-0"], [shard]),
        {"context": torch.zeros(1, 3, 5)},
        {},
        Round(0, Seeds(0), ("client-0",)),
    )
    torch.testing.assert_close(
        done.sent["context"] / len(shard), -0.3 * gradient, rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize(
    ("threat", "missing"), [("server", 0), ("server-aggregate", 1), ("released", 0)]
)
def test_each_view_rebuilds_what_it_can(
    threat: str, missing: int, task: Task, shards: dict[str, Records]
) -> None:
    trainer = PromptFL()
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    (record,) = run_round(trainer, task, [federation], 0)
    models, last = give_away(trainer, task, federation, 1)
    view = find_threat(threat)([*record.messages, *last])
    reconstructed = trainer.reconstruct(task, view, "client-2")
    assert len(reconstructed.missing) == missing
    (upload,) = (m for m in record.messages if m.sender == "client-2")
    own = upload.tensors["context"] / upload.tensors["weight"]
    expected = own if threat == "server" else models["client-2"]["context"]
    torch.testing.assert_close(reconstructed.model["context"], expected)
