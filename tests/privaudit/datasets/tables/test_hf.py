"""Folders as the hub and the library ``datasets`` lay them out, written with pyarrow."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from typer.testing import CliRunner

from privaudit import Auditor
from privaudit.cli.main import app
from privaudit.core.errors import ConfigError, MissingFileError, PrivauditError
from privaudit.datasets.dataset import TEST_SPLIT, TRAIN
from privaudit.datasets.sources import TableColumns, load_dataset
from privaudit.datasets.tables.columns import TablePictures
from privaudit.datasets.tables.hf import find_tables, read_hf
from privaudit.runs.config import make_config
from privaudit.runs.run import load_run
from tests.privaudit.datasets.conftest import parts_of, texts_of

pyarrow = pytest.importorskip("pyarrow", reason="needs the extra hf (pyarrow)")
parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra hf (pyarrow)")

NAMES = ["cat", "stop_sign"]
FEATURES = {
    "image": {"_type": "Image"},
    "label": {"names": NAMES, "_type": "ClassLabel"},
}
CARD = """---
license: mit
dataset_info:
  features:
  - name: image
    dtype: image
  - name: label
    dtype:
      class_label:
        names:
          '0': cat
          '1': stop_sign
  splits:
  - name: train
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*
  - split: test
    path: data/test-*
