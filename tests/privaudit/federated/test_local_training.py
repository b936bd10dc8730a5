"""Clients train together as far as memory holds them, to the same numbers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch

from privaudit import Auditor, train
from privaudit.core.memory import records_at_once, use_memory, use_records_at_once
from privaudit.core.seeds import Seeds
from privaudit.datasets.dataset import DATASETS
from privaudit.federated.local_training import (
    Stacking,
    _records_that_fit,
    memory_of_step,
)
from privaudit.federated.runs.config import build_trainer
from privaudit.federated.trainer import Task
from privaudit.trainers.fedpt import FedPT
from privaudit.trainers.promptfl import PromptFL
from tests.conftest import stop_after
from tests.small_records import text_data
from tests.small_transformers import save
from tests.toy_federation import Play, Shards

EPOCHS = 3


@dataclass(frozen=True)
class Watched(PromptFL):
    """Notes how many clients train together, and in how many steps at most."""

    epochs: int = EPOCHS

    def local_update(self, *arguments: Any) -> Any:
        calls.append((len(arguments[1]), arguments[-1].steps))
        return super().local_update(*arguments)


calls: list[tuple[int, int | None]] = []


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


def test_one_step_is_measured_and_numbers_stay(play: Play) -> None:
    together = play(Watched(), rounds=2)
    assert calls == [(3, None)] * 2
    calls.clear()
    with use_memory("1kB"):
        alone = play(Watched(), rounds=1, cohort_size=Stacking(5))
    assert calls == [(1, 1)] + [(1, None)] * 3
    for one, other in zip(together.rounds[0].messages, alone.messages, strict=False):
        for name, tensor in one.tensors.items():
            torch.testing.assert_close(tensor, other.tensors[name])


def test_what_fits_is_measured_once(play: Play, task: Task, shards: Shards) -> None:
    stacking = Stacking(5)
    with use_memory("1GB"):
        played = play(Watched(), rounds=3, cohort_size=stacking)
    assert calls == [(1, 1)] + [(3, None)] * 3
    assert stacking.fit == 5
    federation = played.federation
    at = federation.at(0, 1.0)
    place = federation.inputs(played.trainer, task, at)[1]
    taken = memory_of_step(played.trainer, task, place, at)
    with use_memory(2 * taken):  # two of three
        calls.clear()
        play(Watched(), rounds=1, cohort_size=Stacking(5))
    assert calls == [(1, 1), (2, None), (1, None)]


def test_what_does_not_fit_for_one_client_is_found_in_parts(play: Play) -> None:
    """To the same numbers, in as large parts as fit; whoever names parts has those."""
    trainer = FedPT(epochs=1, batch_size=0)
    whole = play(trainer, rounds=1)
    at = whole.federation.at(0, 1.0)
    place = whole.federation.inputs(trainer, whole.task, at)[0]
    measure = partial(memory_of_step, trainer, whole.task, place, at)
    taken = measure()
    with use_records_at_once(1):
        least = measure()
    assert least < 0.7 * taken
    stacking, limit = Stacking(5), (least + taken) // 2
    with use_memory(limit):
        parts = play(trainer, rounds=1, cohort_size=stacking)
    assert stacking.fit == 1
    assert 1 < stacking.records < max(whole.task.candidates.values())
    with use_records_at_once(stacking.records):
        assert measure() <= limit
    for one, other in zip(whole.messages, parts.messages, strict=True):
        for name, tensor in one.tensors.items():
            torch.testing.assert_close(tensor, other.tensors[name], atol=1e-4, rtol=0)
    named = Stacking(5)
    with use_memory(limit):
        play(replace(trainer, micro_batch=2), rounds=1, cohort_size=named)
    assert named.records == 0


def test_parts_are_never_more_than_a_client_has() -> None:
    """Even where every part is measured to fit, as where a measurement wavers."""
    asked: list[int] = []

    def measure() -> int:
        asked.append(records_at_once())
        return 50

    assert _records_that_fit(measure, whole=100, limit=60, most=10) == 8
    assert asked == [1, 2, 4, 8]
    assert _records_that_fit(measure, whole=100, limit=60, most=1) == 1
    assert _records_that_fit(measure, whole=50, limit=40, most=10) == 0
    assert _records_that_fit(measure, whole=100, limit=40, most=10) == 1


def test_what_is_measured_tells_nothing_of_members(
    play: Play, task: Task, shards: Shards
) -> None:
    """Its records are public, and its draws nobody's."""
    trainer = build_trainer("dp-fpl", {"epsilon": 8.0, "batch_size": 4})
    taken = set()
    for count in (2, 9):
        few = {c: shard.pick(torch.arange(count)) for c, shard in shards.items()}
        for key in (1, 2):
            federation = play(trainer, rounds=0, shards=few).federation
            federation = replace(federation, secrets=Seeds(0))
            at = federation.at(0, 1.0)
            place = federation.inputs(trainer, task, at)[key]
            taken.add(memory_of_step(trainer, task, place, at))
    assert len(taken) == 1


