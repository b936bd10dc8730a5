"""What holds for every trainer; a new file in trainers/ is tested here by itself."""

import os
from collections.abc import Callable

import pytest
import torch

from privaudit.checks.contracts import OF_TRAINERS, TrainerCase, described, few_epochs
from privaudit.core.tensors import digest, stack
from privaudit.federation.on_device import on_device
from privaudit.federation.trainer import TRAINERS, Task, Trainer
from privaudit.models.token_table import joined_signals
from tests.simulated_device import another_device, assert_agree, task_on
from tests.toy_federation import Play, Played, Shards
from tests.toy_language import toy_shards, toy_writing_task

VARIANTS: list[tuple[str, dict[str, object]]] = [
    (name, few_epochs(name)) for name in TRAINERS.names()
] + [
    ("dp-fpl", {"epsilon": 8.0}),
    ("dp-fpl", {"epsilon": 8.0, "noise_at": "distributed"}),
    ("dp-fpl", {"mode": "published-paper", "epsilon": 0.4}),
    ("dp-fpl", {"mode": "published-code", "epsilon": 0.4}),
    ("dp-fpl", {"epsilon": 8.0, "noise_at": "client", "rank": "full"}),
    ("dp-fpl", {"epsilon": 8.0, "factorization": "left", "residual": False}),
    ("dp-fpl", {"mode": "published-paper", "epsilon": 8.0, "clip": "sample"}),
    ("prompt-fedper", {"shared_tokens": 2}),
    ("dp-promptfl", {"epsilon": 8.0}),
    ("dp-promptfl", {"mode": "published-paper", "epsilon": 0.4}),
    ("dp-promptfl", {"mode": "published-code", "epsilon": 0.4}),
    ("fedotp", {"epochs": 2, "entropy": 0.01}),
    ("fedpgp", {"epochs": 2, "contrast": 0.0}),
    ("dp-fedotp", {"epsilon": 8.0, "iterations": 10}),
    ("dp-fedotp", {"mode": "published-paper", "epsilon": 0.4, "iterations": 10}),
    ("dp-fedotp", {"mode": "published-code", "epsilon": 0.4}),
    ("dp-fedpgp", {"epsilon": 8.0}),
    ("dp-fedpgp", {"mode": "published-paper", "epsilon": 0.4}),
    ("dp-fedpgp", {"mode": "published-code", "epsilon": 0.4}),
    ("pfedmoap", {"gate": "linear", "choose": "random", "experts": 1}),
    ("pfedmoap", {"gate": "aggregated", "gate_scale": "sqrt"}),
    ("pfedmoap", {"experts": 0}),
    ("dp-pfedmoap", {"epsilon": 25.0, "delta": 0.05, "epochs": 3}),
    ("dp-pfedmoap", {"mode": "published-paper", "epsilon": 25.0, "delta": 0.05}),
    ("fedrand", {"past": False}),
    ("fedrand", {"send_a": 0.2, "normalize": False, "pairing": "second-to-last"}),
    ("fedrand", {"pairing": "server"}),
    ("fedrand", {"sublayers": 0.5, "normalize": False}),
    ("fedrand", {"upload_bits": 2, "rounding": "nearest", "sublayers": 0.5}),
    ("lora-fedper", {"shared_layers": 1}),
    ("fedpt-zeroth-order", {"directions": 0}),
    ("dp-fedpt", {"epsilon": 8.0, "coordinates": 10}),
    ("dp-fedpt", {"epsilon": 8.0, "noise_by": "each-client"}),
    ("dp-fedpt", {"epsilon": 8.0, "noise_by": "server"}),
    ("dp-fedpt", {"mode": "published-paper", "epsilon": 8.0}),
    ("fedpt-top-k", {"epsilon": 8.0, "top": 5}),
    ("fedpt-top-k", {"epsilon": 8.0, "choice": "private", "top": 5}),
    ("fedpt-top-k", {"mode": "published-paper", "epsilon": 8.0}),
    ("fedpt", {"peft_method": "prefix", "sends": "deltas", "micro_batch": 3}),
    ("fedpt", {"peft_method": "prefix", "projected": True, "optimizer": "sgd"}),
    ("fedpt", {"peft_method": "lora", "tiers": "three"}),
    ("fedpt", {"peft_method": "p-tuning", "precision": "bfloat16"}),
    ("fedpt-dhapa", {"clusters": 2, "peft_method": "prefix"}),
    ("fedpt-dhapa", {"weighting": "sizes", "validation_share": 0.0}),
    ("fedpt-dhapa", {"gamma": 0.0, "statistics_noise": 4.0}),
    ("pfedmoap", {"weight_decay": 0.1, "optimizer_state": "kept", "epochs": 2}),
    ("promptfl", {"optimizer": "adamw", "optimizer_state": "kept", "epochs": 2}),
    ("fedrand", {"optimizer_state": "kept", "schedule": "cosine"}),
    ("dp-fpl", {"epsilon": 8.0, "optimizer": "adam", "optimizer_state": "kept"}),
    ("dp-promptfl", {"epsilon": 8.0, "optimizer_state": "kept", "momentum": 0.5}),
    ("dp-pfedmoap", {"epsilon": 8.0, "optimizer_state": "kept", "epochs": 2}),
]
SENDS_WHAT_IT_KEEPS = {"prompt-fedamp"}  # a client's personal prompt
pytestmark = pytest.mark.parametrize(
    ("name", "settings"), VARIANTS, ids=[f"{n} {s}" for n, s in VARIANTS]
)