---
# Pets
"""


def pictures(count: int, seed: int = 0) -> list[dict[str, Any]]:
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 6, 8, 3), np.uint8)
    return [{"bytes": png(one), "path": f"{n}.png"} for n, one in enumerate(pixels)]


def png(pixels: Any) -> bytes:
    file = BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def rows(count: int, seed: int = 0) -> dict[str, Any]:
    labels = [n % 2 for n in range(count)]
    owners = [("ann", "ben")[n // 2 % 2] for n in range(count)]
    said = [f"a picture of {n}" for n in range(count)]
    return {
        "image": pictures(count, seed), "label": labels, "text": said, "who": owners,
    }  # fmt: skip


def table(columns: Mapping[str, Any], features: Any = FEATURES) -> Any:
    made = pyarrow.table(dict(columns))
    if features is None:
        return made
    noted = json.dumps({"info": {"features": features}})
    return made.replace_schema_metadata({"huggingface": noted})


def write_parquet(file: Path, columns: Mapping[str, Any], features: Any = None) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table(columns, features), file, row_group_size=3)


def write_arrow(folder: Path, columns: Mapping[str, Any], batch: int = 3) -> None:
    """Write what ``Dataset.save_to_disk`` writes."""
    folder.mkdir(parents=True)
    made, name = table(columns), "data-00000-of-00001.arrow"
    with pyarrow.ipc.new_stream(folder / name, made.schema) as stream:
        stream.write_table(made, batch)
    state = {"_data_files": [{"filename": name}], "_split": folder.name}
    (folder / "state.json").write_text(json.dumps(state))


def hub(path: Path) -> Path:
    write_parquet(path / "data/train-00000-of-00002.parquet", rows(4))
    write_parquet(path / "data/train-00001-of-00002.parquet", rows(4, seed=1))
    write_parquet(path / "data/test-00000-of-00001.parquet", rows(2, seed=2))
    (path / "README.md").write_text(CARD)
    return path


def saved(path: Path) -> Path:
    more = rows(4, seed=1)
    whole = {name: [*column, *more[name]] for name, column in rows(4).items()}
    write_arrow(path / "train", whole)
    write_arrow(path / "test", rows(2, seed=2))
    (path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    return path


def by_name(path: Path) -> Path:
    for number in range(2):
        file = path / f"train-{number}.parquet"
        write_parquet(file, rows(4, seed=number), FEATURES)
    write_parquet(path / "test.parquet", rows(2, seed=2), FEATURES)
    write_parquet(path / ".hidden/train.parquet", rows(2, seed=2))
    return path


def decoded(*parts: tuple[int, int]) -> Tensor:
    """Oracle: the pictures of some parts, decoded one by one."""
    return torch.stack(
        [
            torch.from_numpy(np.array(Image.open(BytesIO(one["bytes"])))).permute(
                2, 0, 1
            )
            for count, seed in parts
            for one in pictures(count, seed)
        ]
    )


@pytest.mark.parametrize("write", [hub, saved, by_name])
def test_pictures_are_read_from_every_layout(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    dataset = load_dataset(f"hf:{write(tmp_path / 'pets')}")
    expected = decoded((4, 0), (4, 1), (2, 2))
    assert isinstance(dataset.images, TablePictures)
    order = [7, 0, 9, 3, 1, 2, 4, 5, 6, 8]
    assert all(torch.equal(dataset.images[n], expected[n]) for n in order)
    assert dataset.labels.tolist() == [0, 1] * 5
    assert dataset.class_names == ("cat", "stop sign")
    assert parts_of(dataset) == [TRAIN] * 8 + [TEST_SPLIT] * 2
    assert not dataset.dialogues
    assert dataset.hash == read_hf(by_name(tmp_path / "again")).hash


def test_the_command_line_splits_by_owners(tmp_path: Path) -> None:
    write_parquet(tmp_path / "all.parquet", rows(60), FEATURES)
    words = ["train", "--dataset", f"hf:{tmp_path}", "--runs", str(tmp_path / "runs")]
    asked = (
        "--image-column image --label-column label --owner-column who --clients 2 "
        "--rounds 1 --public-share 0.3 --quiet --name one --tested 2"
    )
    said = CliRunner().invoke(app, [*words, *asked.split()])
    assert said.exit_code == 0, said.output
    run = load_run(tmp_path / "runs/one")
    assert (run.config.dataset, run.config.data) == ("hf", str(tmp_path))
    assert run.config.partition == "domains"
    domains = run.population.dataset.domains
    assert domains is not None
    assert run.population.dataset.domain_names == ("ann", "ben")
    for number, client in enumerate(run.population.task.clients):
        positions = torch.from_numpy(run.population.indices(client))
        assert set(domains[positions].tolist()) == {number}
    said = CliRunner().invoke(app, [*words, "--label-column", "kind"])
    assert isinstance(said.exception, ConfigError)
    assert {one.name for one in (tmp_path / "runs").iterdir()} == {"one", "latest"}


def test_the_command_line_tosses_a_coin_for_each_group(tmp_path: Path) -> None:
    """Three rows of each patient; then rows of one picture; then no such column."""
    columns = rows(90)
    columns["patient"] = [f"p{number // 3}" for number in range(90)]
    columns["image"] = [columns["image"][number // 3 * 3] for number in range(90)]
    write_parquet(tmp_path / "all.parquet", columns, FEATURES)
    words = (
        "train", "--dataset", f"hf:{tmp_path}", "--image-column", "image",
        "--label-column", "label", "--clients", "2", "--rounds", "1", "--trainer",
        "zero-shot", "--quiet", "--runs", str(tmp_path / "runs"), "--seed", "0", "--groups",
    )  # fmt: skip
    for groups in ("patient", "contents", "near-duplicates"):
        said = CliRunner().invoke(app, [*words, groups, "--name", groups])
        assert said.exit_code == 0, said.output
        ledger = load_run(tmp_path / "runs" / groups).ledger
        assert ledger.group is not None
        assert ledger.group.tolist() == [number // 3 * 3 for number in range(90)]
        for column in (ledger.owner, ledger.is_member):
            assert (column == column[ledger.group]).all()
    run = load_run(tmp_path / "runs/patient")
    audit = Auditor(run).attack("black-box", shadows=0)
    assert 3 * sum(audit.auroc.n) == (run.ledger.owner >= 0).sum()
    said = CliRunner().invoke(app, [*words, "ward"])
    assert isinstance(said.exception, ConfigError)
    assert "--groups ward was given" in str(said.exception)


def test_pictures_with_texts_have_captions(tmp_path: Path) -> None:
    captions = [["a cat", "one cat "], ["a dog"], ["no", "picture"]]
    columns = {"picture": [p["bytes"] for p in pictures(3)], "said": captions}
    write_parquet(tmp_path / "some.parquet", columns)
    dataset = read_hf(tmp_path, TableColumns(image="picture", text="said"))
    assert [one.answers for one in dataset.dialogues] == [
        ("a cat", "one cat"), ("a dog",), ("no", "picture"),
    ]  # fmt: skip
    assert dataset.class_names == ("picture",)
    assert isinstance(dataset.images, TablePictures)
    assert torch.equal(dataset.images[2], decoded((3, 0))[2])


def test_texts_alone_and_pairs_have_classes_and_questions(tmp_path: Path) -> None:
    columns = {
        "text": ["one", "two ", "three", "four"],
        "other": ["a", "b", "c", "d"],
        "label": [10, 9, -1, 10],
        "who": ["a_b", "_", "c", "_"],
    }
    write_parquet(tmp_path / "train.parquet", columns)
    alone = read_hf(tmp_path)
    assert texts_of(alone) == (("one",), ("two",), ("four",))  # -1 is no class
    assert (alone.labels.tolist(), alone.class_names) == ([1, 0, 1], ("9", "10"))
    assert alone.dialogues[0].question.startswith("Text: one\nWhich class is it?")
    pairs = read_hf(tmp_path, TableColumns(text="text,other", owner="who"))
    assert texts_of(pairs)[2] == ("four", "d")
    assert pairs.domain_names == ("_", "a b")


def test_validation_stands_in_for_a_test_split_and_other_splits_are_left_out(
    tmp_path: Path,
) -> None:
    for split in ("train", "validation", "unsupervised"):
        write_arrow(tmp_path / split, rows(2))
    splits = {"splits": ["train", "validation", "unsupervised"]}
    (tmp_path / "dataset_dict.json").write_text(json.dumps(splits))
    dataset = read_hf(tmp_path)
    assert parts_of(dataset) == [TRAIN] * 2 + [TEST_SPLIT] * 2
    assert read_hf(tmp_path / "train").split is None


def test_few_blocks_are_in_memory_at_a_time(tmp_path: Path) -> None:
    """There are four; those of an Arrow file stay in it."""
    write_parquet(tmp_path / "all.parquet", rows(12), FEATURES)
    images = read_hf(tmp_path).images
    assert isinstance(images, TablePictures)
    for index in (0, 1, 5, 2, 11):
        images[index]
    assert images._cells.cache_info().currsize == 2
    write_arrow(tmp_path / "train", rows(12))
    images = read_hf(tmp_path / "train").images
    assert isinstance(images, TablePictures)
    assert all(torch.equal(images[n], one) for n, one in enumerate(decoded((12, 0))))
    assert "train/data-00000-of-00001.arrow" in Path("/proc/self/maps").read_text()


WRONG: Sequence[tuple[dict[str, Any], dict[str, str], str]] = (
    ({}, {"image": "photo"}, "--image-column photo was given.*image .struct"),
    ({}, {"label": "kind"}, "--label-column kind was given"),
    ({}, {"text": "text,more"}, "--text-column more was given"),
    ({}, {"owner": "owner"}, "--owner-column owner was given"),
    ({}, {"image": "text"}, "it is string: images are bytes.*Name image"),
    ({"label": None}, {}, "is not known. Say it with --label-column"),
    (
        dict.fromkeys(("label", "image", "text")),
        {},
        "Say it with --image-column or --text-column",
    ),
    ({"more": pictures(4)}, {}, "has the columns image, more, each of"),
    (
        {"image": [{"bytes": "no"}] * 4},
        {"image": "image"},
        "it is struct<bytes: string>: images are bytes",
    ),
    ({"image": [{"bytes": 7}] * 4}, {"image": "image"}, "images are bytes"),
    ({"label": [0.5] * 4}, {}, "label of .* holds 0.5"),
    ({"label": [-1] * 4}, {}, "No row of .* has a class"),
    ({"label": [0] * 4}, {}, "holds 1 class"),
    (
        {"label": pyarrow.array(["a", "b"] * 2).dictionary_encode()},
        {},
        "label of .* is dictionary<.*Write its values as",
    ),
    ({"who": [{"a": 1}] * 4}, {"owner": "who"}, "who of .* is struct<"),
    ({"text": [[None]] * 4}, {"text": "text"}, "text of .* is list<.*null>"),
    ({"text": ["a", "", "b", "c"]}, {"text": "text"}, "has '' under text"),
    ({"who": ["a", None, "b", "c"]}, {"owner": "who"}, "nothing under who"),
)


@pytest.mark.parametrize(("changed", "columns", "message"), WRONG)
def test_columns_that_cannot_be_used_are_one_clear_line(
    changed: dict[str, Any], columns: dict[str, str], message: str, tmp_path: Path
) -> None:
    kept = {k: v for k, v in {**rows(4), **changed}.items() if v is not None}
    write_parquet(tmp_path / "all.parquet", kept)
    with pytest.raises(ConfigError, match=message) as caught:
        read_hf(tmp_path, TableColumns(**columns))
    assert str(tmp_path) in str(caught.value)


def test_a_file_that_names_no_split_beside_others_is_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train.parquet", rows(2), FEATURES)
    write_parquet(tmp_path / "more.parquet", rows(2), FEATURES)
    with pytest.raises(ConfigError, match=r"splits train, .* none: more\.parquet\."):
        read_hf(tmp_path)


def test_a_class_beyond_the_named_ones_is_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", {**rows(4), "label": [0, 1, 2, 0]}, FEATURES)
    with pytest.raises(ConfigError, match="holds 2, and its classes are 0 to 1"):
        read_hf(tmp_path)


def test_damaged_and_missing_files_are_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"no \.parquet and no \.arrow"):
        read_hf(tmp_path)
    file = tmp_path / "all.parquet"
    write_parquet(file, rows(4), FEATURES)
    whole = file.read_bytes()
    for content in (b"", b"PAR1", whole[:-50], whole[:40] + bytes(60) + whole[100:]):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=r"all\.parquet"):
            read_all(tmp_path)
    file.unlink()
    write_arrow(tmp_path / "train", rows(4))
    (arrow,) = (tmp_path / "train").glob("*.arrow")
    whole = arrow.read_bytes()
    for content in (b"", whole[:300], whole[:-600], b"ARROW1" + whole[6:]):
        arrow.write_bytes(content)
        with pytest.raises(ConfigError, match=r"\.arrow"):
            read_hf(tmp_path / "train")
    (tmp_path / "train/state.json").write_text('{"_data_files": [{"filename": "/x"}]}')
    with pytest.raises(ConfigError, match="leaves the folder"):
        read_hf(tmp_path / "train")


def read_all(path: Path) -> list[Tensor]:
    images = read_hf(path).images
    assert isinstance(images, TablePictures)
    return [images[n] for n in range(len(images))]


def test_what_a_table_declares_is_bounded_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(tmp_path / "all.parquet", rows(9), FEATURES)
    images = read_hf(tmp_path).images
    assert isinstance(images, TablePictures)
    for bound, least, message in (
        ("RECORDS", 8, "9 records"),
        ("ARRAYS", 10, "Row group 0 of"),
        ("LINES", 10, "The columns label of"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(f"PRIVAUDIT_MAX_{bound}", str(least))
            with pytest.raises(ConfigError, match=message):
                read_hf(tmp_path)
    monkeypatch.setenv("PRIVAUDIT_MAX_FILE", "50")
    with pytest.raises(ConfigError, match=r"image of row 7 in .*all\.parquet has"):
        images[7]


def test_several_configurations_and_broken_cards_are_refused(tmp_path: Path) -> None:
    hub(tmp_path)
    two = CARD.replace(
        "- config_name: default",
        "- config_name: a\n  data_files: x/*\n- config_name: default",
    )
    for card, message in (
        (
            two.replace("data_files: x/*", "data_files: []"),
            "the configurations a, default",
        ),
        (CARD.replace("data/train", "../train"), "leaves the folder"),
        (CARD.replace("license: mit", "license: ["), "head of .*README.md is broken"),
        (CARD.replace("path: data/test-*", "path: none/*"), "names files of test"),
        (CARD.replace("split: test", "part: test"), "configs"),
        (CARD.replace("data/train-*", "data/**.parquet"), r"\*\* stands for folders"),
        (CARD.replace("'1': stop", "one: stop"), "with the number 'one'"),
        (CARD.replace("'1': stop", "null: stop"), "with the number 'None'"),
    ):
        (tmp_path / "README.md").write_text(card)
        with pytest.raises(PrivauditError, match=message):
            read_hf(tmp_path)
    (tmp_path / "README.md").write_text("# Pets\n")
    assert read_hf(tmp_path).class_names == ("0", "1")
    for files, counts in (
        ("data_files: train-*\n  data_dir: ./data", [2]),
        ("data_files: [data/train-*, data/test-*]", [3]),
        ("data_files: {train: [data/train-*], test: data/test-*}", [2, 1]),
        ("data_dir: data", [1, 2]),
        ("data_files: [{split: a, path: data/tr*}, {split: a, path: data/te*}]", [3]),
    ):
        head = CARD.partition("data_files")[0]
        (tmp_path / "README.md").write_text(f"{head}{files}\n---\n")
        assert [len(one) for one in find_tables(tmp_path).values()] == counts


def test_a_name_of_the_hub_is_fetched_or_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def fetch(name: str, **how: Any) -> str:
        asked.append((name, how["repo_type"]))
        if name != "owner/pets":
            raise OSError("no network")
        return str(hub(tmp_path / "snapshot"))

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert make_config("promptfl", dataset="hf:owner/pets").data == "owner/pets"
    assert len(load_dataset("hf:owner/pets")) == 10
    with pytest.raises(MissingFileError, match=r"no folder x/y here.*no network"):
        load_dataset("hf:x/y")
    assert asked == [("owner/pets", "dataset"), ("x/y", "dataset")]


def test_only_tables_have_columns_and_one_place_is_given(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'digits' has none to choose"):
        load_dataset("digits", columns=TableColumns(label="x"))
    with pytest.raises(ConfigError, match="Give one place: hf:PLACE"):
        load_dataset("hf:here", tmp_path)


def test_without_pyarrow_the_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "all.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match="pip install 'pyarrow>=17'"):
        read_hf(tmp_path)