@contextmanager
def stopped_after(rounds: int) -> Iterator[Any]:
    with pytest.raises(KeyboardInterrupt):
        yield stop_after(rounds)


@pytest.mark.parametrize("more", [True, False])
def test_a_resumed_run_stacks_as_many_as_before(tmp_path: Path, more: bool) -> None:
    """Whatever memory there is then: so it comes out to the same bytes."""
    options: dict[str, Any] = {
        "seed": 0,
        "rounds": 2,
        "epochs": 1,
        "clients": 4,
        "shots": 6,
    }
    plain = train(folder=tmp_path, name="plain", **options)
    with use_memory("700kB"):
        whole = train(folder=tmp_path, name="whole", **options)
        with stopped_after(1) as stop:
            train(folder=tmp_path, name="cut", watcher=stop, **options)
    with use_memory("1GB" if more else "1kB"):
        cut = train(folder=tmp_path, name="cut", resume=True, **options)
    fit = whole.header["stacked_clients"]
    assert 1 <= fit < 4
    assert cut.header["stacked_clients"] == fit
    assert cut.transcript.head == whole.transcript.head
    assert "stacked_clients" not in plain.header
    assert plain.config.digest == whole.config.digest
    for one, other in zip(plain.transcript, whole.transcript, strict=True):
        for name, tensor in one.tensors.items():
            torch.testing.assert_close(tensor, other.tensors[name], rtol=0, atol=1e-3)


def test_a_resumed_run_has_the_parts_that_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DATASETS.names()
    monkeypatch.setitem(DATASETS._entries, "some-texts", text_data)
    options: dict[str, Any] = {
        "seed": 0,
        "rounds": 2,
        "epochs": 1,
        "clients": 2,
        "folder": tmp_path,
    }
    options |= {"model": save(tmp_path / "model", "encoder-bert"), "tested": 4}
    options |= {"dataset": "some-texts", "test_share": 0.2, "public_share": 0.2}
    with use_memory("200kB"):
        whole = train("fedpt", name="whole", **options)
        with stopped_after(1) as stop:
            train("fedpt", name="cut", watcher=stop, **options)
    with use_memory("1GB"):
        cut = train("fedpt", name="cut", resume=True, **options)
    assert 1 <= whole.header["records_at_once"] < 20
    assert whole.header["records_at_once"] == cut.header["records_at_once"]
    assert cut.transcript.head == whole.transcript.head


def test_a_run_that_nobody_limited_is_resumed_as_it_was(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "seed": 0,
        "rounds": 2,
        "epochs": 1,
        "clients": 4,
        "shots": 6,
    }
    plain = train(folder=tmp_path, name="plain", **options)
    with stopped_after(1) as stop:
        train(folder=tmp_path, name="cut", watcher=stop, **options)
    near = copytree(tmp_path / "cut", tmp_path / "near").name
    with use_memory("1kB"):
        cut = train(folder=tmp_path, name="cut", resume=True, **options)
        anew = train(folder=tmp_path, name=near, resume="near", **options)
    assert "stacked_clients" not in cut.header
    assert cut.transcript.head == plain.transcript.head
    assert anew.header["stacked_clients"] == 1


def test_shadow_models_are_stacked_as_memory_holds_them(tmp_path: Path) -> None:
    run = train(
        folder=tmp_path / "runs", rounds=1, epochs=1, clients=2, shots=6, seed=0
    )
    scores = []
    for limit in (None, "700kB"):
        copied = copytree(run.path, tmp_path / str(limit))
        with use_memory(limit):
            audit = Auditor(str(copied)).attack(clients=1, shadows=6)
        scores.append(audit.results["shadow"].clients[0].scores)
    assert abs(scores[0] - scores[1]).max() < 1e-3
