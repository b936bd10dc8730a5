"""The options about data on the command line, from one's own pictures to a run."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from privaudit import load_run
from privaudit.core.errors import TranscriptError
from privaudit.datasets.split import PUBLIC, TEST, UNUSED
from privaudit.federated.runs.folder.run_names import latest_runs
from tests.conftest import Cli

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


def test_ones_own_pictures_are_trained_on_by_their_own_split(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.chdir(pictures.parent)
    words = (
        "train", "--trainer", "zero-shot", "--dataset", "image-folder",
        "--clients", "2", "--shots", "10", "--rounds", "1", "--data",
    )  # fmt: skip
    assert cli(*words, "pictures")[0] == 0
    (run,) = latest_runs()
    monkeypatch.setenv("PRIVAUDIT_DATA", str(pictures.parent))
    before = (run.path / "run.json").stat()
    assert cli(*words, "data://pictures")[0] == 0  # another place of the same content
    assert [one.path for one in latest_runs()] == [run.path]
    assert (run.path / "run.json").stat() == before
    monkeypatch.chdir(pictures)  # the path was made whole
    split = load_run(run.path).population.split
    assert [len(split.of(one)) for one in (TEST, PUBLIC, UNUSED)] == [8, 12, 8]
    assert run.metrics[-1]["local_accuracy"] is not None


def test_other_pictures_in_their_place_are_noticed(pictures: Path, cli: Cli) -> None:
    words = ("train", "--trainer", "zero-shot", "--dataset", "image-folder")
    more = ("--data", pictures, "--clients", "2", "--members", "all")
    shares = ("--test-share", "0.2", "--public-share", "0.4", "--rounds", "1")
    assert cli(*words, *more, *shares)[0] == 0
    code, _, err = cli("attack")
    assert (code, "there are no non-members" in err) == (2, True)
    (run,) = latest_runs()
    assert run.population.split.members == "all"
    moved = pictures / "train" / "red" / "0.png"
    moved.write_bytes((pictures / "train" / "red" / "1.png").read_bytes())
    from privaudit.datasets import sources as on_disk

    on_disk._load.cache_clear()  # as in another process
    with pytest.raises(TranscriptError, match="has changed since"):
        _ = load_run(run.path).population


def test_a_missing_data_set_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cli: Cli
) -> None:
    monkeypatch.setenv("PRIVAUDIT_DATA", str(tmp_path))
    code, _, printed = cli("train", "--seed", 0, "--dataset", "dtd")
    assert (code, printed.count("\n")) == (2, 1)
    assert "https://www.robots.ox.ac.uk/~vgg/data/dtd/" in printed
    code, _, err = cli("train", "--seed", 0, "--data", tmp_path)
    assert code == 2
    assert "'digits' is part of the package" in err


def test_the_list_of_data_sets_has_four_lines_for_each_that_one_brings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cli: Cli
) -> None:
    monkeypatch.setenv("PRIVAUDIT_DATA", str(tmp_path))
    (tmp_path / "pacs").mkdir()
    code, out, _ = cli("list", "datasets")
    lines = out.splitlines()
    assert code == 0
    first = next(i for i, line in enumerate(lines) if line.startswith("pacs "))
    assert [line.split()[0] for line in lines[first + 1 : first + 4]] == [
        "needs:", "looks", "found:",
    ]  # fmt: skip
    assert any(line.startswith("digits ") for line in lines)
