import pytest
import torch

from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked
from privaudit.federated.batches import Batch
from privaudit.federated.trainer import Cohort, Records, Round, Task
from privaudit.tuning.prompts import grouped_forward
from privaudit.tuning.prompts.gradients import ContextGradients, fixed_batch
from privaudit.tuning.prompts.private_prompts import context_losses
from privaudit.tuning.prompts.record_gradients import RecordGradients


@pytest.fixture
def batch(cohort: Cohort, shards: dict[str, Records]) -> Batch:
    at = Round(0, Seeds(4), tuple(shards))
    return fixed_batch(cohort, at, 12)  # client-1 has nine: three are padding


@pytest.fixture
def parts() -> dict[str, torch.Tensor]:
    """A context as a sum of two, whose gradients are equal."""
    generator = torch.Generator().manual_seed(0)
    both = torch.randn(2, 3, 3, 5, generator=generator) / 10
    return {"global": both[0], "local": both[1]}


def forward(
    task: Task, parts: dict[str, torch.Tensor], batch: Batch
) -> RecordGradients:
    def record_losses(parameters: Stacked, batch: Batch) -> torch.Tensor:
        return context_losses(task, parameters["global"] + parameters["local"], batch)

    return RecordGradients.forward(parts, record_losses, batch)


@pytest.mark.parametrize("at_once", [1, 6, 1000])
def test_each_record_gets_the_gradient_known_in_closed_form(
    at_once: int,
    task: Task,
    parts: dict[str, torch.Tensor],
    batch: Batch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grouped_forward, "PRODUCTS_AT_ONCE", at_once)
    known = ContextGradients.forward(task, parts["global"] + parts["local"], batch)
    want = torch.cat([g for g, _ in known.by_record()], dim=1)
    found = list(forward(task, parts, batch).by_record())
    for name in parts:
        got = torch.cat([gradients[name] for gradients, _ in found], dim=1)
        torch.testing.assert_close(got, want)
    assert torch.equal(torch.cat([mask for _, mask in found], dim=1), batch.mask)


def test_sums_and_means_are_those_of_the_records(
    task: Task, parts: dict[str, torch.Tensor], batch: Batch
) -> None:
    gradients = forward(task, parts, batch)
    each = torch.cat([g["local"] for g, _ in gradients.by_record()], dim=1)
    total = each.sum(dim=1)
    torch.testing.assert_close(gradients.of_sum()["local"], total)
    sizes = batch.sizes[:, None, None]
    torch.testing.assert_close(gradients.of_mean()["local"], total / sizes)


def test_losses_are_means_over_records_and_zero_without_any(
    task: Task, parts: dict[str, torch.Tensor], batch: Batch
) -> None:
    mask = batch.mask.clone()
    mask[1] = False
    nobody = Batch(batch.features, batch.labels, mask)
    gradients = forward(task, parts, nobody)
    losses = context_losses(task, parts["global"] + parts["local"], batch)
    torch.testing.assert_close(gradients.mean_losses[0], losses[0].mean().detach())
    assert gradients.mean_losses[1] == 0
    assert not gradients.of_mean()["global"][1].any()
