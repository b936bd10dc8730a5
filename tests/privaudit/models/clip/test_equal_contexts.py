"""Contexts that clients share, encoded once, against each encoded by itself."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from privaudit.auditing.attack import Adversary
from privaudit.auditing.record_gradients import single_moves
from privaudit.core.seeds import Seeds
from privaudit.federation.threat_models import View, server
from privaudit.federation.trainer import TRAINERS, Round, Trainer
from privaudit.models.clip.equal_contexts import EqualContexts
from privaudit.models.clip.shared_prefix import SharedPrefixText
from privaudit.models.interfaces import Prompts
from privaudit.runs.config import make_config
from privaudit.runs.population import Population, populate


@pytest.fixture(scope="module")
def population() -> Population:
    return populate(make_config("promptfl"))


@pytest.fixture(scope="module")
def prompts(population: Population) -> Prompts:
    return population.task.prompts


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many contexts were encoded at once, each time."""
    counts, embedded = list[int](), SharedPrefixText._embedded

    def counted(text: SharedPrefixText, contexts: Tensor) -> Tensor:
        counts.append(len(contexts))
        return embedded(text, contexts)

    monkeypatch.setattr(SharedPrefixText, "_embedded", counted)
    return counts


@pytest.mark.parametrize(
    ("held", "at_once"),
    [([0, 0, 0, 0], 1), ([0, 1, 1, 0, 0, 1], 2), ([0, 1, 2], 3), ([1, 0, 1], 3)],
)
def test_features_and_gradients_are_those_of_each_context(
    held: Sequence[int], at_once: int, prompts: Prompts, encoded: list[int]
) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = max(held) + 1, prompts.context_tokens, prompts.width
    contexts = torch.randn(shape, generator=generator)[list(held)] / 50
    results = []
    for ask in (EqualContexts(prompts), prompts):
        leaf = contexts.clone().requires_grad_()
        features = ask(leaf)
        behind = torch.linspace(-1, 1, features.numel()).view_as(features)
        results.append(
            (features.detach(), *torch.autograd.grad(features, leaf, behind))
        )
    for found, want in zip(*results, strict=True):
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)
    assert encoded == [at_once, len(held)]
    known = EqualContexts(prompts).jacobian(contexts)
    assert known is not None
    products = known.products(torch.stack([behind, -2 * behind]))
    torch.testing.assert_close(products[1], -2 * products[0])
    torch.testing.assert_close(products[0], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["promptfl", "dp-fpl", "fedpgp", "pfedmoap"])
def test_records_gradients_take_one_forward_pass(
    name: str,
    population: Population,
    encoded: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are those of a pass each, and the passes are as many for 3 records as for 12."""
    task = population.task
    trainer: Trainer = TRAINERS.find(name)()
    received, at = trainer.start(task, Seeds(0)), Round(0, Seeds(1), ("alone",))

    def moves(records: int) -> dict[str, Tensor]:
        encoded.clear()
        adversary = Adversary(trainer, task, server, View("server", ()), Seeds(2))
        some = task.public.pick(torch.arange(records))
        return dict(single_moves(adversary, received, some, at, hashed=True))

    few, passes = moves(3), sum(encoded)
    found = moves(12)
    assert sum(encoded) == passes < 12
    monkeypatch.setattr(EqualContexts, "__call__", lambda self, c: self.prompts(c))
    monkeypatch.setattr(
        EqualContexts, "jacobian", lambda self, c: self.prompts.jacobian(c)
    )
    for key, want in moves(12).items():
        atol = float(want.abs().max()) * 1e-4
        torch.testing.assert_close(found[key], want, rtol=1e-3, atol=atol)
        torch.testing.assert_close(few[key], want[:3], rtol=1e-3, atol=atol)
    assert sum(encoded) >= 12
