"""Columns from files: the same values from each kind, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from privaudit.core.errors import DatasetError, LimitError, MissingFileError
from privaudit.recording.record_columns import number_values, read_column

NAMES = ["b", "a", "b", "Ward 3"]


def write_npy(path: Path) -> str:
    np.save(path / "column.npy", np.array(NAMES))
    return str(path / "column.npy")


def write_csv(path: Path) -> str:
    rows = "".join(f'{n},"{name}"\n' for n, name in enumerate(NAMES))
    (path / "table.csv").write_text(f"record,owner\n{rows}")
    return f"{path / 'table.csv'}:owner"


def write_single(path: Path) -> str:
    (path / "one.tsv").write_text("\n".join(["owner", *NAMES]))
    return str(path / "one.tsv")


def write_lines(path: Path) -> str:
    rows = "".join(f'{{"owner": "{name}", "n": 1}}\n' for name in NAMES)
    (path / "a:b.jsonl").write_text(rows)
    return f"{path / 'a:b.jsonl'}:owner"


def write_parquet(path: Path) -> str:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra hf (pyarrow)")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"x": [0.5] * 4, "owner": NAMES})
    parquet.write_table(table, path / "t.parquet", row_group_size=2)
    return f"{path / 't.parquet'}:owner"


@pytest.mark.parametrize(
    "write", [write_npy, write_csv, write_single, write_lines, write_parquet]
)
def test_each_kind_of_file_gives_the_same_values(
    write: Callable[[Path], str], tmp_path: Path
) -> None:
    column = number_values("owners", read_column("--owners", write(tmp_path)))
    assert column.distinct == ("Ward 3", "a", "b")
    assert column.number.tolist() == [2, 1, 2, 0]
    assert column.first.tolist() == [0, 1, 0, 3]


def test_numbers_are_the_same_as_texts_and_as_whole_floats() -> None:
    for values in ([10, 9, 10], ["10", "9", "10"], np.array([10.0, 9.0, 10.0])):
        column = number_values("owners", values)
        assert (column.distinct, column.number.tolist()) == ((9, 10), [1, 0, 1])
    assert number_values("owners", ["10", "x", 9]).distinct == ("10", "9", "x")
    assert number_values("owners", ["007", "7"]).distinct == ("007", "7")


def test_what_is_no_column_is_refused(tmp_path: Path) -> None:
    csv, npy = write_csv(tmp_path), write_npy(tmp_path)
    (tmp_path / "text.npy").write_text("no array")
    np.save(tmp_path / "object.npy", np.array([{}, 1], object), allow_pickle=True)
    (tmp_path / "long.csv").write_text(f"owner\n{'x' * 201}\n")
    odd = {
        csv.removesuffix(":owner"): "columns record, owner, and no column is named",
        f"{csv}s": "none is 'owners'",
        f"{npy}:owner": "an array has no columns",
        f"{tmp_path / 'text.npy'}": "is damaged, or no array",
        f"{tmp_path / 'object.npy'}": "Python objects, which are never read",
        f"{tmp_path / 'long.csv'}": "at most 200 letters",
        "owners.xlsx": "is no file that is read",
    }
    for source, why in odd.items():
        with pytest.raises(DatasetError, match=why):
            read_column("--owners", source)
    for gone in ("gone.npy", "gone.csv:a", "gone.parquet:a", str(tmp_path)):
        with pytest.raises((MissingFileError, DatasetError)):
            read_column("--owners", gone)


def test_tables_of_other_types_are_refused(tmp_path: Path) -> None:
    source = write_parquet(tmp_path)
    with pytest.raises(DatasetError, match="x is neither of whole numbers nor"):
        read_column("--owners", source.replace(":owner", ":x"))


def test_files_are_bounded_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [write_npy(tmp_path), write_csv(tmp_path), write_parquet(tmp_path)]
    monkeypatch.setenv("PRIVAUDIT_MAX_RECORDS", "3")
    for source in sources:
        with pytest.raises(LimitError, match="PRIVAUDIT_MAX_RECORDS"):
            read_column("--owners", source)
    monkeypatch.setenv("PRIVAUDIT_MAX_RECORDS", "9")
    monkeypatch.setenv("PRIVAUDIT_MAX_ARRAYS", "30")
    with pytest.raises(LimitError, match="PRIVAUDIT_MAX_ARRAYS"):
        read_column("--owners", sources[0])
