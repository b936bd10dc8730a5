"""What holds for every trainer whose server needs sums only, under masks."""

from dataclasses import replace

import pytest
import torch

from privaudit.checks.contracts import few_epochs
from privaudit.core.seeds import Seeds
from privaudit.federation.threat_models import server, server_aggregate
from privaudit.federation.trainer import TRAINERS, Reconstructs, Task, Trainer
from privaudit.federation.transcript import Message
from privaudit_labs.secure_aggregation.masking import Masking
from privaudit_labs.secure_aggregation.packets import MASKED, STAGES
from tests.toy_federation import Play, Played, Shards
from tests.toy_language import toy_shards, toy_writing_task

SUMMING = [n for n in TRAINERS.names() if TRAINERS.find(n)().aggregation == "sum"]
PRIVATE = [
    ("dp-fpl", {"epsilon": 8.0, "noise_at": "distributed"}),
    ("dp-fpl", {"mode": "published-paper", "epsilon": 0.4}),
    ("dp-promptfl", {"epsilon": 8.0, "noise_at": "client"}),
    ("dp-promptfl", {"mode": "published-code", "epsilon": 0.4}),
]
HALF, NEVER = Masking(dropout=0.5), len(STAGES)
VARIANTS: list[tuple[str, dict[str, object]]] = [(n, few_epochs(n)) for n in SUMMING]
pytestmark = pytest.mark.parametrize(("name", "settings"), [*VARIANTS, *PRIVATE])


@pytest.fixture
def trainer(name: str, settings: dict[str, object]) -> Trainer:
    return TRAINERS.find(name)(**settings)


@pytest.fixture
def task(trainer: Trainer, task: Task) -> Task:
    chosen = toy_writing_task() if trainer.task == "generation" else task
    return replace(chosen, rounds=2)


@pytest.fixture
def shards(task: Task, shards: Shards) -> Shards:
    return toy_shards(task) if task.kind == "generation" else shards


Both = tuple[Played, Played]
DONE: dict[str, Both] = {}


@pytest.fixture
def both(trainer: Trainer, play: Play) -> Both:
    """Train in the clear and under masks, once for all tests."""
    if repr(trainer) not in DONE:
        DONE[repr(trainer)] = play(trainer), play(trainer, masking=Masking())
    return DONE[repr(trainer)]


def messages_of(played: Played) -> list[Message]:
    """Return what was sent before the release."""
    return [message for record in played.rounds for message in record.messages]


def test_a_masked_run_ends_where_the_ideal_one_does(both: Both) -> None:
    ideal, masked = both
    torch.testing.assert_close(
        dict(masked.server), dict(ideal.server), rtol=1e-3, atol=1e-4
    )
    for one, other in zip(ideal.rounds, masked.rounds, strict=True):
        assert one.events == other.events


def test_no_update_stands_in_a_masked_transcript(both: Both) -> None:
    clear, hidden = both
    updates = [
        t.flatten().double()
        for m in messages_of(clear)
        if m.is_update
        for t in m.tensors.values()
        if t.numel() > 1
    ]
    seen = [
        t.flatten().double()
        for m in messages_of(hidden)
        if m.kind not in ("broadcast", "sum")
        for t in m.tensors.values()
    ]
    assert not any(m.is_update for m in messages_of(hidden))
    for update in updates:
        alike = [t for t in seen if t.shape == update.shape]
        far = min(1e3, 10 * float(update.norm()))  # a mask is uniform over 2^64
        assert all((t - update).norm() > far for t in alike)


def test_the_server_sees_no_more_than_its_sums(
    trainer: Trainer, task: Task, both: Both
) -> None:
    clear, hidden = both
    whole, sums = server(messages_of(hidden)), server_aggregate(messages_of(hidden))
    again = server_aggregate(whole.messages)
    assert [m.describe() for m in again.messages] == [
        m.describe() for m in sums.messages
    ]
    ideal = server_aggregate(messages_of(clear))
    assert len(sums.sums) == len(ideal.sums)
    for one, other in zip(sums.sums, ideal.sums, strict=True):
        assert one.parties == other.parties == 3
    assert isinstance(trainer, Reconstructs)
    for view in (whole, sums):
        models = trainer.reconstruct(task, view, "client-1").model
        alike = trainer.reconstruct(task, ideal, "client-1").model
        for name, tensor in alike.items():
            torch.testing.assert_close(models[name], tensor, rtol=1e-3, atol=1e-4)


FOUR = ("client-0", "client-1", "client-2", "client-3")


def seed_with(in_the_sum: int) -> int:
    """Return a seed under which so many of four clients send, and enough stay."""
    for seed in range(1000):
        lost = HALF.lost(FOUR, Seeds(seed), 0)
        senders = sum(lost.get(c, NEVER) > MASKED for c in range(4))
        if (senders if len(lost) < 2 else 0) == in_the_sum:
            return seed
    raise AssertionError("there is none")


@pytest.mark.parametrize("in_the_sum", [0, 3])
def test_a_lost_client_is_left_out_and_an_aborted_round_changes_no_server(
    in_the_sum: int, trainer: Trainer, task: Task, shards: Shards, play: Play
) -> None:
    task = replace(task, candidates={**task.candidates, "client-3": 24})
    four, seed = shards | {"client-3": shards["client-0"]}, seed_with(in_the_sum)
    played = play(trainer, rounds=0, task=task, shards=four, seed=seed)
    before = {name: t.clone() for name, t in played.server.items()}
    record = played.step(masking=HALF)
    assert record.secure_sum is not None
    if record.secure_sum["outcome"] == "nothing to sum":
        assert not [m for m in record.messages if m.sender.startswith("client")]
        return
    assert record.secure_sum["in_the_sum"] == in_the_sum
    summed = any(m.kind == "sum" for m in record.messages)
    assert summed == (in_the_sum > 0)
    if not summed:
        same = [torch.equal(before[n], t) for n, t in played.server.items()]
        assert all(same)
    shared = [e for e in record.events if e.release == "global"]
    assert all(event.parties == (in_the_sum or 4) for event in shared)