@pytest.fixture
def trainer(name: str, settings: dict[str, object]) -> Trainer:
    return TRAINERS.find(name)(**settings)


@pytest.fixture
def task(trainer: Trainer, task: Task) -> Task:
    return toy_writing_task() if trainer.task == "generation" else task


@pytest.fixture
def shards(task: Task, shards: Shards) -> Shards:
    return toy_shards(task) if task.kind == "generation" else shards


CASES: dict[str, TrainerCase] = {}  # trained once for all contracts


@pytest.fixture
def case(trainer: Trainer, task: Task, play: Play) -> TrainerCase:
    made = TrainerCase(trainer, task, play)
    return CASES.setdefault(repr(trainer), made)


@pytest.mark.parametrize("contract", OF_TRAINERS)
def test_a_trainer_keeps_to_its_contract(
    case: TrainerCase, contract: Callable[[TrainerCase], None]
) -> None:
    contract(case)


def test_another_seed_gives_other_messages(
    name: str, case: TrainerCase, play: Play
) -> None:
    assert len(case.played.rounds) == case.task.rounds
    other = play(case.trainer, rounds=1, seed=1)
    assert case.after_one != described(other.messages) or name == "zero-shot"


@pytest.mark.gpu
def test_another_device_computes_the_same(
    settings: dict[str, object], trainer: Trainer, play: Play, task: Task
) -> None:
    """A round, the release, the server's rebuild, and what its model answers."""
    if settings.get("peft_method") == "p-tuning" and "TEST_DEVICE" not in os.environ:
        pytest.skip("torch has an LSTM cell's fused kernel for real devices only")
    alone = play(trainer, 1)
    with another_device() as device:
        there = play(on_device(trainer, device), 1, task=task_on(task, device))
        messages, answers = there.messages, answers_of(there)
    # Devices choose other products for bfloat16; the simulated one computes as the CPU.
    half = settings.get("precision") == "bfloat16" and "TEST_DEVICE" in os.environ
    for one, other in zip(messages, alone.messages, strict=True):
        assert_agree(other.tensors, one.tensors, 2e-2 if half else 2e-3)
    torch.testing.assert_close(
        answers, answers_of(alone), rtol=1e-3, atol=1e-4, equal_nan=True
    )


def answers_of(played: Played) -> dict[str, torch.Tensor]:
    """Return what the model that a server rebuilds says of public records."""
    task, model = played.task, stack([played.rebuild("server").model])
    want = "tokens" if task.kind == "generation" else "log_probabilities"
    said = list(played.trainer.query(task, model, task.public, frozenset({want})))
    return joined_signals(said) if want == "tokens" else dict(*said)


def test_what_is_kept_is_in_no_message_before_the_release(
    name: str, case: TrainerCase
) -> None:
    messages = [m for record in case.played.rounds for m in record.messages]
    sent = case.kept & {digest(t) for m in messages for t in m.tensors.values()}
    assert bool(sent) == (name in SENDS_WHAT_IT_KEEPS)
