"""Runs made again: honest ones come out, and what was altered by its owner is named."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from privaudit import Auditor, Run, train
from privaudit.auditing.scenario import Scenario
from privaudit.auditing.stored_audit import save_audit
from privaudit.core.errors import (
    ConfigError,
    MissingFileError,
    TranscriptError,
    TrustError,
)
from privaudit.core.signing import own_key, public_half
from privaudit.core.storage import file_hash
from privaudit.report.export import recompute, recompute_run
from privaudit.statistics.evidence import Limits
from tests.altered_runs import alter_messages, sign_again
from tests.conftest import Cli, common_cache
from tests.privaudit.cli.test_start import command

TINY: Any = {"rounds": 2, "clients": 2}
AUDIT = "audits/server-reconstruct"


@pytest.fixture(scope="session")
def noised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose coins and noise are of its key alone, audited twice, by limits of its own."""
    folder = tmp_path_factory.mktemp("noised")
    with common_cache(tmp_path_factory):
        run = train("dp-promptfl", folder=folder, name="noised", epsilon=8, **TINY)
        named = ["rmia:shadows=5"]
        save_audit(Auditor(run).attack(clients=1, shadows=0, attacks=named))
        limits = Limits(margin=0.1)
        save_audit(Auditor(run).attack("black-box", shadows=0, seed=4, limits=limits))
    return run.path


@pytest.fixture
def run(noised: Path) -> Run:
    return Run(shutil.copytree(noised, Path(os.environ["PRIVAUDIT_RUNS"]) / "noised"))


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs are made again."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.fixture
def to_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare bytes in any bits: they are those of one process."""
    monkeypatch.setattr(recompute, "_of_computing", lambda *_: iter(()))


def files_of(run: Run) -> dict[str, tuple[str, int]]:
    return {
        str(path): (file_hash(path), path.stat().st_mtime_ns)
        for path in run.path.rglob("*")
        if path.is_file()
    }


@pytest.mark.usefixtures("to_the_byte")
def test_noise_and_coins_of_a_key_come_out_and_nothing_is_written(
    run: Run, temporary: Path
) -> None:
    before = files_of(run)
    found = recompute_run(run.name)
    assert (found.difference, found.near, found.largest) == ("", (), 0.0)
    assert found.messages == len(run.transcript)
    assert found.audits == ["black-box", "server-reconstruct"]
    assert files_of(run) == before
    assert not [*temporary.iterdir()]


@pytest.mark.usefixtures("to_the_byte")
def test_a_run_that_was_killed_and_resumed_comes_out(cut: Path) -> None:
    with pytest.raises(ConfigError, match="stopped after 2 of 3 rounds"):
        recompute_run(cut)
    train(folder=cut.parent, name="cut", rounds=3, epochs=1, seed=0, resume=True)
    found = recompute_run(cut)
    assert (found.difference, found.near) == ("", ())


@pytest.mark.usefixtures("to_the_byte")
@pytest.mark.parametrize("seed", [None, 3])
def test_masks_come_out_of_the_key_or_of_the_seed(seed: int | None) -> None:
    run = train(
        rounds=2, clients=3, epochs=1, secure_aggregation="masked", seed=seed, name="masked",
    )  # fmt: skip
    assert {"masked", "sum"} <= {message.kind for message in run.transcript}
    found = recompute_run(run)
    assert (found.difference, found.near) == ("", ())


def test_other_bits_are_held_to_the_tolerance(run: Run) -> None:
    """By a stated reason, and with no last digit off in one process."""
    sign_again(run.path, computed={"bits": "native", "builds": {"torch": "2.1"}})
    found = recompute_run(Run(run.path))
    assert found.matches
    assert found.largest == 0.0
    assert found.near[0] == "the run has native bits of torch 2.1"


def alter_upload(
    run: Run, round: int, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Change the second client's upload of a round, and make chain and signature anew."""
    of_round = [
        i for i, m in enumerate(run.transcript) if m.round == round and m.is_update
    ]
    end = alter_messages(
        run.path, lambda t: change(t.clone()), lambda i, _: i == of_round[1]
    )
    progress = run.header["progress"] | {"head": end.head, "length": end.length}
    sign_again(run.path, progress=progress)


