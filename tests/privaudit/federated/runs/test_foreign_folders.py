"""Folders that hold what no run wrote: nothing of it is lost."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from privaudit import train
from privaudit.core.errors import ConfigError, PrivauditError
from privaudit.core.storage import file_hash
from privaudit.federated.runs.folder.own_files import BEGUN
from privaudit.federated.runs.folder.run_folder import clear_run, foreign_files
from privaudit.federated.runs.folder.run_names import runs_folder
from privaudit.federated.runs.runs import Run
from tests.conftest import Cli

QUICK: dict[str, Any] = {"seed": 0, "rounds": 1, "epochs": 1, "clients": 2}


def content(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): file_hash(path) for path in files}


def thesis(folder: Path) -> Path:
    """Return a folder that never was a run, with names that a run has, too."""
    for name in ("kept/thesis.txt", "audits/2024/paper.tex", "notes.md"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"years of work on {name}")
    return folder


def test_a_folder_that_never_was_a_run_is_left_as_it_is() -> None:
    folder = thesis(runs_folder() / "mine")
    before, mode = content(folder), folder.stat().st_mode
    for resume in (False, True):
        with pytest.raises(ConfigError, match=r"audits/2024/paper\.tex.* and no run"):
            train(name="mine", **QUICK, resume=resume)
    assert content(folder) == before
    assert folder.stat().st_mode == mode
    assert {path.name for path in folder.iterdir()} == {"kept", "audits", "notes.md"}


def test_a_run_that_lost_its_header_keeps_the_rest(whole: Path) -> None:
    """Transcript, ledger and audits were wiped by a plain train."""
    (whole / "audits" / "mine").mkdir()
    (whole / "audits" / "mine" / "audit.json").write_text("{}")
    (whole / "run.json").unlink()
    before = content(whole)
    for resume in (False, True):
        with pytest.raises(ConfigError, match=r"lost it\. Restore run\.json from a co"):
            train(name="whole", rounds=2, epochs=1, resume=resume, seed=0)
    assert content(whole) == before


def test_fresh_removes_what_a_run_wrote_and_nothing_else(cli: Cli) -> None:
    folder = thesis(runs_folder() / "mine")
    before = content(folder)
    for name in ("ledger.npz", "kept/after-0001.safetensors", "audits/x/audit.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("of a run")
    (folder / "kept" / "after-work.safetensors").write_text("mine")
    (folder / "transcript").mkdir()
    (folder / "transcript" / "round-trip.safetensors").write_text("mine")
    words = "train --name mine --fresh --rounds 1 --clients 2 --set epochs=1 --quiet"
    code, _, _ = cli(*words.split())
    assert code == 0
    after = content(folder)
    assert {name: after[name] for name in before} == before
    assert (folder / "kept" / "after-work.safetensors").read_text() == "mine"
    assert (folder / "transcript" / "round-trip.safetensors").read_text() == "mine"
    assert not (folder / "audits" / "x").exists()
    assert Run(folder).is_complete
    assert len(foreign_files(folder)) == 5


def test_fresh_names_what_stays(cli: Cli) -> None:
    thesis(runs_folder() / "mine")
    words = "train --name mine --fresh --rounds 1 --clients 2 --set epochs=1"
    code, out, _ = cli(*words.split())
    assert code == 0
    assert "files that no run writes: audits/2024/paper.tex, kept/thesis.txt" in out


@pytest.mark.parametrize("name", ["kept", "audits", "transcript"])
def test_a_link_is_not_followed_out_of_the_folder(name: str, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for file in ("personal.safetensors", "manifest.jsonl", "round-0000.safetensors"):
        (elsewhere / file).write_text("of somebody else")
    before = content(elsewhere)
    folder = runs_folder() / "linked"
    folder.mkdir(parents=True)
    (folder / name).symlink_to(elsewhere)
    for fresh in (False, True):
        with pytest.raises(ConfigError, match=f"{name} is a link"):
            train(name="linked", **QUICK, fresh=fresh)
    assert content(elsewhere) == before


def test_a_run_is_not_written_through_a_link_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    runs_folder().mkdir(exist_ok=True)
    (runs_folder() / "linked").symlink_to(tmp_path / "elsewhere")
    for fresh in (False, True):
        with pytest.raises(ConfigError, match="linked is a link"):
            train(name="linked", **QUICK, fresh=fresh)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_linked_trace_grows_in_the_run_only(cut: Path, tmp_path: Path) -> None:
    shutil.move(cut / "trace.jsonl", tmp_path / "trace")
    (cut / "trace.jsonl").symlink_to(tmp_path / "trace")
    before = (tmp_path / "trace").read_bytes()
    assert train(name="cut", rounds=3, epochs=1, resume=True, seed=0).is_complete
    assert (tmp_path / "trace").read_bytes() == before
    assert not (cut / "trace.jsonl").is_symlink()


def test_a_linked_file_is_removed_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("of somebody else")
    folder = runs_folder() / "linked"
    (folder / "audits").mkdir(parents=True)
    (folder / "ledger.npz").symlink_to(tmp_path / "ledger")
    (folder / "audits" / "signals").symlink_to(tmp_path)
    clear_run(folder)
    assert (tmp_path / "ledger").read_text() == "of somebody else"
    assert foreign_files(folder) == ["audits/signals"]


def test_a_beginning_that_was_killed_is_begun_again(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from privaudit.federated.runs import training

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training, "save_header", kill)
        for name in ("new", "whole"):
            with pytest.raises(KeyboardInterrupt):
                train(name=name, **QUICK, fresh=True)
            assert (whole.parent / name / BEGUN).exists()
    assert train(name="new", **QUICK).is_complete
    assert train(name="whole", **QUICK).is_complete
    assert not (whole / BEGUN).exists()


def test_a_file_in_the_runs_place_is_left(whole: Path) -> None:
    (whole.parent / "file").write_text("mine")
    for fresh in (False, True):
        with pytest.raises(PrivauditError):
            train(name="file", **QUICK, fresh=fresh)
    assert (whole.parent / "file").read_text() == "mine"
    shutil.rmtree(whole)
