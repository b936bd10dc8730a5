import torch

from privaudit.federation.trainer import Cohort, Task
from privaudit.trainers.promptfl import PromptFL
from tests.toy_federation import AT, Shards, context_gradient


def test_one_full_batch_step_is_gradient_descent_by_hand(
    task: Task, shards: Shards
) -> None:
    trainer = PromptFL(epochs=1, batch_size=0, learning_rate=0.3)
    shard, context = shards["client-0"], torch.zeros(3, 5)
    cohort = Cohort.of(["client-0"], [shard])
    done = trainer.local_update(task, cohort, {"context": context[None]}, {}, AT)
    want = -0.3 * context_gradient(task, context, shard)[None]
    found = done.sent["context"] / len(shard)
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-6)
