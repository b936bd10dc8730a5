"""What holds for every trainer; a new file in trainers/ is tested here by itself."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from privaudit.core.errors import ViewError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Tensors, digest, stack
from privaudit.federation.on_device import on_device
from privaudit.federation.query import ask
from privaudit.federation.trainer import TRAINERS, Task, Trainer, claim_of, start_client
from privaudit.federation.transcript import Message
from tests.simulated_device import another_device, assert_agree, task_on
from tests.toy_federation import Play, Played, Shards, assert_close_messages, few_epochs
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


@dataclass(frozen=True)
class Watched:
    """A variant's training, as it was watched round by round.

    Attributes:
        played: The federation at the end.
        after_one: All messages, were the first round the last.
        kept: Digests of all that a client kept after a round.
        altered: Inputs that a round changed, by name.
    """

    played: Played
    after_one: list[dict[str, Any]]
    kept: set[str]
    altered: set[str]


DONE: dict[str, Watched] = {}


@pytest.fixture
def watched(trainer: Trainer, play: Play) -> Watched:
    """Train each variant once for all tests that only look at it."""
    if repr(trainer) not in DONE:
        DONE[repr(trainer)] = watch(play(trainer, rounds=0))
    return DONE[repr(trainer)]


@pytest.fixture
def played(watched: Watched) -> Played:
    return watched.played


def watch(played: Played) -> Watched:
    after_one: list[dict[str, Any]] = []
    kept, altered = set(), set()
    for _ in range(played.task.rounds):
        held = [played.server, *played.kept.values()]
        before = [{k: t.clone() for k, t in part.items()} for part in held]
        played.step()
        for part, copy in zip(held, before, strict=True):
            altered |= {key for key in copy if not torch.equal(part[key], copy[key])}
        kept |= {digest(t) for part in played.kept.values() for t in part.values()}
        after_one = after_one or described(played.messages)
    return Watched(played, after_one, kept, altered)


def test_equal_seeds_give_equal_messages(
    name: str, trainer: Trainer, watched: Watched, play: Play
) -> None:
    again, other = play(trainer), play(trainer, rounds=1, seed=1)
    assert described(watched.played.messages) == described(again.messages)
    assert watched.after_one != described(other.messages) or name == "zero-shot"


def described(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [message.describe() for message in messages]


def test_a_private_start_depends_on_seed_and_client_alone(
    trainer: Trainer, task: Task
) -> None:
    """It is drawn when a client first takes part, and again by a resumed run."""
    seeds = Seeds(3)
    first = [start_client(trainer, task, client, seeds) for client in task.clients]
    again = [start_client(trainer, task, c, seeds) for c in reversed(task.clients)]
    assert [*map(digests, first)] == [*map(digests, reversed(again))]
    one, other, *_ = first
    for name in one:  # each has draws of its own
        assert not one[name].any() or not torch.equal(one[name], other[name])


def digests(tensors: Tensors) -> dict[str, str]:
    return {name: digest(tensor) for name, tensor in tensors.items()}


def test_a_cohort_equals_its_clients_one_by_one(
    trainer: Trainer, settings: dict[str, object], played: Played, play: Play
) -> None:
    alone = play(trainer, cohort_size=1)
    # Noised values lie on a grid of steps of 2^-15: rounding may move them one.
    atol = 4e-5 if "epsilon" in settings else 1e-5
    assert_close_messages(played.messages, alone.messages, rtol=1e-4, atol=atol)


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
    (answers,) = played.trainer.query(task, model, task.public, frozenset({want}))
    return dict(answers)


def test_what_is_kept_is_in_no_message_before_the_release(
    name: str, watched: Watched
) -> None:
    messages = [m for record in watched.played.rounds for m in record.messages]
    sent = watched.kept & {digest(t) for m in messages for t in m.tensors.values()}
    assert bool(sent) == (name in SENDS_WHAT_IT_KEEPS)


def test_a_round_changes_none_of_its_inputs(watched: Watched) -> None:
    assert not watched.altered


@pytest.mark.parametrize(
    "threat", ["server", "server-aggregate", "released", "peer:client-2"]
)
def test_every_view_gives_a_model_that_answers(
    threat: str, trainer: Trainer, task: Task, played: Played
) -> None:
    if threat == "server-aggregate" and trainer.aggregation == "individual":
        with pytest.raises(ViewError, match="no secure sum"):
            played.rebuild(threat)
        return
    reconstructed = played.rebuild(threat, "client-1")
    models = {k: v.unsqueeze(0) for k, v in reconstructed.model.items()}
    if task.kind == "generation":
        (table,) = trainer.query(task, models, task.public, frozenset({"tokens"}))
        assert table["log likelihood"].shape[:2] == (1, len(task.public))
        return
    answers = ask(trainer, task, models, task.public)
    assert answers.shape == (1, len(task.public), 4)
    torch.testing.assert_close(
        answers.exp().sum(dim=-1), torch.ones(1, len(task.public))
    )


def test_the_claim_is_a_budget_or_nothing(trainer: Trainer, task: Task) -> None:
    claim = claim_of(trainer, task)
    assert claim.epsilon is None or claim.epsilon >= 0
    assert claim.source
