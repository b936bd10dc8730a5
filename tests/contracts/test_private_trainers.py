"""What holds for every trainer that noises prompts, whatever its own test says."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from privaudit.federation.trainer import TRAINERS, Task, Trainer
from privaudit.federation.transcript import SERVER
from privaudit.privacy.certificate import CertifiedView
from privaudit.runs.config import build_trainer
from privaudit.tuning.prompts import gradients as grouped_forward
from privaudit.tuning.prompts.private_training import PrivateTrainer
from tests.conftest import toy_records
from tests.toy_federation import VIEWS, Play

Settings = dict[str, Any]
QUICK: dict[str, Settings] = {
    "dp-promptfl": {"learning_rate": 0.05, "batch_size": 5},
    "dp-fedotp": {"learning_rate": 0.05, "batch_size": 5, "iterations": 10},
    "dp-fedpgp": {"learning_rate": 0.05, "batch_size": 5, "rank": 2},
    "dp-fpl": {"rank": 2, "batch_size": 5},
}
PAPER, CODE = {"mode": "published-paper"}, {"mode": "published-code"}
CLIPS_RECORDS = [
    name
    for name in TRAINERS.names()
    if isinstance(TRAINERS.find(name)(), PrivateTrainer)
]
LOCATIONS: list[tuple[str, CertifiedView]] = [
    ("server", "released"),
    ("client", "server"),
    ("distributed", "released"),
]
HIDDEN_LEAST: list[tuple[str, Settings, tuple[CertifiedView, ...]]] = [
    ("dp-promptfl", {"steps": 3}, VIEWS),
    ("dp-fedotp", {"steps": 2}, VIEWS),
    ("dp-fedpgp", {"steps": 2}, VIEWS),
    *(
        ("dp-fpl", {"noise_at": place, "local_share": share}, (view,))
        for place, view in LOCATIONS
        for share in (0.5, 0.2)
    ),
]
NOISED: list[tuple[str, Settings]] = [
    ("dp-promptfl", {}),
    ("dp-promptfl", PAPER),
    ("dp-promptfl", PAPER | {"clip": "sample"}),
    ("dp-promptfl", PAPER | {"epochs": 2, "mu": 0.5}),
    ("dp-promptfl", CODE),
    ("dp-promptfl", CODE | {"epochs": 2, "mu": 0.5}),
    ("dp-fpl", {}),
    ("dp-fpl", {"noise_at": "distributed", "factorization": "left"}),
    ("dp-fpl", {"noise_at": "client", "rank": "full"}),
    ("dp-fpl", {"residual": False}),
    ("dp-fpl", PAPER),
    ("dp-fpl", PAPER | {"clip": "sample"}),
    ("dp-fpl", CODE),
]


def make(name: str, settings: Settings, **more: Any) -> Any:
    return build_trainer(name, QUICK[name] | settings | more)


@pytest.mark.parametrize(("name", "settings", "views"), HIDDEN_LEAST, ids=str)
def test_sound_noise_is_worth_epsilon_against_whom_it_hides_least(
    name: str, settings: Settings, views: tuple[CertifiedView, ...], play: Play
) -> None:
    trainer = make(name, settings, epsilon=2.0)
    played = play(trainer)
    released = played.proved("released")
    assert released is not None
    for view in views:
        proved = played.proved(view)
        assert proved is not None
        assert released <= proved
        assert 0.98 * 2.0 < proved <= 2.0 * (1 + 1e-6)
    assert trainer.claim(played.task).epsilon == 2.0


@pytest.mark.parametrize("epsilon", [None, 8.0])
@pytest.mark.parametrize(("name", "settings"), NOISED, ids=str)
def test_one_prompt_or_gradient_goes_up_and_one_down_and_no_size(
    name: str, settings: Settings, epsilon: float | None, play: Play
) -> None:
    """A weight or a size would tell how many members a client has."""
    played = play(make(name, settings, epsilon=epsilon))
    in_code = name == "dp-fpl" or settings.get("mode") == "published-code"
    for message in (m for r in played.rounds for m in r.messages):
        up = "gradient" if in_code else "context"
        assert set(message.tensors) == {"context" if message.sender == SERVER else up}
        assert all(tensor.shape == (3, 5) for tensor in message.tensors.values())
    if name == "dp-fpl" and epsilon:
        for record in played.rounds:
            assert sorted(e.release for e in record.events) == ["global", "local"]
            assert all(event.parties == 3 for event in record.events)
    if epsilon is None:
        assert all(played.proved(view) is None for view in VIEWS)


@pytest.mark.parametrize("settings", [{}, CODE], ids=str)
@pytest.mark.parametrize("name", QUICK)
def test_without_epsilon_nothing_is_claimed(
    name: str, settings: Settings, task: Task
) -> None:
    assert make(name, settings).claim(task).epsilon is None


def by_record(
    trainer: Trainer, play: Play, task: Task, cohort_size: int
) -> dict[str, list[Tensor]]:
    """Return all records' own gradients in a round, client by client, before clipping."""
    found: dict[str, list[Tensor]] = {}
    sum_clipped = PrivateTrainer.sum_clipped

    def keep(
        self: PrivateTrainer, gradients: Mapping[str, Tensor], *rest: Any
    ) -> dict[str, Tensor]:
        for name, gradient in gradients.items():
            assert not gradient[~rest[1]].any()
            found.setdefault(name, []).append(gradient[rest[1]])
        return sum_clipped(self, gradients, *rest)

    shards = {c: toy_records(n // 2, n) for c, n in task.candidates.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrivateTrainer, "sum_clipped", keep)
        play(trainer, 1, task=task, shards=shards, cohort_size=cohort_size)
    return found


@pytest.mark.parametrize("name", CLIPS_RECORDS)
def test_records_gradients_are_those_of_one_record_after_the_other(
    name: str, play: Play, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever trains beside a client, and however much larger their samples are.

    Sums of float32 are taken in another order: kernels, threads and coarser products
    (those of make test-elsewhere, and MKL_CBWR=COMPATIBLE) put records off by at most
    1.9e-6 of their norm. A thousandth of another record's gradient is hundreds of times
    that.
    """
    sizes = {f"client-{n}": n for n in (4, 10, 11, 24, 30, 60, 62)}
    task, few = replace(task, candidates=sizes), {"batch_size": 12, "epsilon": 8.0}
    once = {"steps": 1} if name != "dp-fpl" else {}
    trainer = build_trainer(name, QUICK.get(name, {}) | few | once)
    together = by_record(trainer, play, task, 7)
    monkeypatch.setattr(grouped_forward, "PRODUCTS_AT_ONCE", 1)
    alone = by_record(trainer, play, task, 1)
    for gradient, (stacked,) in zip(alone, together.values(), strict=True):
        one_by_one = torch.cat(alone[gradient])
        off = (stacked - one_by_one).flatten(1).norm(dim=1)
        assert (off <= 1e-4 * one_by_one.flatten(1).norm(dim=1)).all()
