from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import below
from privaudit.federation.trainer import Round, Task
from privaudit.tuning.prompts.experts import (
    PARTS,
    attention,
    attention_match,
    draw_experts,
    expert_features,
    gate_size,
    into_pool,
    linear_match,
    pool,
    start_attention,
    start_linear,
)
from tests.golden import golden_tensors

CASES = ("small", "vit", "small_scale1")


class Golden:
    """One case of the published code's gate, with a client axis in front."""

    def __init__(self, case: str) -> None:
        known = golden_tensors("pfedmoap_gate", f"{case}_")
        self.values = {name: tensor.double() for name, tensor in known.items()}
        self.local = self["text_features_local"].requires_grad_()
        self.gate = {
            f"{part}_{kind}": self[f"W_{part[0]}_{kind}"].unsqueeze(0).requires_grad_()
            for part in PARTS
            for kind in ("weight", "bias")
        }
        self.size = int(self["gate_dim"])
        self.images = normalize(self["image_features"], dim=-1).unsqueeze(0)

    def __getitem__(self, name: str) -> Tensor:
        return self.values[name]

    @property
    def experts(self) -> Tensor:
        text = torch.cat([self.local.unsqueeze(0), self["text_features_nonlocal"]])
        return normalize(text, dim=-1).transpose(0, 1).unsqueeze(0)

    @property
    def heads(self) -> int:
        return int(self["heads"])

    @property
    def scale(self) -> float:
        return float(self["scaling"])

    def logits(self, mixing: float) -> Tensor:
        images, experts = self.images, self.experts
        of_mixture = attention_match(
            self.gate,
            pool(images, self.size),
            pool(experts, self.size),
            heads=self.heads,
            scale=self.scale,
        )
        of_local = torch.einsum("kbd,kcd->kbc", images, experts[:, :, 0])
        return (self["logit_scale"] * (of_mixture + mixing * of_local))[0]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mixing", ["0p0", "0p5", "1p0"])
def test_logits_and_losses_are_those_of_the_published_code(
    case: str, mixing: str
) -> None:
    known = Golden(case)
    logits = known.logits(float(mixing.replace("p", ".")))
    loss = cross_entropy(logits, known["labels"].long())
    expected = known[f"logits_lambda{mixing}"]
    torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)
    expected = known[f"loss_lambda{mixing}"]
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_the_published_code(case: str) -> None:
    known = Golden(case)
    cross_entropy(known.logits(0.5), known["labels"].long()).backward()
    close = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-9)
    close(known.local.grad, known["grad_text_local"])
    checked = 0
    for name, tensor in known.gate.items():
        part, _, kind = name.partition("_")
        if f"grad_W_{part[0]}_{kind}" in known.values:
            assert tensor.grad is not None
            expected = known[f"grad_W_{part[0]}_{kind}"]
            close(tensor.grad[0], expected)
            checked += 1
    assert checked >= 4


@pytest.mark.parametrize("case", CASES)
def test_attention_is_that_of_the_published_code(case: str) -> None:
    known = Golden(case)
    pooled = pool(known.experts, known.size)
    expected = known["experts_kv"].unsqueeze(0)
    torch.testing.assert_close(pooled, expected, rtol=1e-9, atol=1e-9)
    shares = attention(
        known.gate,
        pool(known.images, known.size),
        pooled,
        heads=known.heads,
        scale=known.scale,
    )
    expected = known["attn_mean_heads"].transpose(0, 1)
    torch.testing.assert_close(shares.mean(dim=1)[0], expected, rtol=1e-9, atol=1e-9)


def toy_gate(clients: int, size: int) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    stream = Seeds(3).stream("gate")
    gates = [start_attention(size, stream) for _ in range(clients)]
    gate = {name: torch.stack([g[name] for g in gates]) for name in gates[0]}
    images = normalize(stream.normal_tensor((clients, 5, size)), dim=-1)
    text = normalize(stream.normal_tensor((clients, 4, 3, size)), dim=-1)
    return gate, images, text


