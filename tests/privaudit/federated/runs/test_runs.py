"""A run is found by its name, and what was altered since is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privaudit import Auditor, load_run, train
from privaudit.core.errors import MissingFileError, TranscriptError
from privaudit.datasets.dataset import PixelImages
from privaudit.federated.runs.folder.run_names import latest_runs, mark_latest
from privaudit.federated.runs.ledger import Ledger
from privaudit.federated.runs.runs import Run
from tests.owner_changes import sign_again


def test_a_ledger_with_other_coins_is_refused(whole: Path) -> None:
    with np.load(whole / "ledger.npz") as stored:
        owner, is_member = stored["owner"], stored["is_member"]
    np.savez(whole / "ledger.npz", owner=owner, is_member=~is_member)
    with pytest.raises(TranscriptError, match="not the ledger that was trained on"):
        Auditor(Run(whole)).attack("prompt-release", clients=1, shadows=0)


def test_a_ledger_that_does_not_fit_the_split_is_refused(whole: Path) -> None:
    run = Run(whole)
    with np.load(whole / "ledger.npz") as stored:
        owner, is_member = np.roll(stored["owner"], 1), stored["is_member"]
    np.savez(whole / "ledger.npz", owner=owner, is_member=is_member)
    sign_again(whole, ledger_hash=Ledger.load(whole / "ledger.npz").hash)
    with pytest.raises(TranscriptError, match="not the ledger that was trained on"):
        _ = run.ledger


@pytest.mark.parametrize("damaged", [b"", b"garbage", b"PK\x03\x04" + b"\0" * 40])
def test_a_damaged_ledger_is_one_clear_line(damaged: bytes, whole: Path) -> None:
    (whole / "ledger.npz").write_bytes(damaged)
    with pytest.raises(TranscriptError, match=r"ledger\.npz cannot be read"):
        _ = Run(whole).ledger
    np.savez(whole / "ledger.npz", owner=np.zeros(3), is_member=np.zeros(2))
    with pytest.raises(TranscriptError, match="owner is float64"):
        _ = Run(whole).ledger
    (whole / "ledger.npz").unlink()
    with pytest.raises(MissingFileError, match=r"no ledger\.npz"):
        _ = Run(whole).ledger


def test_another_data_set_is_refused(whole: Path) -> None:
    sign_again(whole, data_hash="0" * 64)
    with pytest.raises(TranscriptError, match="data set 'digits' has changed since"):
        _ = Run(whole).population


def test_the_data_hash_changes_with_pixels_labels_and_names(whole: Path) -> None:
    population = Run(whole).population
    dataset = population.dataset
    assert isinstance(dataset.images, PixelImages)
    others = [
        replace(dataset, images=PixelImages(dataset.images.pixels.flip(0))),
        replace(dataset, labels=dataset.labels.flip(0)),
        replace(dataset, class_names=dataset.class_names[::-1]),
    ]
    hashes = {replace(population, dataset=one).data_hash for one in others}
    assert len(hashes | {population.data_hash}) == 4


@pytest.mark.parametrize("name", ["kept/personal.safetensors", "privacy.json"])
def test_what_was_written_last_is_checked(name: str, whole: Path) -> None:
    read = {"privacy.json": "privacy"}.get(name, "personal_models")
    assert getattr(Run(whole), read)
    (whole / name).write_text("{}")
    with pytest.raises(TranscriptError, match="is not the file that the run lists"):
        getattr(Run(whole), read)
    (whole / name).unlink()
    with pytest.raises(MissingFileError, match=Path(name).name):
        getattr(Run(whole), read)


@pytest.mark.parametrize(
    "text", ["[]", "null", "{", "\xff", '{"format": 1}', '{"format": []}', "[" * 9999]
)
def test_a_damaged_header_is_one_clear_line(text: str, whole: Path) -> None:
    (whole / "run.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(TranscriptError, match="whole"):
        load_run(whole)


@pytest.mark.parametrize("progress", [None, {}, {"rounds": "2"}, {"rounds": -1}])
def test_a_header_without_progress_is_one_clear_line(
    progress: object, whole: Path
) -> None:
    sign_again(whole, progress=progress)
    with pytest.raises(TranscriptError, match=r"run\.json is damaged at progress"):
        load_run(whole)


def test_a_folder_may_be_text(originals: Path) -> None:
    run = train(folder=str(originals), name="whole", rounds=2, epochs=1, seed=0)
    assert load_run(folder=str(originals)).path == run.path.resolve()


def test_a_name_means_a_run_rather_than_a_folder_here(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "whole").mkdir()
    assert load_run("whole").path == whole
    with pytest.raises(MissingFileError, match="holds no run"):
        load_run("./whole")
    assert load_run("runs/whole").is_complete
    mark_latest([Run(whole)])
    assert [run.path for run in latest_runs()] == [whole]


@pytest.mark.parametrize("text", ["../elsewhere\n", "/etc\n", "a b\n", "\xff\n"])
def test_an_altered_marker_leads_nowhere(text: str, whole: Path) -> None:
    (whole.parent / "latest").write_bytes(text.encode("latin-1"))
    with pytest.raises(TranscriptError, match="which is no run"):
        latest_runs()
    (whole.parent / "latest").write_text("")
    with pytest.raises(MissingFileError, match="There is no run in"):
        load_run()
