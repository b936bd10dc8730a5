"""Files of a few bytes that unpack to many: refused before they take the memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from privaudit.core.errors import ConfigError
from privaudit.datasets.dataset import Texts
from privaudit.datasets.sources import NO_COLUMNS, TableColumns
from privaudit.datasets.tables.hf import read_hf
from tests.privaudit.datasets.conftest import texts_of

pyarrow = pytest.importorskip("pyarrow", reason="needs the extra hf (pyarrow)")
parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra hf (pyarrow)")

LONG = "x" * 2**20
BOUND = 2**23
CAPTIONED = TableColumns(image="image", text="said")


@pytest.fixture(autouse=True)
def _bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVAUDIT_MAX_ARRAYS", str(BOUND))


@contextmanager
def in_little_memory() -> Iterator[None]:
    """Assert that pyarrow takes no more than four times the bound, or than before."""
    pool = pyarrow.default_memory_pool()
    most = max(pool.max_memory(), 4 * BOUND)
    yield
    assert pool.max_memory() <= most


def write(file: Path, **columns: Any) -> Path:
    """Write values once, and where they stand."""
    parquet.write_table(
        pyarrow.table(columns), file, compression="zstd", store_schema=False
    )
    assert file.stat().st_size < 10_000
    return file


def repeated(value: Any, times: int) -> Any:
    """Return one value many times, which takes the memory of one."""
    return pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * times), [value])


def many(kind: str) -> dict[str, Any]:
    """Return rows of 200 MiB that take 1 MiB."""
    texts, label = repeated(LONG, 200), pyarrow.array([0, 1] * 100)
    if kind == "texts":
        return {"text": texts, "label": label}
    if kind == "dotted":
        return {"a.text": texts, "label": label}
    if kind == "lists":
        said = pyarrow.ListArray.from_arrays([0, 199, 200], texts)
        return {"image": [b"png"] * 2, "said": said}
    files = repeated(LONG.encode(), 200)
    if kind == "pictures":
        return {"image": files, "label": label}
    return {
        "image": pyarrow.StructArray.from_arrays([files], ["bytes"]),
        "label": label,
    }


@pytest.mark.parametrize(
    "kind", ["texts", "dotted", "lists", "pictures", "pictures with paths"]
)
def test_values_that_a_parquet_file_holds_once_are_bounded_where_they_stand(
    kind: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "a.parquet", **many(kind))
    columns = {"lists": CAPTIONED, "dotted": TableColumns(text="a.text")}
    message = r"Row group 0 of .* bytes, and at most"
    with in_little_memory(), pytest.raises(ConfigError, match=message):
        read_hf(file, columns.get(kind, NO_COLUMNS))


def test_texts_of_a_row_group_that_fits_are_read_in_several_batches(
    tmp_path: Path,
) -> None:
    texts = [LONG + str(n) for n in range(5)]
    captions = [[LONG, "one"], [LONG], ["two", LONG], ["a"], ["b", "c"]]
    rows = {"text": texts, "label": [0, 1, 0, 1, 0]}
    images = read_hf(write(tmp_path / "a.parquet", **rows)).images
    assert isinstance(images, Texts)
    assert images.texts == tuple((text,) for text in texts)
    both = {"image": [b"png"] * 5, "said": captions}
    read = read_hf(write(tmp_path / "b.parquet", **both), CAPTIONED)
    assert [list(one.answers) for one in read.dialogues] == captions


def stream(file: Path, table: Any, codec: str | None, form: str) -> Path:
    how = pyarrow.ipc.IpcWriteOptions(compression=codec)
    with getattr(pyarrow.ipc, f"new_{form}")(file, table.schema, options=how) as opened:
        opened.write_table(table)
    return file


@pytest.mark.parametrize("form", ["stream", "file"])
@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_arrow_is_refused_before_it_is_unpacked(
    form: str, codec: str, tmp_path: Path
) -> None:
    texts = pyarrow.array([LONG] * 40)  # 40 MiB, before it is measured
    table = pyarrow.table({"text": texts, "label": [0, 1] * 20})
    file = stream(tmp_path / "a.arrow", table, codec, form)
    message = r"is compressed inside.*uncompressed"
    with in_little_memory(), pytest.raises(ConfigError, match=message):
        read_hf(file)


@pytest.mark.parametrize("form", ["stream", "file"])
def test_arrow_of_numbered_values_is_refused_and_plain_is_read(
    form: str, tmp_path: Path
) -> None:
    texts = pyarrow.array(["one", "two"] * 2)
    table = pyarrow.table({"text": texts, "label": [0, 1] * 2})
    plain = read_hf(stream(tmp_path / "a.arrow", table, None, form))
    assert texts_of(plain) == (("one",), ("two",)) * 2
    assert torch.equal(plain.labels, torch.tensor([0, 1, 0, 1]))
    numbered = table.set_column(0, "text", texts.dictionary_encode())
    with pytest.raises(ConfigError, match="numbered values"):
        read_hf(stream(tmp_path / "b.arrow", numbered, None, form))


def test_many_files_are_not_open_at_once(tmp_path: Path) -> None:
    rows = {"text": ["a", "b"], "label": [0, 1]}
    for number in range(20):
        write(tmp_path / f"train-{number}.parquet", **rows)
    open_before = len([*Path("/proc/self/fd").iterdir()])
    maps = Path("/proc/self/maps")
    read = read_hf(tmp_path)
    assert len(read) == 40
    assert len([*Path("/proc/self/fd").iterdir()]) <= open_before + 1
    assert str(tmp_path) not in maps.read_text()