def last_bit(tensor: torch.Tensor) -> torch.Tensor:
    tensor.view(torch.int32).view(-1)[-1] ^= 1
    return tensor


@pytest.mark.usefixtures("to_the_byte")
def test_an_upload_of_which_one_bit_was_altered_is_named(run: Run) -> None:
    alter_upload(run, 1, last_bit)
    found = recompute_run(Run(run.path))
    assert found.difference.startswith(
        "round 1, message 4 (update from client-1 to server), "
    ), found.difference
    assert not found.audits


def test_an_upload_that_was_altered_is_named_beyond_the_tolerance(run: Run) -> None:
    sign_again(run.path, computed={"bits": "native", "builds": {}})
    off = recompute.tolerance(1)
    alter_upload(Run(run.path), 1, lambda tensor: tensor * (1 + 0.5 * off))
    assert 0.4 < recompute_run(Run(run.path)).largest < 0.6
    alter_upload(Run(run.path), 1, lambda tensor: tensor * (1 + 2 * off))
    found = recompute_run(Run(run.path))
    assert found.difference.startswith("round 1, message 4 (update from client-1")
    assert "is allowed" in found.difference


def alter_scores(run: Run, change: Callable[[dict[str, Any]], None]) -> None:
    place = run.path / AUDIT / "scores.npz"
    with np.load(place, allow_pickle=False) as arrays:
        columns = dict(arrays)
    change(columns)
    np.savez_compressed(place, allow_pickle=False, **columns)
    sign_again(run.path)


