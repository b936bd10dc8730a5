import torch

from privaudit.core.seeds import Seeds
from privaudit.federation.batches import epochs_of_batches, poisson_batches
from privaudit.federation.trainer import Cohort, Records, Round, Task
from privaudit.tuning.prompts.learning import LocalSgd


def at(index: int = 0) -> Round:
    return Round(index, Seeds(0), ("a", "b"))


def cohort(shards: dict[str, Records]) -> Cohort:
    return Cohort.of(list(shards), list(shards.values()))


def test_every_record_comes_once_in_each_epoch(shards: dict[str, Records]) -> None:
    some = cohort(shards)
    batches = epochs_of_batches(some, at(), epochs=3, batch_size=4)
    for row, size in enumerate(some.sizes.tolist()):
        seen = batches.chosen[:, row][batches.mask[:, row]]
        assert seen.bincount(minlength=size).tolist() == [3] * size


def test_a_client_without_records_stands_still(
    task: Task, shards: dict[str, Records]
) -> None:
    nobody = task.public.pick(torch.zeros(len(task.public), dtype=torch.bool))
    some = Cohort.of(["a", "b"], [shards["client-0"], nobody])
    start = torch.ones(2, 3, 5)
    sgd = LocalSgd(epochs=2, batch_size=4, learning_rate=0.1)
    after, loss = sgd.train(task, some, start, at())
    assert torch.equal(after[1], start[1])
    assert not torch.equal(after[0], start[0])
    assert loss[1] == 0


def test_poisson_batches_have_the_rate_and_no_padding(
    shards: dict[str, Records],
) -> None:
    some = cohort(shards)
    draws = torch.stack([poisson_batches(some, at(i), 0.3) for i in range(400)])
    assert not (draws & ~some.mask).any()
    rates = draws.float().mean(dim=0)[some.mask]
    assert abs(float(rates.mean()) - 0.3) < 0.02
