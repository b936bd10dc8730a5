"""Foreign files are plain ones and within bounds before they are read."""

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest

from privaudit.core.errors import ConfigError, LimitError, MissingFileError
from privaudit.core.limits import (
    LIMITS,
    bounded_lines,
    check_json,
    check_limit,
    most,
    read_bytes,
    read_lines,
    read_toml,
    variable_of,
)
from privaudit.core.storage import read_npz, write_bytes
from privaudit.datasets.files.archives import FolderStore, open_store
from privaudit.datasets.images.picture_files import PictureFiles
from privaudit.models.clip.checkpoints import load_checkpoint
from privaudit.runs.ledger import Ledger

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="of POSIX's files")


@pytest.mark.parametrize("name", LIMITS)
def test_the_error_says_how_a_bound_is_raised(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = LIMITS[name].most + 1
    with pytest.raises(LimitError, match=f"set {variable_of(name)}={found}"):
        check_limit(name, found, "x")
    monkeypatch.setenv(variable_of(name), str(found))
    check_limit(name, found, "x")


@pytest.mark.parametrize("said", ["", "x", "-1", "1e9", "9" * 40, "٣"])
def test_a_bound_is_a_whole_number(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVAUDIT_MAX_TEXT", said)
    with pytest.raises(ConfigError, match="PRIVAUDIT_MAX_TEXT is"):
        most("text")


def test_a_pipe_is_refused_and_nobody_waits(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    with pytest.raises(MissingFileError, match="it is a pipe, and not a plain file"):
        read_bytes(tmp_path / "x")


@pytest.mark.parametrize(
    ("target", "reason"), [("/dev/zero", "a device"), ("x", "links lead in a circle")]
)
def test_links_to_devices_and_circles_are_refused(
    target: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "x").symlink_to(target)
    with pytest.raises(MissingFileError, match=reason):
        read_bytes(tmp_path / "x")


def test_a_file_of_8_terabytes_is_refused_by_its_size(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    os.truncate(tmp_path / "x", 2**43)
    with pytest.raises(LimitError, match="8,796,093,022,208 bytes"):
        read_bytes(tmp_path / "x")


def test_a_line_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVAUDIT_MAX_LINE", "10")
    (tmp_path / "x").write_bytes(b"short\n" + b"a" * 30)
    lines = bounded_lines(tmp_path / "x")
    assert next(lines) == b"short\n"
    with pytest.raises(LimitError, match="line 2"):
        next(lines)


@pytest.mark.parametrize(
    "content", [b"\n\n\n", b"\r\r\r", b"\r\n\r\n\r\n", b"a\nb\rc", b"\n\r\na"]
)
def test_very_many_lines_are_refused_before_they_are_split(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_bytes(content)
    assert len(read_lines(tmp_path / "x")) == 3
    monkeypatch.setenv("PRIVAUDIT_MAX_RECORDS", "2")
    with pytest.raises(LimitError, match=r"\b3 records"):
        read_lines(tmp_path / "x")


def test_json_of_many_small_parts_is_refused_before_it_is_parsed() -> None:
    check_json(b'{"a": [1, 2, 3]}', "x")
    with pytest.raises(LimitError, match="bytes of memory"):
        check_json(b"[]," * (20 * 2**20), "x")


def npz(kind: str, shape: tuple[int, ...]) -> bytes:
    """Return arrays that declare a shape, and hold 64 bytes."""
    head, buffer = io.BytesIO(), io.BytesIO()
    about = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(head, about)
    with ZipFile(buffer, "w", ZIP_DEFLATED) as zipped:
        for name in ("owner", "is_member"):
            zipped.writestr(f"{name}.npy", head.getvalue() + bytes(64))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("kind", "shape"),
    [("<i8", (10**15,)), ("<U0", (10**12,)), ("<i8", (-1,)), ("<f8", (2**40, 2**40))],
)
def test_arrays_declare_no_more_than_is_there(
    kind: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="declares"):
        read_npz(npz(kind, shape), "x")
    (tmp_path / "ledger.npz").write_bytes(npz(kind, shape))
    with pytest.raises(Exception, match="was cut or altered"):
        Ledger.load(tmp_path / "ledger.npz")


def test_arrays_that_unpack_to_more_than_the_bound_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PRIVAUDIT_MAX_ARRAYS", "100")
    with pytest.raises(LimitError, match="PRIVAUDIT_MAX_ARRAYS"):
        read_npz(npz("<i8", (8,)), "x")


def zipped(path: Path, size: int) -> Path:
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        archive.writestr("cat/0.png", bytes(size))
    return path


def test_a_picture_in_a_zip_is_refused_by_its_declared_size(tmp_path: Path) -> None:
    store = open_store(zipped(tmp_path / "x.zip", LIMITS["file"].most + 1))
    with pytest.raises(LimitError, match=r"cat/0\.png in .*x\.zip"):
        store.read("cat/0.png")


def test_a_zip_with_a_very_long_list_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVAUDIT_MAX_DIRECTORY", "10")
    with pytest.raises(LimitError, match="list of entries"):
        open_store(zipped(tmp_path / "x.zip", 1))


@pytest.mark.parametrize("size", [(8_000, 8_000), (1, 2_000)])
def test_pictures_too_large_or_too_narrow_are_refused_before_they_are_decoded(
    size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1)  # Pillow's bound, below ours
    Image.new("1", size).save(tmp_path / "x.png")
    pictures = PictureFiles(FolderStore(tmp_path), ["x.png"])
    with pytest.raises(LimitError, match=r"x\.png"):
        _ = pictures[0]


def test_a_picture_that_would_run_a_program_is_no_picture(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9")
    with pytest.raises(ConfigError, match="is not a picture"):
        _ = PictureFiles(FolderStore(tmp_path), ["x.png"])[0]


def test_links_in_a_circle_are_not_followed_without_end(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).symlink_to(".")
    with pytest.raises(ConfigError, match="leads to a folder that holds it"):
        _ = FolderStore(tmp_path).names


def test_a_checkpoint_far_larger_than_its_model_is_not_read(tmp_path: Path) -> None:
    from torch import nn

    (tmp_path / "x.pt").touch()
    os.truncate(tmp_path / "x.pt", 2**40)
    with pytest.raises(ConfigError, match="another model's, or holds more"):
        load_checkpoint(nn.Linear(2, 2), tmp_path / "x.pt")


def _device(path: Path) -> None:
    path.symlink_to("/dev/full")


@pytest.mark.parametrize("make", [os.mkfifo, _device])
def test_no_file_is_put_in_the_place_of_something_else(
    make: Callable[[Path], object], tmp_path: Path
) -> None:
    make(tmp_path / "x")
    with pytest.raises(Exception, match="not a plain file"):
        write_bytes(tmp_path / "x", b"")


@pytest.mark.parametrize(
    "content",
    [b"%sb = 1", b"[%sb]", b"x = {%sb = 1}", b"y = 1.5\n  [[%sb]]", b"'#'.%sb = 1",
     b'x = {y = """a"""", %sb = 1, z = "q"}', b"x = {y = 'a\\', %sb = 1, z = ''}"],
)  # fmt: skip
def test_dotted_keys_without_end_are_refused_before_they_are_parsed(
    content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "x.toml").write_bytes(content % (b"a." * 20_000))
    with pytest.raises(LimitError, match=r"20,00[01] levels"):
        read_toml(tmp_path / "x.toml")
    dots = b"#%s=\nq='%s='\nr=[\n[%s]]\n" % (b"." * 99, b"." * 99, b"0.1," * 99)
    (tmp_path / "x.toml").write_bytes(dots + content % b"a.")
    assert read_toml(tmp_path / "x.toml")