@pytest.fixture(params=[(), ("other bits",)], ids=["to the byte", "near"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare bytes, and then within the tolerance, whatever computes here."""
    monkeypatch.setattr(recompute, "_of_computing", lambda *_: iter(request.param))


@pytest.mark.usefixtures("either")
def test_scores_that_were_altered_are_named(run: Run) -> None:
    alter_scores(run, lambda columns: columns["entropy/scores"].__isub__(9.0))
    found = recompute_run(Run(run.path))
    assert found.difference.startswith(f"{AUDIT}/scores.npz, entropy/scores: ")
    assert found.audits == ["black-box"]


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("attack_results", "entropy", "auroc", "value"), 0.5),
        (("privacy", "claimed", "delta"), 0.1),
    ],
)
def test_an_audit_whose_figures_were_altered_is_named(
    run: Run, place: tuple[str, ...], value: float
) -> None:
    file = run.path / AUDIT / "audit.json"
    contents = json.loads(file.read_text())
    at = contents
    for key in place[:-1]:
        at = at[key]
    assert at[place[-1]] != value
    at[place[-1]] = value
    file.write_text(json.dumps(contents))
    sign_again(run.path)
    found = recompute_run(Run(run.path))
    assert found.difference.startswith(f"{AUDIT}/audit.json: ")


def test_a_setting_that_was_altered_is_named(whole: Path) -> None:
    config = Run(whole).header["config"]
    changed = {"settings": {**config["settings"], "epochs": 2}}
    sign_again(whole, config=config | changed)
    found = recompute_run(Run(whole)).difference
    assert found.startswith("round 0, message 11 (update from client-0 to server)")


def test_a_member_of_no_coin_is_named(whole: Path) -> None:
    truth = Run(whole).truth
    is_member = truth.is_member.copy()
    is_member[np.flatnonzero(truth.owner == 0)[0]] ^= True
    forged = replace(truth, is_member=is_member)
    (whole / "ledger.npz").write_bytes(forged.to_bytes())
    sign_again(whole, ledger_hash=forged.hash)
    found = recompute_run(Run(whole)).difference
    assert found == "ledger.npz: the run's key gives other members"


def test_a_claim_that_was_altered_is_named(run: Run) -> None:
    record = json.loads((run.path / "privacy.json").read_text())
    record["certified"]["server"]["epsilon"] = 0.1
    (run.path / "privacy.json").write_text(json.dumps(record))
    sign_again(run.path)
    found = recompute_run(Run(run.path))
    assert found.difference.startswith("privacy.json: certified/server/epsilon is 0.1")


def test_what_cannot_be_made_again_says_why(run: Run, tmp_path: Path) -> None:
    key = run.path / "kept" / "run.key"
    kept = key.read_bytes()
    key.unlink()
    with pytest.raises(MissingFileError, match=r"no run\.key in"):
        recompute_run(Run(run.path))
    key.write_bytes(kept)
    sign_again(run.path, data_hash="0" * 64)
    with pytest.raises(TranscriptError, match="'digits' has changed"):
        recompute_run(Run(run.path))
    scored = save_audit(Auditor.from_scores([0.9, 0.8], [0.1]), tmp_path / "scored")
    with pytest.raises(ConfigError, match="its models were trained elsewhere"):
        recompute_run(scored.parents[1])


def test_an_audit_by_a_scenario_of_ones_own_says_so(whole: Path) -> None:
    run = Run(whole)
    plan = Scenario("my-own", "Can it?", "server", {"mine": named_attack()})
    save_audit(Auditor(run).attack(plan))
    with pytest.raises(ConfigError, match="audit my-own of whole cannot be made again"):
        recompute_run(Run(whole))


def named_attack() -> Any:
    from privaudit.attacks.output_attacks import LossThreshold

    return LossThreshold()


def test_no_key_is_needed_or_made(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else verifies, who has no key and nowhere to put one."""
    owner = public_half(own_key())
    monkeypatch.delenv("PRIVAUDIT_SIGNING_KEY")
    monkeypatch.setenv("PRIVAUDIT_KEYS", str(tmp_path / "run.json"))
    (tmp_path / "run.json").write_text("a file, no folder")
    with pytest.raises(TrustError):
        recompute_run(run.path)
    monkeypatch.setenv("PRIVAUDIT_TRUST", owner)
    assert recompute_run(run.path).matches


def test_an_upload_that_is_no_number_is_not_near(run: Run) -> None:
    sign_again(run.path, computed={"bits": "native", "builds": {}})
    alter_upload(Run(run.path), 1, lambda tensor: tensor * torch.nan)
    found = recompute_run(Run(run.path))
    assert found.difference.startswith("round 1, message 4 (update from client-1")


def test_a_process_that_is_told_to_end_leaves_nothing(
    run: Run, temporary: Path
) -> None:
    """Also not the copy of the run's key."""
    code = (
        "import os, signal, sys\n"
        "from privaudit.report.export import recompute\n"
        "def told(*_): os.kill(os.getpid(), signal.SIGTERM)\n"
        "recompute.train_again = told\n"
        "recompute.recompute_run(sys.argv[1])\n"
    )
    environment = {**os.environ, "TMPDIR": str(temporary)}
    command = [sys.executable, "-c", code, str(run.path)]
    done = subprocess.run(command, env=environment, check=False)
    assert done.returncode == -signal.SIGTERM
    assert not [*temporary.iterdir()]


def test_ctrl_c_leaves_nothing(run: Run, temporary: Path) -> None:
    seen: list[Path] = []

    def stop(event: Any) -> None:
        seen.extend(temporary.rglob("run.key"))
        if seen:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recompute_run(run, watcher=stop)
    assert seen
    assert not [*temporary.iterdir()]


def test_the_command_says_what_came_of_it(run: Run, cli: Cli) -> None:
    out = cli.done("verify", "--recompute", run.name)
    assert out.startswith(f"{run.place} comes out")
    alter_upload(run, 1, lambda tensor: tensor + 1)
    code, out, _ = cli("verify", run.name, "--recompute")
    assert code == 1
    assert "DIFFERS first in round 1, message 4 (update from client-1 to server)" in out
    shutil.rmtree(run.path)
    assert "holds no run" in cli.refused("verify", "--recompute", run.name)


@pytest.mark.slow
def test_the_command_takes_the_bits_of_the_run(tmp_path: Path) -> None:
    """Portable ones in a shell of native ones, and with as many threads."""
    tiny = ("--trainer", "promptfl:epochs=1", "--rounds", "1", "--clients", "2")
    command(tmp_path, "train", "--bits", "portable", *tiny, "--name", "a", "--quiet")
    attack = ("attack", "a", "--bits", "portable", "--shadows", "0", "--quiet")
    command(tmp_path, *attack)
    runs = ("--runs", os.environ["PRIVAUDIT_RUNS"])
    done = command(tmp_path, "verify", "--recompute", *runs)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(
        "comes out to the byte: 8 messages, and the audits server-reconstruct.\n"
    )