def test_the_order_of_experts_does_not_matter_to_attention() -> None:
    gate, images, text = toy_gate(2, 8)
    one = attention_match(gate, images, text, heads=2, scale=10.0)
    other = attention_match(gate, images, text.flip(2), heads=2, scale=10.0)
    torch.testing.assert_close(one, other)


def test_one_client_s_gate_has_no_part_in_another_s_logits() -> None:
    gate, images, text = toy_gate(2, 8)
    before = attention_match(gate, images, text, heads=2, scale=10.0)
    changed = {name: tensor.clone() for name, tensor in gate.items()}
    for tensor in changed.values():
        tensor[0] += 1.0
    after = attention_match(changed, images, text, heads=2, scale=10.0)
    assert torch.equal(before[1], after[1])
    assert not torch.allclose(before[0], after[0])


def test_equal_experts_share_attention_by_hand() -> None:
    """Equal keys get equal shares, and the mixture is the value of any of them."""
    gate, images, text = toy_gate(1, 8)
    same = text[:, :, :1].expand_as(text)
    shares = attention(gate, images, same, heads=4, scale=10.0)
    torch.testing.assert_close(shares, torch.full_like(shares, 1 / 3))
    value = same[0, :, 0] @ gate["value_weight"][0].T + gate["value_bias"][0]
    mixture = value @ gate["output_weight"][0].T + gate["output_bias"][0]
    found = attention_match(gate, images, same, heads=4, scale=10.0)
    torch.testing.assert_close(found[0], images[0] @ mixture.T)


def test_scaled_by_the_root_divides_by_the_size_of_a_head() -> None:
    gate, images, text = toy_gate(1, 8)
    torch.testing.assert_close(
        attention(gate, images, text, heads=2, scale="sqrt"),
        attention(gate, images, text, heads=2, scale=0.5),
    )


def test_heads_that_do_not_divide_the_size_are_made_fewer() -> None:
    gate, images, text = toy_gate(1, 12)
    assert attention(gate, images, text, heads=8, scale=1.0).shape[1] == 4


def test_a_linear_gate_mixes_by_hand() -> None:
    gate = {"share_weight": torch.zeros(1, 3, 2), "share_bias": torch.zeros(1, 3)}
    gate["share_bias"][0, 1] = float(np.log(3))
    images = torch.tensor([[[1.0, 0.0, 2.0, 0.0]]])
    text = torch.zeros(1, 1, 2, 4)
    text[0, 0, 0, 0], text[0, 0, 1, 2] = 4.0, 1.0
    # Two experts of three: weights 1/4 and 3/4, products 4 and 2.
    assert linear_match(gate, images, text, size=2).item() == pytest.approx(2.5)


def test_a_linear_gate_leaves_out_experts_beyond_its_own() -> None:
    stream = Seeds(0).stream("gate")
    gate = {n: t.unsqueeze(0) for n, t in start_linear("share", 2, 4, stream).items()}
    images = stream.normal_tensor((1, 3, 4))
    text = stream.normal_tensor((1, 2, 5, 4))
    torch.testing.assert_close(
        linear_match(gate, images, text, size=4),
        linear_match(gate, images, text[:, :, :2], size=4),
    )


def test_pooling_takes_every_nth_feature() -> None:
    assert pool(torch.arange(12.0), 4).tolist() == [0, 3, 6, 9]
    with pytest.raises(ConfigError, match="Use one of 32, 48, 64, 96, 192"):
        gate_size(100, 192)


def test_a_gate_begins_as_torch_begins_linear_layers() -> None:
    gate = start_attention(64, Seeds(0).stream("gate"))
    for tensor in gate.values():
        assert tensor.abs().max() <= 1 / 8
    assert gate["query_weight"].std() == pytest.approx(1 / 8 / 3**0.5, rel=0.05)
    assert len(gate) == 8


def at(index: int = 1, seed: int = 0) -> Round:
    return Round(index, Seeds(seed), ("a",))


def line(*places: float) -> dict[str, Tensor]:
    """Prompts of one number on a line, for clients a, b, c, ..."""
    names = "abcdefghij"
    return {names[i]: torch.full((1, 1), place) for i, place in enumerate(places)}


