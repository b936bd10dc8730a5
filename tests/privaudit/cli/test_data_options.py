"""The options about data on the command line, from one's own pictures to a run."""

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from privaudit import load_run
from privaudit.cli import main as cli
from privaudit.core.errors import TranscriptError
from privaudit.datasets.split import PUBLIC, TEST, UNUSED
from privaudit.federated.runs.runs import latest_runs

SIZES = {"train": 14, "val": 6, "test": 4}


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Grey and red pictures, in three parts."""
    rng = np.random.default_rng(0)
    for part, count in SIZES.items():
        for label, name in enumerate(("grey", "red")):
            folder = tmp_path / "pictures" / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(60, 90, (12, 16, 3), dtype=np.uint8)
                pixels[..., 0] += np.uint8(150 * label)
                buffer = io.BytesIO()
                Image.fromarray(pixels).save(buffer, "png")
                (folder / f"{number}.png").write_bytes(buffer.getvalue())
    return tmp_path / "pictures"


def call(*words: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["privaudit", *words])
    with pytest.raises(SystemExit) as end:
        cli.run()
    return int(end.value.code or 0)


def test_ones_own_pictures_are_trained_on_by_their_own_split(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pictures.parent)
    code = call(
        "train", "--trainer", "zero-shot", "--dataset", "image-folder",
        "--data", "pictures", "--clients", "2", "--shots", "10", "--rounds", "1",
        monkeypatch=monkeypatch,
    )  # fmt: skip
    assert code == 0
    (run,) = latest_runs()
    monkeypatch.chdir(pictures)  # the path was made whole
    split = load_run(run.path).population.split
    assert [len(split.of(one)) for one in (TEST, PUBLIC, UNUSED)] == [8, 12, 8]
    assert run.metrics[-1]["local_accuracy"] is not None


def test_other_pictures_in_their_place_are_noticed(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("train", "--trainer", "zero-shot", "--dataset", "image-folder")
    more = ("--data", str(pictures), "--clients", "2", "--members", "all")
    shares = ("--test-share", "0.2", "--public-share", "0.4", "--rounds", "1")
    assert call(*words, *more, *shares, monkeypatch=monkeypatch) == 0
    assert call("attack", monkeypatch=monkeypatch) == 2
    assert "there are no non-members" in capsys.readouterr().err
    (run,) = latest_runs()
    assert run.population.split.members == "all"
    moved = pictures / "train" / "red" / "0.png"
    moved.write_bytes((pictures / "train" / "red" / "1.png").read_bytes())
    from privaudit.datasets import sources as on_disk

    on_disk._load.cache_clear()  # as in another process
    with pytest.raises(TranscriptError, match="has changed since"):
        _ = load_run(run.path).population


def test_a_missing_data_set_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PRIVAUDIT_DATA", str(tmp_path))
    assert call("train", "--dataset", "dtd", monkeypatch=monkeypatch) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "https://www.robots.ox.ac.uk/~vgg/data/dtd/" in printed
    code = call("train", "--data", str(tmp_path), monkeypatch=monkeypatch)
    assert code == 2
    assert "'digits' is part of the package" in capsys.readouterr().err


def test_the_list_of_data_sets_has_four_lines_for_each_that_one_brings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PRIVAUDIT_DATA", str(tmp_path))
    (tmp_path / "pacs").mkdir()
    assert call("list", "datasets", monkeypatch=monkeypatch) == 0
    lines = capsys.readouterr().out.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("pacs "))
    assert [line.split()[0] for line in lines[first + 1 : first + 4]] == [
        "needs:", "looks", "found:",
    ]  # fmt: skip
    assert any(line.startswith("digits ") for line in lines)
