"""What guards a run: its lock, its names, and the checks before anything is dropped."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from privaudit import train
from privaudit.cli.progress import Event
from privaudit.core.errors import (
    ConfigError,
    PrivauditError,
    RunInUseError,
    TranscriptError,
)
from privaudit.core.portable_bits import bits_here
from privaudit.core.storage import file_hash
from privaudit.core.tensors import Tensors
from privaudit.datasets.named_places import content_hash_of
from privaudit.runs.config import make_config
from privaudit.runs.run import Run, latest_runs
from privaudit.runs.run_files import TRACKED
from privaudit.runs.run_folder import lock_run
from privaudit.runs.utility import measure_clients
from privaudit_tools.benchmarks.many_clients import write_embeddings
from tests.altered_runs import sign_again
from tests.conftest import Cli, refuse, train_and_stop

HOLDER = """
import sys
from pathlib import Path
from privaudit.core.errors import RunInUseError
from privaudit.runs.run_header import read_header, save_header
from privaudit.runs.run_folder import lock_run
path = Path(sys.argv[1])
while True:
    try:
        with lock_run(path) as lease:
            print("holds", flush=True)
            sys.stdin.readline()
            save_header(path, read_header(path).content, lease)
    except RunInUseError as error:
        print(error, flush=True)
"""


def content(run: Path) -> dict[str, str]:
    return {
        str(path.relative_to(run)): file_hash(path)
        for path in sorted(run.rglob("*"))
        if path.is_file() and not path.name.startswith(".lease-")
    }


def refuse_to_resume(
    cut: Path, match: str, error: type[PrivauditError] = TranscriptError
) -> None:
    """Check that a run does not go on, and that nothing of it is changed."""
    before = content(cut)
    with pytest.raises(error, match=match):
        train(name="cut", rounds=3, epochs=1, resume=True, seed=0)
    assert content(cut) == before


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")
def test_one_process_trains_a_run_until_it_stands_still_or_is_killed(
    cut: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVAUDIT_LEASE", "2")
    command, pipe = [sys.executable, "-c", HOLDER, str(cut)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"holds\n"
        before = content(cut)
        refuse_to_resume(cut, "Another process is training .*cut", RunInUseError)
        with pytest.raises(RunInUseError, match="Another process is training"):
            train(name="cut", rounds=3, epochs=1, fresh=True, seed=0)
        assert content(cut) == before
        os.kill(holder.pid, signal.SIGSTOP)
        time.sleep(2)
        run = train(name="cut", rounds=3, epochs=1, resume=True, seed=0)
        after = content(cut)
        os.kill(holder.pid, signal.SIGCONT)
        holder.stdin.write(b"\n")
        assert b"was taken over by" in holder.stdout.readline()
        assert holder.stdout.readline() == b"holds\n"
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    with lock_run(cut):
        assert content(cut) == after
    assert run.is_complete


def test_a_run_cannot_be_trained_from_within_itself(cut: Path) -> None:
    def again(event: Event) -> None:
        train(name="cut", rounds=3, epochs=1, resume=True, seed=0)

    with pytest.raises(RunInUseError, match="Another process"):
        train(name="cut", rounds=3, epochs=1, fresh=True, watcher=again, seed=0)


def test_a_finished_run_is_returned_without_a_lock(whole: Path) -> None:
    (whole / ".lock").unlink()
    assert train(name="whole", rounds=2, epochs=1, seed=0).is_complete
    assert not (whole / ".lock").exists()


def test_states_of_before_that_a_kill_left_go_while_nobody_else_writes(
    whole: Path,
) -> None:
    left = whole / "kept" / "after-0001.safetensors"
    left.write_bytes(b"")
    with lock_run(whole), pytest.raises(RunInUseError):
        train(name="whole", rounds=2, epochs=1, seed=0)
    assert left.exists()
    train(name="whole", rounds=2, epochs=1, seed=0)
    assert not left.exists()


def test_nothing_is_written_if_the_configuration_cannot_run() -> None:
    with pytest.raises(ConfigError):
        train(name="none", clients=30, partition="pathological", seed=0)
    assert not Path(os.environ["PRIVAUDIT_RUNS"]).exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: lines[:3],
        lambda lines: [lines[1], lines[0], *lines[2:]],
        lambda lines: [lines[0], b"garbage", *lines[2:]],
        lambda lines: [lines[0], b"\xff" + lines[1], *lines[2:]],
        lambda lines: [],
    ],
)
def test_a_damaged_manifest_is_refused_before_anything_is_dropped(
    damage: Callable[[list[bytes]], list[bytes]], cut: Path
) -> None:
    manifest = cut / "transcript" / "manifest.jsonl"
    lines = manifest.read_bytes().splitlines()
    manifest.write_bytes(b"".join(line + b"\n" for line in damage(lines)))
    refuse_to_resume(cut, r"manifest\.jsonl")


@pytest.mark.parametrize(
    "name", ["transcript/round-0001.safetensors", "kept/after-0002.safetensors"]
)
def test_altered_tensors_are_refused_before_anything_is_dropped(
    name: str, cut: Path
) -> None:
    altered = bytearray((cut / name).read_bytes())
    altered[-1] ^= 1
    (cut / name).write_bytes(bytes(altered))
    refuse_to_resume(cut, Path(name).name)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text.splitlines()[0],
        lambda text: "\n".join(reversed(text.splitlines())),
        lambda text: "garbage\n" + text,
        lambda text: "[]\n" + text,
        lambda text: text.replace('"mechanisms": []', '"mechanisms": [1]', 1),
    ],
)
def test_metrics_that_lack_a_round_certify_nothing(
    damage: Callable[[str], str], cut: Path
) -> None:
    metrics = cut / "metrics.jsonl"
    metrics.write_text(damage(metrics.read_text()))
    refuse_to_resume(cut, r"metrics\.jsonl does not hold its 2 rounds")
    with pytest.raises(TranscriptError, match=r"metrics\.jsonl"):
        _ = Run(cut).metrics


def fill(folder: Path, seed: int) -> None:
    """Write 60 pictures of two classes, and forget what hash a place had."""
    rng = np.random.default_rng(seed)
    for place in (folder / kind / f"{n}.png" for kind in "ab" for n in range(30)):
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(place)
    content_hash_of.cache_clear()


def test_a_run_of_other_data_at_the_same_place_is_refused(tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "seed": 0,
        "dataset": "image-folder",
        "data": tmp_path / "data",
    }
    asked |= {"rounds": 1, "clients": 2, "test_share": 0.3, "name": "one"}
    fill(tmp_path / "data", 1)
    run = train("zero-shot", **asked)
    assert train("zero-shot", **asked).header == run.header
    fill(tmp_path / "data", 2)
    with pytest.raises(ConfigError, match="another configuration, or of other data"):
        train("zero-shot", **asked)
    with pytest.raises(ConfigError, match="another configuration, or of other data"):
        train("zero-shot", **asked, resume=True)
    sign_again(run.path, identity_hash="")  # as earlier versions left it
    assert train("zero-shot", **asked).path == run.path


def test_lines_after_the_last_round_that_counts_are_dropped(cut: Path) -> None:
    with (cut / "metrics.jsonl").open("a") as file:
        file.write('{"round": 2, "mech')
    with (cut / "transcript" / "manifest.jsonl").open("ab") as file:
        file.write(b'{"round": 2, \xff')
    run = train(name="cut", rounds=3, epochs=1, resume=True, seed=0)
    assert [entry["round"] for entry in Run(run.path).metrics] == [0, 1, 2]
    assert run.transcript.end.length == run.header["progress"]["length"]


def test_a_fresh_run_keeps_nothing_of_the_old_one(whole: Path) -> None:
    for name in ("audits/old/audit.json", "kept/after-0009.safetensors"):
        (whole / name).parent.mkdir(exist_ok=True)
        (whole / name).write_text("old")
    train_and_stop(1, name="whole", rounds=2, fresh=True, epochs=1, seed=0)
    assert not list((whole / "audits").iterdir())
    assert [p.name for p in (whole / "kept").iterdir()] == ["after-0001.safetensors"]
    assert not (whole / "privacy.json").exists()
    assert len(Run(whole).metrics) == 1


@pytest.mark.parametrize("name", ["a b", "sub/x", "../x", "latest", ".hidden", "a\nb"])
def test_a_name_that_could_be_a_path_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be called"):
        train(name=name, rounds=1, epochs=1, seed=0)


def test_other_threads_or_versions_do_not_go_on_silently(cut: Path) -> None:
    there = torch.get_num_threads()
    sign_again(cut, threads=there + 1)
    says = f"trained with {there + 1} threads.*OMP_NUM_THREADS={there + 1}"
    refuse_to_resume(cut, says, ConfigError)
    other = "native" if bits_here() == "portable" else "portable"
    sign_again(cut, threads=there, computed={"bits": other})
    refuse_to_resume(cut, f"trained in {other} bits.*Add --bits {other}", ConfigError)
    versions = {name: version(name) for name in TRACKED}
    sign_again(
        cut, computed={"bits": bits_here()}, libraries=versions | {"torch": "0.1"}
    )
    says = r"trained with torch 0\.1, .* is installed.*--fresh"
    refuse_to_resume(cut, says, ConfigError)


BASE = ("train", "--trainer", "zero-shot", "--rounds", "1", "--clients")


def test_shards_and_a_sample_of_tested_clients(cli: Cli) -> None:
    words = ("--partition", "shards", "--shards", "1", "--tested-clients", "5")
    assert cli(*BASE, "60", *words)[0] == 0
    (run,) = latest_runs()
    population = run.population
    sizes = {len(population.indices(client)) for client in population.task.clients}
    assert sizes == {8, 9}
    tested = population.tested_clients
    assert tested is not None
    assert len(set(tested)) == 5
    utility = measure(run, run.personal_models)
    assert utility.tested_clients == 5
    chosen = {client: run.personal_models[client] for client in tested}
    assert utility == measure(run, chosen)
    assert run.metrics[-1]["mix_accuracy"] == utility.mix.value


def test_of_many_clients_a_sample_is_measured_and_the_first_line_says_so(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert make_config("promptfl", clients=301).measured_clients == 100
    monkeypatch.setattr("privaudit.runs.config.MANY_CLIENTS", 50)
    monkeypatch.setattr("privaudit.runs.config.SAMPLED_CLIENTS", 5)
    words = (*BASE, "60", "--partition", "shards", "--shards", "1")
    code, _, err = cli(*words)
    assert code == 0, err
    assert err.startswith("Utility is measured of 5 of 60 clients, drawn by the seed.")
    (run,) = latest_runs()
    assert measure(run, run.personal_models).tested_clients == 5
    assert "Utility is measured of" not in cli(*words, "--tested-clients", "60")[2]


def measure(run: Any, models: Mapping[str, Tensors]) -> Any:
    return measure_clients(run.trainer, run.population, models)


def test_natural_clients_are_owners_and_are_tested_on_their_classes(
    cli: Cli, tmp_path: Path
) -> None:
    data = write_embeddings(tmp_path / "bank.npz", 20)
    words = ("--dataset", "feature-bank", "--data", str(data), "--tested", "50")
    assert cli(*BASE, "20", *words, "--partition", "natural")[0] == 0
    (run,) = latest_runs()
    population, owners = run.population, run.population.dataset.domains
    assert owners is not None
    for number, client in enumerate(population.task.clients):
        positions = population.indices(client)
        assert set(owners[positions].tolist()) == {number}
        assert population.own_records(client).any()
    assert run.metrics[-1]["local_accuracy"] is not None


def test_sizes_by_a_power_law_and_owners_that_are_not_there(cli: Cli) -> None:
    words = ("--partition", "sizes", "--sizes", "power:1.5")
    assert cli(*BASE, "4", *words)[0] == 0
    (run,) = latest_runs()
    sizes = [len(run.population.indices(c)) for c in run.population.task.clients]
    assert sizes[0] > 2 * sizes[1] > 3 * sizes[2] > 0
    for other, match in (
        (["--partition", "natural"], "does not say whose its records are"),
        (["--partition", "sizes", "--sizes", "5;6"], "sizes"),
    ):
        refuse(cli, match, *BASE, "4", *other)
