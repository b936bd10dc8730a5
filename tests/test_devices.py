"""Runs and audits on another device: what agrees, what is refused, what is noted."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from privaudit import Auditor, load_run, train, use_device
from privaudit.core.devices import CPU, chosen_device, find_device, moved
from privaudit.core.errors import ConfigError
from privaudit.core.tensors import Stacked
from privaudit.federation.on_device import class_on_device, on_device
from privaudit.federation.trainer import TRAINERS, Cohort, LocalResult, Round, Task
from privaudit.models import feature_cache
from privaudit.models.clip import shared_prefix
from privaudit.models.precisions import seconds_of
from privaudit.trainers.promptfl import PromptFL
from tests.conftest import Cli, train_and_stop
from tests.simulated_device import DEVICE, another_device, assert_agree, reads, task_on
from tests.toy_federation import Play, Shards
from tests.toy_language import toy_dialogues, toy_writing_task

pytestmark = pytest.mark.gpu
simulated = pytest.mark.skipif(
    "TEST_DEVICE" in os.environ, reason="only the simulated device counts what is read"
)
QUICK: dict[str, Any] = {"seed": 0, "rounds": 2, "epochs": 1, "clients": 3, "shots": 8}


@contextmanager
def elsewhere() -> Iterator[torch.device]:
    with another_device() as device, use_device(device):
        yield device


@pytest.mark.parametrize("trainer", ["promptfl", "dp-fpl"])
def test_a_run_and_its_audit_agree_with_the_cpus(
    trainer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "TEST_DEVICE" not in os.environ:  # the simulated device has no fused attention
        monkeypatch.setattr(shared_prefix, "_fuses", lambda queries: False)
    # Of one file of features, which in portable bits another device does not read.
    monkeypatch.setattr(feature_cache, "bits_here", lambda: "native")
    quick: dict[str, Any] = {"rounds": 1, "clients": 3, "shots": 8, "seed": 1}
    quick["settings"] = {"epsilon": 8.0} if trainer == "dp-fpl" else {"epochs": 2}
    here = train(trainer, **quick, name="here")
    audit = Auditor(here).attack(shadows=5, clients=1)
    with elsewhere() as device:
        there = train(trainer, **quick, name="there")
        again = Auditor(there).attack(shadows=5, clients=1)
    assert there.header["device"]["kind"] == device.type
    for one, other in zip(here.transcript, there.transcript, strict=True):
        assert_agree(one.tensors, other.tensors)
    if device == DEVICE:  # which computes as the CPU does
        assert there.transcript.head == here.transcript.head
        assert again.measured_utility.local == audit.measured_utility.local
    for name, result in audit.results.items():
        assert again.results[name].auroc.value == pytest.approx(
            result.auroc.value, abs=0.02
        )


@pytest.mark.usefixtures("few_scenes")
def test_a_model_that_writes_agrees_with_the_cpus() -> None:
    few: dict[str, Any] = {"rounds": 1, "clients": 2, "shots": 4, "tested": 4}
    few |= {"public_share": 0.1, "seed": 1}
    here = train("lora-fedavg", **few, name="here")
    audit = Auditor(here).attack(clients=1)
    with elsewhere():
        there = train("lora-fedavg", **few, name="there")
        again = Auditor(there).attack(clients=1)
    for one, other in zip(here.transcript, there.transcript, strict=True):
        assert_agree(one.tensors, other.tensors)
    for name, result in audit.results.items():  # weights' by directions at rounding
        near = 0.25 if name in ("joint-regression", "projection-residual") else 0.05
        assert again.results[name].auroc.value == pytest.approx(
            result.auroc.value, abs=near
        )


def test_what_computes_elsewhere_can_be_seen() -> None:
    """One class for each kind and device; the trainer that was given keeps its own."""
    trainer, device = PromptFL(epochs=2), torch.device("meta")
    there: Any = on_device(trainer, device)
    assert there.computes_on == device
    assert repr(there) == repr(trainer)
    assert type(there.single_step()) is class_on_device(PromptFL, device)
    assert type(on_device(PromptFL(), device)) is type(there)
    assert type(trainer) is PromptFL
    assert on_device(trainer, CPU) is trainer


class MakesTensorsOnTheCPU(PromptFL):
    """What a trainer does wrong that names a device."""

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        shift = torch.zeros(received["context"].shape, device="cpu")
        moved_on = {"context": received["context"] + shift}
        return super().local_update(task, cohort, moved_on, kept, at)


def test_a_step_that_mixes_devices_is_found(task: Task, play: Play) -> None:
    trainer = MakesTensorsOnTheCPU()
    play(trainer, 1)
    with (
        another_device() as device,
        pytest.raises(RuntimeError, match=r"two devices|same device"),
    ):
        play(on_device(trainer, device), 1, task=task_on(task, device))


CLIPS = "clipping looks whether gradients are finite"
WRITES = "a writing model looks which positions hold answers"
WAITS = {
    "fedotp": "optimal transport looks whether it has converged",
    "dp-fedotp": f"likewise, and {CLIPS}",
    **dict.fromkeys(("dp-fedpgp", "dp-pfedmoap", "dp-promptfl"), CLIPS),
    **dict.fromkeys(("fedrand", "lora-fedavg", "lora-fedpara", "lora-fedper"), WRITES),
}
"""Trainers whose steps read a number from the device, and why."""


@simulated
@pytest.mark.parametrize("name", [*TRAINERS.names(), "fedpt peft_method=full"])
def test_no_local_step_waits_for_the_device_but_where_that_is_listed(
    name: str, task: Task, shards: Shards, play: Play
) -> None:
    """Four steps read as many numbers from it as two do; of every trainer."""
    name, _, method = name.partition(" peft_method=")
    kind: Any = TRAINERS.find(name)
    have = {field.name for field in fields(kind())}
    lengths = have & {"epochs", "steps", "tuning_epochs"}
    if getattr(kind(), "epochs", 1) == 0:  # of published modes alone
        lengths -= {"epochs"}
    options: dict[str, Any] = {"peft_method": method} if method else {}
    if "batch_size" in have and kind().batch_size is not None:
        options["batch_size"] = 0
    if kind().task == "generation":
        task = toy_writing_task()
        shards = {c: toy_dialogues(len(own), 10) for c, own in shards.items()}
    counts = []
    for steps in (2, 4):
        options |= dict.fromkeys(lengths, steps)
        with another_device() as device:
            reads.clear()
            there = on_device(kind(**options), device)
            play(there, 1, task=task_on(task, device), shards=shards)
            counts.append(len(reads))
    assert 0 < counts[0] <= counts[1]
    assert (counts[0] < counts[1]) == (name in WAITS)


@simulated
def test_reading_a_number_in_a_step_is_found() -> None:
    with another_device() as device:
        there = torch.ones(3).to(device)
        reads.clear()
        assert there.sum().item() == 3
        assert bool(there.any())
        assert there.cpu().nonzero().sum() == 3
        assert len(reads) == 3


def test_numpy_cannot_read_what_is_on_another_device() -> None:
    with (
        another_device() as device,
        pytest.raises((RuntimeError, TypeError), match="numpy"),
    ):
        torch.zeros(3).to(device).numpy()


def test_draws_are_those_of_the_cpu(task: Task, play: Play) -> None:
    seeds = play(PromptFL(), 0).federation.seeds
    here = seeds.stream("noise").normal_tensor((5,))
    with another_device() as device, torch.device(device):
        there = seeds.stream("noise").normal_tensor((5,))
        assert there.device == device
    assert torch.equal(moved(there, torch.device("cpu")), here)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gpu", "There is no device 'gpu'. Use auto, cpu"),
        ("cuda:x", "There is no device 'cuda:x'"),
        ("cpu:1", "There is no device 'cpu:1'"),
        ("cuda:99", "The device cuda:99 was requested"),
        ("", "There is no device ''"),
    ],
)
def test_a_device_that_is_not_there_is_refused(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        find_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_without_cuda_it_is_refused_before_anything_is_written(
    cli: Cli, tmp_path: Path
) -> None:
    err = cli.refused(
        "train", "--seed", 0, "--device", "cuda", "--runs", tmp_path / "runs"
    )
    assert "sees no CUDA device here. Use --device cpu" in err
    assert not (tmp_path / "runs").exists()
    assert find_device("auto") == torch.device("cpu")


def test_an_amount_of_memory_is_read_before_anything_is_written(
    tmp_path: Path, cli: Any
) -> None:
    err = cli.refused(
        "train", "--seed", 0, "--memory", "lots", "--runs", tmp_path / "runs"
    )
    assert "'lots' is no amount of memory. Give one such as 20GiB" in err
    assert not (tmp_path / "runs").exists()
    code, _, _ = cli(
        *("train", "--memory", "30kB", "--checkpointing", "--rounds", 1),
        *("--clients", 2, "--shots", 4, "--name", "tight", "--runs", tmp_path),
    )
    assert code == 0
    header = load_run("tight", folder=tmp_path).header
    assert header["stacked_clients"] == 1


def test_the_chosen_device_ends_with_the_block() -> None:
    with another_device() as device:
        with use_device(device):
            assert chosen_device() == device
            with use_device("cpu"):
                assert chosen_device().type == "cpu"
        assert chosen_device().type == "cpu"


def test_a_run_goes_on_elsewhere_only_if_that_is_asked_for(
    cli: Cli, tmp_path: Path
) -> None:
    train_and_stop(1, "promptfl", **QUICK)
    before = load_run("cut").header
    with elsewhere():
        with pytest.raises(ConfigError, match=r"trained on cpu, and .* is chosen"):
            train("promptfl", **QUICK, name="cut", resume=True)
        assert load_run("cut").header == before
        train("promptfl", **QUICK, name="cut", resume="near")
    header = json.loads((load_run("cut").path / "run.json").read_text())
    assert header["device"]["kind"] != "cpu"
    assert [part["rounds"] for part in header["earlier"]] == [1]
    assert header["earlier"][0]["device"] == before["device"]
    assert (header["equal_bytes"], "equal_bytes" in before) == (False, False)
    words = ("attack", "cut", "--scenario", "prompt-release", "--shadows", "0")
    assert cli(*words)[0] == 0
    said = "resumed with --resume-near, elsewhere after round 1"
    page = load_run("cut").path / "audits" / "prompt-release" / "report.html"
    assert said in page.read_text()
    assert cli("export", "cut", "--public", tmp_path / "card")[0] == 0
    assert said in cli("verify", tmp_path / "card")[1]


@pytest.mark.usefixtures("few_scenes")
@pytest.mark.parametrize("trainer", ["promptfl", "lora-fedavg"])
def test_a_coarser_precision_is_another_run_near_the_first(trainer: str) -> None:
    few: dict[str, Any] = {"rounds": 1, "clients": 2, "shots": 4, "seed": 1}
    few |= {"tested": 4} if trainer == "lora-fedavg" else {}
    fine = train(trainer, **few)
    coarse = train(trainer, **few, precision="bfloat16")
    assert coarse.config.short_hash != fine.config.short_hash
    for one, other in zip(fine.transcript, coarse.transcript, strict=True):
        assert {t.dtype for t in other.tensors.values()} == {torch.float32}
        assert one.tensors.keys() == other.tensors.keys()
    losses = [run.metrics[0]["training_loss"] for run in (fine, coarse)]
    assert losses[0] != losses[1]
    assert abs(losses[0] - losses[1]) < 0.02 * losses[0]


def test_auto_is_the_faster_precision_or_that_of_a_run_that_is_there(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(float32: float, bfloat16: float) -> None:
        found = {"float32": float32, "bfloat16": bfloat16}
        where = "privaudit.runs.training.seconds_of"
        monkeypatch.setattr(where, lambda device: found)

    few: dict[str, Any] = {
        "seed": 0,
        "rounds": 2,
        "epochs": 1,
        "clients": 2,
        "shots": 4,
    }
    words = ("--rounds", 2, "--set", "epochs=1", "--clients", 2, "--shots", 4)
    measured(2e-3, 1e-3)
    out = cli.done(
        "train", "--seed", 0, "--precision", "auto", *words, "--runs", tmp_path
    )
    assert "precision bfloat16: a layer took 2 ms in float32, 1 ms in bfloat16" in out
    coarse = load_run(folder=tmp_path)
    assert coarse.header["precision_seconds"] == {"float32": 2e-3, "bfloat16": 1e-3}
    assert coarse.config.precision == "bfloat16"
    named = train(folder=tmp_path, precision="bfloat16", **few)
    assert (named.name, named.config) == (coarse.name, coarse.config)
    train_and_stop(1, folder=tmp_path, precision="auto", **few)
    measured(1e-3, 2e-3)  # from now on
    resumed = train(folder=tmp_path, precision="auto", name="cut", resume=True, **few)
    assert resumed.transcript.head == coarse.transcript.head
    assert train(folder=tmp_path, precision="auto", **few).name == coarse.name
    fine = train(folder=tmp_path, precision="auto", fresh=True, **few)
    assert fine.config.precision == "float32"
    assert fine.config.short_hash != coarse.config.short_hash


def test_both_precisions_are_measured() -> None:
    assert all(taken > 0 for taken in seconds_of(torch.device("cpu")).values())


def test_prompts_are_not_learned_in_float16() -> None:
    with pytest.raises(ConfigError, match="Use float32 or bfloat16"):
        train("promptfl", rounds=1, precision="float16", seed=0)
