"""Owners' models that answer otherwise when they are asked again."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from privaudit import Auditor, load_run
from privaudit.core.errors import AttackError
from privaudit.recording import recorded_trainer
from privaudit.recording.owner import use_owner
from privaudit.recording.repeated_answers import why_not_repeatable
from tests.privaudit.recording.small_federation import CLASSES, Linear


class Asked(Linear):
    """Asks its linear model with a layer behind it, whose mode nobody set."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.asked = 0

    def query(self, tensors: Any, positions: np.ndarray) -> Tensor:
        self.asked += 1
        answer: Tensor = self.layer(super().query(tensors, positions))
        return answer


@pytest.mark.parametrize("layer", [nn.Dropout(0.1), nn.BatchNorm1d(CLASSES)])
def test_models_in_training_mode_give_no_audit(layer: nn.Module, folder: Path) -> None:
    owner = Asked(layer.train())
    with (
        use_owner(owner),
        pytest.raises(AttackError, match=r"call its \.eval\(\) in query"),
    ):
        Auditor(load_run(folder)).attack(shadows=0, is_logged=False)
    owner.layer.eval()
    with use_owner(owner):
        Auditor(load_run(folder)).attack(shadows=0, is_logged=False)


class TrainsIt(Asked):
    """Its clients put the model into training mode, and leave it there."""

    def local_update(self, *arguments: Any) -> Any:
        self.layer.train()
        return super().local_update(*arguments)


def test_a_model_that_shadow_training_left_in_training_mode_is_refused(
    folder: Path,
) -> None:
    owner = TrainsIt(nn.Dropout(0.1).eval())
    with use_owner(owner):
        Auditor(load_run(folder)).attack(shadows=0, is_logged=False)
        with pytest.raises(AttackError, match="answers the same question differently"):
            Auditor(load_run(folder)).attack(clients=1, shadows=5, is_logged=False)


def test_a_run_asks_its_models_again_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many attacks are made of it: an owner's models may be slow."""
    checked: list[int] = []

    def counted(ask: Any, positions: np.ndarray, answer: Any) -> str:
        before = owner.asked
        found = why_not_repeatable(ask, positions, answer)
        checked.append(owner.asked - before)
        return found

    monkeypatch.setattr(recorded_trainer, "why_not_repeatable", counted)
    owner = Asked(nn.Identity())
    with use_owner(owner):
        run = load_run(folder)
        for _ in range(2):
            Auditor(run).attack(shadows=0, is_logged=False)
    assert checked == [2]


def test_rounding_is_no_training_mode(rng: np.random.Generator) -> None:
    """In several kinds of arithmetic; half precision rounds otherwise in another batch."""
    weight, records = (torch.from_numpy(rng.normal(size=(64, n))) for n in (10, 256))
    rows = np.arange(255)
    for kind in (torch.float64, torch.float32, torch.bfloat16):

        def ask(asked: np.ndarray, kind: torch.dtype = kind) -> Tensor:
            answer = records.T[asked].to(kind) @ weight.to(kind)
            is_moved = kind == torch.bfloat16 and len(asked) < 255
            return answer * (1 + 2**-7 * is_moved)

        assert why_not_repeatable(ask, rows, ask(rows)) == ""


def test_answers_that_all_are_one_or_of_other_lengths_are_repeatable() -> None:
    def constant(rows: np.ndarray) -> Tensor:
        return torch.full((len(rows), 3), -torch.inf)

    def padded(rows: np.ndarray) -> tuple[Tensor, Tensor]:
        shape = (len(rows), len(rows))  # as long as the longest of a batch
        return torch.ones(*shape, 5), torch.ones(shape)

    rows = np.arange(20)
    for ask in (constant, padded):
        assert why_not_repeatable(ask, rows, ask(rows)) == ""


def test_a_network_whose_hidden_layer_drops_one_in_a_hundred_is_noticed() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(8, 256), nn.ReLU(), nn.Dropout(0.01), nn.Linear(256, 4)
    )
    records = torch.randn(64, 8)

    def ask(rows: np.ndarray) -> Tensor:
        with torch.no_grad():
            answer: Tensor = functional_call(net, {}, (records[rows],))
        return answer

    rows = np.arange(64)
    assert "differently" in why_not_repeatable(ask, rows, ask(rows))
    net.eval()
    assert why_not_repeatable(ask, rows, ask(rows)) == ""
