"""A run is found by its name, and what was altered since is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privaudit import Auditor, load_run, train
from privaudit.core.errors import ConfigError, MissingFileError, TranscriptError
from privaudit.datasets.dataset import PixelImages
from privaudit.runs.ledger import Ledger
from privaudit.runs.run import Run, latest_runs, mark_latest, trained_clients
from tests.altered_runs import sign_again
from tests.conftest import Cli, common_cache


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
    hashes = {replace(population, dataset=one).dataset.hash for one in others}
    assert len(hashes | {population.dataset.hash}) == 4


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


QUICK: dict[str, Any] = {"rounds": 3, "epochs": 1, "participation": 0.4, "seed": 36}
LOSSY: dict[str, Any] = {"secure_aggregation": "masked", "dropout": 0.3, **QUICK}
NOBODY: dict[str, Any] = {**LOSSY, "seed": 7}  # each of its three sums is aborted


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("who")
    with common_cache(tmp_path_factory):
        train(folder=folder, name="clear", **QUICK)
        train(folder=folder, name="lossy", **LOSSY)
        train(folder=folder, name="whole", **LOSSY | {"dropout": 0.0})
        train("fedpgp", folder=folder, name="personal", **LOSSY)
        train("fedpgp", folder=folder, name="personal-clear", **QUICK)
        train(folder=folder, name="nobody", **NOBODY)
    return folder


def in_a_sum(run: Run) -> set[str]:
    """Tell who is in a sum by another way: who got a broadcast and was not lost."""
    found: set[str] = set()
    for line in run.metrics:
        said = line["secure_sum"]
        if said["outcome"] == "summed":
            asked = {
                m.receiver
                for m in run.transcript
                if m.kind == "broadcast" and m.round == line["round"]
            }
            lost = {
                c
                for c, stage in said["lost_before"].items()
                if stage not in ("signature", "revealed-shares")
            }
            assert len(asked - lost) == said["in_the_sum"]
            found |= asked - lost
    return found


def test_who_is_in_no_sum_is_no_target_of_the_server(runs: Path) -> None:
    lossy, everyone = (
        Run(runs / "lossy"),
        trained_clients(Run(runs / "clear"), "server"),
    )
    found = trained_clients(lossy, "server-aggregate")
    assert set(found) == in_a_sum(lossy)
    assert 0 < len(found) < len(everyone)
    for scenario in ("server-aggregate", "server-reconstruct"):
        audit = Auditor(lossy).attack(scenario, shadows=0)
        assert [one.client for one in audit.headline.clients] == list(found)


def test_without_losses_targets_are_those_of_an_ideal_sum(runs: Path) -> None:
    clear, whole = Run(runs / "clear"), Run(runs / "whole")
    for threat in ("server", "server-aggregate", "released", "peer:client-1"):
        assert trained_clients(whole, threat) == trained_clients(clear, threat)


def test_a_released_model_was_trained_on_by_its_owner_if_a_part_is_its_own(
    runs: Path,
) -> None:
    everyone = trained_clients(Run(runs / "personal-clear"), "released")
    assert trained_clients(Run(runs / "personal"), "released") == everyone
    for name, threat in (("personal", "server-aggregate"), ("lossy", "released")):
        found = trained_clients(Run(runs / name), threat)
        assert set(found) == in_a_sum(Run(runs / name))
        assert len(found) < len(everyone)


def test_a_run_all_of_whose_sums_were_aborted_cannot_be_attacked(runs: Path) -> None:
    with pytest.raises(ConfigError, match="no client to attack"):
        Auditor(Run(runs / "nobody")).attack("server-aggregate", shadows=0)


@pytest.mark.parametrize(("name", "aborted"), [("lossy", 1), ("whole", 0)])
def test_train_says_how_many_sums_were_aborted(
    name: str, aborted: int, runs: Path, cli: Cli
) -> None:
    words = ["train", "--rounds", "3", "--set", "epochs=1", "--participation", "0.4"]
    words += ["--secure-aggregation", "masked", "--runs", str(runs), "--name", name]
    words += ["--seed", "36", *(["--dropout", "0.3"] if name == "lossy" else [])]
    code, out, _ = cli(*words)
    assert code == 0
    is_said = "1 of 3 sums were aborted: too few survivors" in out.splitlines()
    assert is_said == bool(aborted)
    _, out, _ = cli(*words, "--json")
    assert f'"sums": 3, "aborted_sums": {aborted}' in out


@pytest.mark.parametrize("extra", [{}, {"dropout": 0.3}])
def test_who_took_part_is_read_and_not_drawn_again(
    extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A run whose participants are not those that its seed would give now."""
    others = ("client-2", "client-7")
    with monkeypatch.context() as patch:
        patch.setattr("privaudit.federation.rounds.participants_of", lambda *_: others)
        train(folder=tmp_path, name="run", **QUICK | {"rounds": 2} | extra)
    run = Run(tmp_path / "run")
    asked = {m.receiver for m in run.transcript if m.kind == "broadcast"}
    sent = {m.sender for m in run.transcript if m.kind == "update"}
    assert run.participants == [others, others]
    assert set(trained_clients(run, "server")) == sent <= set(others) < asked
