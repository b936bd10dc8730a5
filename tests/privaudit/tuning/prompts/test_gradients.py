import pytest
import torch

from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked
from privaudit.federation.batches import (
    Batch,
    gradients_of,
    pick_batch,
    poisson_batches,
)
from privaudit.federation.trainer import Cohort, Records, Round, Task
from privaudit.privacy.clipping import clip_records
from privaudit.tuning.prompts import gradients as grouped_forward
from privaudit.tuning.prompts.gradients import (
    ContextGradients,
    RecordGradients,
    fixed_batch,
    poisson_batch,
)
from privaudit.tuning.prompts.learning import context_losses, prompt_losses

AT = Round(0, Seeds(4), ("client-0", "client-1", "client-2"))


@pytest.fixture
def contexts(task: Task, cohort: Cohort) -> torch.Tensor:
    shape = (len(cohort), task.prompts.context_tokens, task.prompts.width)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)) / 10


def test_each_record_gets_the_gradient_of_its_own_loss(
    task: Task, cohort: Cohort, contexts: torch.Tensor
) -> None:
    """Oracle: one plain backward pass for each record alone."""
    batch = fixed_batch(cohort, AT, 5)
    gradients = ContextGradients.forward(task, contexts, batch)
    found = torch.cat([g for g, _ in gradients.by_record()], dim=1)
    for row in range(len(cohort)):
        for place in range(5):
            alone = Batch(
                batch.features[row, place, None, None],
                batch.labels[row, place, None, None],
                torch.ones(1, 1, dtype=torch.bool),
            )
            want, _ = plain_gradient(task, contexts[row, None], alone)
            torch.testing.assert_close(found[row, place], want[0])


def plain_gradient(
    task: Task, contexts: torch.Tensor, batch: Batch
) -> tuple[torch.Tensor, torch.Tensor]:
    gradients, losses = gradients_of(
        lambda leaves, b: prompt_losses(task, leaves["context"], b),
        {"context": contexts},
        batch,
    )
    return gradients["context"], losses


@pytest.mark.parametrize("at_once", [1, 6, 1000])
def test_records_gradients_sum_to_that_of_the_batch(
    at_once: int,
    task: Task,
    cohort: Cohort,
    contexts: torch.Tensor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever number of records is taken in one backward pass."""
    monkeypatch.setattr("privaudit.tuning.prompts.gradients.PRODUCTS_AT_ONCE", at_once)
    batch = poisson_batch(cohort, AT, 0.5)
    gradients = ContextGradients.forward(task, contexts, batch)
    parts = [
        clip_records({"g": g}, 1e9, m)["g"].sum(dim=1) for g, m in gradients.by_record()
    ]
    torch.testing.assert_close(sum(parts), gradients.of_batch())


def test_padding_contributes_exactly_nothing(
    task: Task, cohort: Cohort, contexts: torch.Tensor
) -> None:
    batch = poisson_batch(cohort, AT, 0.4)
    assert not batch.mask.all()
    gradients = ContextGradients.forward(task, contexts, batch)
    found = torch.cat([g for g, _ in gradients.by_record()], dim=1)
    assert (found[~batch.mask] == 0).all()
    assert (found[batch.mask].flatten(1).norm(dim=1) > 0).all()


def test_the_loss_is_the_mean_over_the_batch_and_zero_for_an_empty_one(
    task: Task, cohort: Cohort, contexts: torch.Tensor
) -> None:
    empty = poisson_batch(cohort, AT, 1e-9)
    assert (ContextGradients.forward(task, contexts, empty).losses == 0).all()
    whole = poisson_batch(cohort, AT, 1.0)
    positions = torch.arange(cohort.mask.shape[1]).expand(len(cohort), -1)
    batch = pick_batch(cohort, positions, cohort.mask)
    _, want = plain_gradient(task, contexts, batch)
    got = ContextGradients.forward(task, contexts, whole).losses
    torch.testing.assert_close(got, want)


def test_a_poisson_sample_takes_each_record_at_its_rate_and_cuts_none() -> None:
    shard = Records(torch.eye(400), torch.arange(400))
    cohort = Cohort.of(["client-0"], [shard])
    counts = torch.zeros(400)
    for index in range(50):
        batch = poisson_batch(cohort, Round(index, Seeds(1), ()), 0.3)
        taken = batch.labels[batch.mask]
        assert len(taken.unique()) == len(taken)
        counts[taken] += 1
    # 20,000 coins: 5 standard errors are 0.016.
    assert abs(float(counts.mean()) / 50 - 0.3) < 0.017
    assert 50 * 0.3 * 0.7 * 0.6 < float(counts.var()) < 50 * 0.3 * 0.7 * 1.4


def test_a_fixed_batch_has_its_size_or_the_whole_shard(cohort: Cohort) -> None:
    batch = fixed_batch(cohort, AT, 10)
    assert batch.sizes.tolist() == [10, 9, 10]


def test_the_coins_follow_from_the_secret_key_and_not_from_the_seed(
    cohort: Cohort,
) -> None:
    def coins(seed: int, key: bytes) -> torch.Tensor:
        at = Round(0, Seeds(seed), AT.participants, secrets=Seeds.of_key(key))
        return poisson_batches(cohort, at, 0.5)

    assert torch.equal(coins(1, b"a" * 32), coins(2, b"a" * 32))
    assert not torch.equal(coins(1, b"a" * 32), coins(1, b"b" * 32))


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
