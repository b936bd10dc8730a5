from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from privaudit.tuning.prompts import optimal_transport
from privaudit.tuning.prompts.optimal_transport import (
    Transport,
    TransportPlan,
    transport_plan,
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
