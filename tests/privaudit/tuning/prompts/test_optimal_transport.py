from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from privaudit.core.errors import ConfigError
from privaudit.datasets.records import PictureTokens
from privaudit.federation.batches import Batch
from privaudit.federation.trainer import Records, Task
from privaudit.tuning.prompts import optimal_transport
from privaudit.tuning.prompts import optimal_transport as module
from privaudit.tuning.prompts.optimal_transport import (
    Transport,
    TransportPlan,
    query_transported,
    transport_plan,
    transported_logits,
    transported_losses,
    transported_record_losses,
)
from tests.golden import golden, golden_tensors

CASES = range(16)


def alike(*shape: int, seed: int = 0, largest: float = 1.0) -> Tensor:
    """Return similarities, uniform in [-largest, largest]."""
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(*shape, generator=generator, dtype=torch.float64)
    return largest * (2 * uniform - 1)


@pytest.fixture(params=["scalings", "logarithms"])
def form(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a test in both forms of the recurrence."""
    if request.param == "logarithms":
        monkeypatch.setattr(optimal_transport, "FLOAT64_ENTROPY", 1e9)
    return request.param


def solve_case(case: int, marginals: str, **options: Any) -> TransportPlan:
    """Solve one golden case, whose problems are one batch."""
    known = golden_tensors("cot", f"p{case}_")
    similarity = (1 - known["cost"]).permute(2, 1, 0)[:, None, :, None, :]
    return transport_plan(
        similarity,
        Transport(float(known["eps"]), float(known["top_percent"]), **options),
        rows=known[f"a{marginals}"].T[None, :, None, :],
        columns=known[f"b{marginals}"].T[:, None, None, :],
    )


def as_published(plan: TransportPlan) -> np.ndarray:
    return plan.weights[:, 0, :, 0].permute(2, 1, 0).numpy()


@pytest.mark.parametrize("case", CASES)
def test_plans_and_iterations_are_the_published_codes(case: int, form: str) -> None:
    """Computed by the published code in float64; tolerance as in its README."""
    known = golden("cot", f"p{case}_")
    for marginals in ("", "2"):
        if f"plan{marginals}" not in known:
            continue  # random marginals exist at a mass of 0.8 only
        plan = solve_case(case, marginals, stop="batch")
        want = known[f"plan{marginals}"]
        np.testing.assert_allclose(as_published(plan), want, atol=1e-9)
        assert plan.iterations == known[f"n_iter{marginals}"]


@pytest.mark.parametrize("case", CASES)
def test_balanced_plans_are_the_published_codes(case: int, form: str) -> None:
    known = golden("cot", f"p{case}_")
    similarity = torch.from_numpy(1 - known["cost"])
    plan = transport_plan(
        similarity.permute(2, 1, 0)[:, None, :, None, :],
        Transport(float(known["eps"]), balanced=True, stop="batch"),
    )
    want = known["plan_sinkhorn"]
    np.testing.assert_allclose(as_published(plan), want, atol=1e-9)


@pytest.mark.parametrize("case", [0, 4, 8, 12, 13, 14])
def test_many_iterations_converge(case: int) -> None:
    plan = solve_case(case, "", iterations=3000, stop="never")
    want = golden("cot", f"p{case}_")["plan_converged"]
    np.testing.assert_allclose(as_published(plan), want, atol=1e-9)


@settings(deadline=None, max_examples=25)
@given(
    prompts=st.integers(1, 4),
    parts=st.integers(1, 9),
    mass=st.floats(0.05, 0.9),
    seed=st.integers(0, 99),
)
def test_prompts_get_their_mass_and_parts_give_at_most_theirs(
    prompts: int, parts: int, mass: float, seed: int
) -> None:
    similarity = alike(prompts, 2, parts, 3, 2, seed=seed)
    plan = transport_plan(
        similarity, Transport(0.5, mass, iterations=400, stop="never")
    ).weights
    torch.testing.assert_close(
        plan.sum(2), torch.full((prompts, 2, 3, 2), mass / prompts).double()
    )
    assert (plan.sum(0) <= 1 / parts * (1 + 1e-3)).all()
    assert (plan >= 0).all()


def test_a_picture_of_one_part_gives_each_prompt_its_share() -> None:
    """By hand: 0.8 of the picture, half of it to each prompt, however alike."""
    plan = transport_plan(alike(2, 1, 1, 3, 4), Transport()).weights
    torch.testing.assert_close(plan, torch.full_like(plan, 0.4))


def test_all_the_mass_at_most_is_all_of_it_exactly(form: str) -> None:
    similarity = alike(2, 1, 5, 2, 3)
    some = Transport(0.5, mass=1.0, iterations=3000, stop="never")
    exact = Transport(0.5, iterations=3000, stop="never", balanced=True)
    torch.testing.assert_close(
        transport_plan(similarity, some).weights,
        transport_plan(similarity, exact).weights,
        rtol=1e-3,  # at mass 1 the bounds are slack by rounding for long
        atol=1e-5,
    )


def test_without_entropy_every_part_goes_where_it_is_most_alike() -> None:
    """By hand: two parts and two prompts, crosswise."""
    similarity = torch.tensor([[0.1, 0.9], [0.8, 0.2]], dtype=torch.float64)
    plan = transport_plan(
        similarity.view(2, 1, 2, 1, 1), Transport(0.001, balanced=True)
    )
    want = torch.tensor([[0.0, 0.5], [0.5, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(plan.weights.view(2, 2), want)


def test_much_entropy_spreads_every_part_evenly() -> None:
    plan = transport_plan(alike(2, 1, 4, 3, 5), Transport(1e9)).weights
    torch.testing.assert_close(plan, torch.full_like(plan, 0.8 / 8))


def test_equal_prompts_share_what_one_would_get() -> None:
    one = alike(1, 2, 6, 3, 4)
    single = transport_plan(one, Transport(stop="never")).weights
    double = transport_plan(one.repeat(2, 1, 1, 1, 1), Transport(stop="never")).weights
    torch.testing.assert_close(double[0], double[1])
    torch.testing.assert_close(double.sum(0), single[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("stop", ["record", "never"])
@pytest.mark.parametrize("balanced", [False, True])
def test_a_records_plan_is_its_own(stop: Any, balanced: bool) -> None:
    """Together with others, of its client or another's, or alone."""
    similarity = alike(2, 3, 5, 4, 6)
    transport = Transport(stop=stop, balanced=balanced)
    together = transport_plan(similarity, transport)
    for client in range(3):
        for record in range(4):
            part = similarity[:, client : client + 1, :, record : record + 1]
            alone = transport_plan(part, transport)
            here = together.weights[:, client : client + 1, :, record : record + 1]
            torch.testing.assert_close(here, alone.weights, rtol=1e-12, atol=0)
            assert alone.iterations == together.iterations[client, record]


def test_records_stop_at_different_times_and_never_late() -> None:
    similarity = alike(2, 1, 5, 12, 3, largest=0.4)
    found = transport_plan(similarity, Transport()).iterations[0]
    assert len(found.unique()) > 3
    for record in range(12):
        steps = int(found[record])
        part = similarity[:, :, :, record : record + 1]
        for earlier in (steps - 1, steps) if steps < 100 else ():
            plan = transport_plan(part, Transport(iterations=earlier))
            assert plan.iterations == earlier


def test_stopping_by_batch_lets_one_record_change_anothers_plan() -> None:
    """The reason why it is not the default: see methods with clipping per record."""
    similarity = alike(2, 1, 5, 2, 3)
    changed = similarity.clone()
    changed[:, :, :, 1] = 0.0
    plans = [
        transport_plan(s, Transport(stop="batch")).weights[:, :, :, 0]
        for s in (similarity, changed)
    ]
    assert not torch.equal(*plans)
    masked = transport_plan(
        changed, Transport(stop="batch"), mask=torch.tensor([[True, False]])
    )
    alone = transport_plan(similarity[:, :, :, :1], Transport(stop="batch"))
    torch.testing.assert_close(masked.weights[:, :, :, :1], alone.weights)


@pytest.mark.parametrize("entropy", [0.1, 0.08, 0.05, 0.01, 0.001])
def test_float32_is_accurate_at_any_entropy_and_cosine(entropy: float) -> None:
    """Where the published code overflows, too."""
    similarity = alike(2, 1, 7, 5, 4)
    similarity[:, :, 0] = 1
    similarity[0, :, :, 0], similarity[1, :, :, 0] = 1, -1
    exact = transport_plan(similarity, Transport(entropy, stop="never"))
    single = transport_plan(similarity.float(), Transport(entropy, stop="never"))
    assert single.weights.dtype == torch.float32
    assert exact.weights.isfinite().all()
    difference = single.weights.double() - exact.weights
    assert difference.abs().max() < 1e-7 / entropy


@pytest.mark.parametrize(
    "wrong", [{"entropy": 0}, {"mass": 1.2}, {"mass": 0}, {"iterations": 0}]
)
def test_impossible_problems_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Transport(**wrong)


CLIENTS, RECORDS, PARTS, CLASSES, DIM = 3, 7, 5, 4, 12


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randn(*shape, DIM, generator=generator, dtype=torch.float64)
    return normalize(raw, dim=-1)


@pytest.fixture
def text() -> Tensor:
    return draw(CLIENTS, 2, CLASSES)


@pytest.fixture
def batch() -> Batch:
    """Clients with 7, 4 and no records; padding is zero."""
    tokens = draw(CLIENTS, RECORDS, PARTS, seed=1)
    mask = torch.arange(RECORDS) < torch.tensor([7, 4, 0])[:, None]
    labels = torch.arange(CLIENTS * RECORDS).view(CLIENTS, RECORDS) % CLASSES
    shown = PictureTokens.of(tokens * mask[:, :, None, None])
    return Batch(tokens.mean(2), labels * mask, mask, shown)


def one_by_one(text: Tensor, tokens: Tensor, transport: Transport) -> Tensor:
    """Oracle: one picture and class after the other, the plan as a constant."""
    logits = []
    for words in text.unbind(1):  # [prompts, d] of a class
        similarity = words @ tokens.T
        plan = transport_plan(similarity.detach()[:, None, :, None, None], transport)
        logits.append((plan.weights[:, 0, :, 0, 0] * similarity).sum())
    return torch.stack(logits)


@pytest.mark.parametrize("case", range(12))
def test_logits_loss_and_gradient_are_the_published_codes(
    case: int, task: Task
) -> None:
    """The published code in float64.

    The file's gradients for a logit scale of 14.285714 are smaller than those of its
    own loss by one factor, 1 - 1.05e-8, hence the relative tolerance.
    """
    known = golden("cot", f"f{case}_")
    raw = torch.from_numpy(known["text_features"]).requires_grad_()
    prompts, classes = int(known["n_prompts"]), int(known["n_classes"])
    text = normalize(raw, dim=-1).view(1, prompts, classes, -1)
    tokens = normalize(torch.from_numpy(known["image_tokens"])[1:], dim=-1)
    transport = Transport(
        float(known["eps"]),
        float(known["top_percent"]),
        stop="batch",
        balanced=str(known["ot"]) == "Sinkhorn",
    )
    tokens = tokens.transpose(0, 1)[None]
    labels = torch.from_numpy(known["labels"])[None]
    mask = torch.ones_like(labels).bool()
    batch = Batch(tokens[:, :, 0], labels, mask, PictureTokens.of(tokens))
    task = replace(
        task, backbone=replace(task.classifier, logit_scale=float(known["logit_scale"]))
    )
    loss = transported_losses(task, text, batch, transport)
    (gradient,) = torch.autograd.grad(loss.sum(), raw)
    logits = transported_logits(text.detach(), tokens, task.logit_scale, transport)
    np.testing.assert_allclose(logits[0].numpy(), known["logits"], atol=1e-9)
    assert float(loss.detach()) == pytest.approx(float(known["loss"]), abs=1e-9)
    np.testing.assert_allclose(
        gradient.numpy(), known["grad_text_features"], rtol=2e-8, atol=1e-9
    )


@pytest.mark.parametrize("entries", [1, 50, 200, 10**6])
@pytest.mark.parametrize("stop", ["record", "never"])
def test_losses_and_gradients_are_those_of_pictures_one_by_one(
    stop: Any,
    entries: int,
    task: Task,
    text: Tensor,
    batch: Batch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many are solved at once; padding and empty clients count for nothing.

    Alone, a class would stop by itself and not with its record: so "record" is
    compared with a threshold that nothing passes before the last iteration.
    """
    monkeypatch.setattr(module, "ENTRIES", entries)
    monkeypatch.setattr("privaudit.tuning.prompts.optimal_transport.THRESHOLD", 1e-300)
    transport = Transport(stop=stop, iterations=9)
    leaf = text.clone().requires_grad_()
    found = transported_losses(task, leaf, batch, transport)
    (gradient,) = torch.autograd.grad(found.sum(), leaf)
    want, other = torch.zeros(CLIENTS, dtype=torch.float64), text.clone()
    other.requires_grad_()
    assert batch.tokens is not None
    tokens = batch.tokens.read()
    for client, count in enumerate((7, 4)):
        logits = torch.stack(
            [
                one_by_one(other[client], tokens[client, record], transport)
                for record in range(count)
            ]
        )
        labels = batch.labels[client, :count]
        loss = cross_entropy(task.logit_scale * logits, labels)
        want = want + loss * torch.nn.functional.one_hot(torch.tensor(client), CLIENTS)
    torch.testing.assert_close(found, want)
    torch.testing.assert_close(gradient, torch.autograd.grad(want.sum(), other)[0])
    assert (gradient[2] == 0).all()


@pytest.mark.parametrize("entries", [1, 10**6])
def test_records_losses_add_up_to_the_clients(
    entries: int,
    task: Task,
    text: Tensor,
    batch: Batch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ENTRIES", entries)
    transport, leaf = Transport(stop="never"), text.clone().requires_grad_()
    records = transported_record_losses(task, leaf, batch, transport) * batch.mask
    means = records.sum(1) / batch.sizes.clamp(min=1)
    whole = transported_losses(task, leaf, batch, transport)
    torch.testing.assert_close(means, whole)
    torch.testing.assert_close(
        torch.autograd.grad(means.sum(), leaf)[0],
        torch.autograd.grad(whole.sum(), leaf)[0],
    )


def test_one_prompt_that_takes_all_gives_the_mean_over_parts(
    task: Task, text: Tensor, batch: Batch
) -> None:
    """By hand: each part gives all it has, wherever that is."""
    assert batch.tokens is not None
    tokens = batch.tokens.read()
    logits = transported_logits(
        text[:, :1], tokens, task.logit_scale, Transport(balanced=True)
    )
    mean = tokens.mean(2)
    want = task.logit_scale * torch.einsum("kbd,kcd->kbc", mean, text[:, 0])
    torch.testing.assert_close(logits, want)


def test_a_query_gives_each_models_probabilities(
    task: Task, text: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUERY_CHUNK", 4)
    tokens = draw(RECORDS, PARTS, seed=3)
    pictures = PictureTokens.of(tokens)
    records = Records(tokens.mean(1), torch.zeros(RECORDS).long(), pictures)
    answers = query_transported(task, text, records, Transport())
    found = torch.cat([a["log_probabilities"] for a in answers], dim=1)
    asked = tokens.expand(CLIENTS, *tokens.shape)
    logits = transported_logits(text, asked, task.logit_scale, Transport())
    torch.testing.assert_close(found, logits.log_softmax(-1))


def test_pooled_features_are_refused_with_a_way_out(
    task: Task, text: Tensor, batch: Batch
) -> None:
    pooled = replace(batch, tokens=None)
    with pytest.raises(ConfigError, match="pooled features without parts"):
        transported_losses(task, text, pooled, Transport())
