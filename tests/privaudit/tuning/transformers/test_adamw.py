import pytest
import torch
from torch import Tensor

from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked
from privaudit.federated.batches import Batch, epochs_of_batches
from privaudit.federated.trainer import Cohort, Records, Round
from privaudit.tuning.transformers.adamw import AdamW


def shard(count: int, seed: int) -> Records:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 3, generator=generator)
    return Records(features, torch.zeros(count, dtype=torch.long))


def squares(parameters: Stacked, batch: Batch) -> Tensor:
    gaps = torch.einsum("kbd,kd->kb", batch.features, parameters["w"]) - 1
    return (gaps**2 * batch.mask).sum(dim=1) / batch.mask.sum(dim=1).clamp(min=1)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_it_is_torchs_optimiser_for_each_client(weight_decay: float) -> None:
    """Also for a client that has fewer batches than the other."""
    shards = [shard(9, 0), shard(4, 1)]
    cohort = Cohort.of(["client-0", "client-1"], shards)
    at = Round(0, Seeds(0), cohort.clients)
    batches = epochs_of_batches(cohort, at, epochs=2, batch_size=2)
    start = torch.randn(2, 3, generator=torch.Generator().manual_seed(4))
    ours, _ = AdamW(0.05, weight_decay).fit(cohort, {"w": start}, batches, squares)
    for row, records in enumerate(shards):
        weight = start[row].clone().requires_grad_()
        optimiser = torch.optim.AdamW([weight], lr=0.05, weight_decay=weight_decay)
        for chosen, mask in zip(
            batches.chosen[:, row], batches.mask[:, row], strict=True
        ):
            if mask.any():
                optimiser.zero_grad()
                gaps = records.features[chosen[mask]] @ weight - 1
                (gaps**2).mean().backward()
                optimiser.step()
        torch.testing.assert_close(ours["w"][row], weight.detach())


def test_who_has_no_record_stays_where_it_was() -> None:
    cohort = Cohort.of(["client-0", "client-1"], [shard(3, 0), shard(0, 1)])
    at = Round(0, Seeds(0), cohort.clients)
    batches = epochs_of_batches(cohort, at, epochs=1, batch_size=2)
    ours, loss = AdamW(0.05).fit(cohort, {"w": torch.ones(2, 3)}, batches, squares)
    assert ours["w"][1].tolist() == [1, 1, 1]
    assert loss[1] == 0