def places(experts: Tensor | None) -> list[float]:
    assert experts is not None
    return sorted(experts.flatten().tolist())


def test_the_nearest_others_are_chosen_by_hand() -> None:
    pool = line(0.0, 5.0, -1.0, 2.0, 9.0)
    assert places(draw_experts(pool, "a", at(), 2, "nearest")) == [-1.0, 2.0]
    assert places(draw_experts(pool, "e", at(), 2, "nearest")) == [2.0, 5.0]


def test_without_an_entry_or_others_there_are_no_experts() -> None:
    assert draw_experts(line(1.0, 2.0), "c", at(), 9, "nearest") is None
    assert draw_experts(line(1.0), "a", at(), 9, "all") is None
    assert draw_experts(line(1.0, 2.0), "a", at(), 0, "all") is None
    assert draw_experts({}, "a", at(), 9, "random") is None


def test_all_is_all_and_random_differs_by_round() -> None:
    pool = line(*map(float, range(10)))
    assert len(places(draw_experts(pool, "a", at(), 2, "all"))) == 9
    drawn = {
        tuple(places(draw_experts(pool, "a", at(i), 3, "random"))) for i in range(9)
    }
    assert len(drawn) > 3
    assert all(0.0 not in some for some in drawn)


@given(
    st.lists(st.floats(-9, 9), min_size=2, max_size=8, unique=True),
    st.integers(1, 9),
    st.integers(0, 20),
)
def test_the_order_tells_nothing_but_the_seed_does(
    values: list[float], count: int, seed: int
) -> None:
    """Who is where depends on the stream alone: the same places for other prompts."""
    pool = line(*values)
    experts = draw_experts(pool, "a", at(seed=seed), count, "nearest")
    assert experts is not None
    assert len(experts) == min(count, len(values) - 1)
    distances = (experts - pool["a"]).flatten().abs()
    order = distances.argsort(stable=True).argsort().tolist()
    further = {name: 2 * prompt for name, prompt in pool.items()}
    again = draw_experts(further, "a", at(seed=seed), count, "nearest")
    assert again is not None
    repeated = (again - further["a"]).flatten().abs().argsort(stable=True).argsort()
    assert repeated.tolist() == order


def test_every_order_comes_up() -> None:
    pool = line(0.0, 1.0, 2.0, 3.0)
    orders = set()
    for seed in range(60):
        experts = draw_experts(pool, "a", at(seed=seed), 3, "nearest")
        assert experts is not None
        orders.add(tuple(experts.flatten().tolist()))
    assert len(orders) == 6


def test_features_are_those_of_each_expert_by_itself(task: Task) -> None:
    generator = torch.Generator().manual_seed(0)
    experts = torch.randn(2, 3, 3, 5, generator=generator)
    experts[1, 0] = experts[0, 2]  # shared by two clients
    found = expert_features(task, experts)
    assert found.shape == (2, 4, 3, 12)
    for client in range(2):
        for expert in range(3):
            alone = task.prompts(experts[client, expert].unsqueeze(0))[0]
            torch.testing.assert_close(found[client, :, expert], alone)


def test_a_shared_expert_is_encoded_once(task: Task) -> None:
    asked = []

    class Counting:
        context_tokens, width = 3, 5

        def __call__(self, contexts: Tensor) -> Tensor:
            asked.append(len(contexts))
            return task.prompts(contexts)

    same = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    experts = same.expand(4, 6, 3, 5)
    expert_features(
        replace(task, backbone=replace(task.classifier, prompts=Counting())), experts
    )
    assert asked == [1]


def test_the_pool_is_part_of_the_server_s_state() -> None:
    pool = line(1.0, 2.0)
    state = {"context": torch.zeros(1, 1), **into_pool(pool)}
    assert set(state) == {"context", "pool/a", "pool/b"}
    assert {name: float(p) for name, p in below("pool/", state).items()} == {
        "a": 1,
        "b": 2,
    }
