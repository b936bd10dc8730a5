import gzip
import io
import os
import tarfile
from pathlib import Path

import pytest

from privaudit.core.errors import ConfigError, LimitError, MissingFileError
from privaudit.datasets.files.archives import FolderStore, open_store
from tests.privaudit.datasets.conftest import write_archive, write_folder

FILES = {
    "b/2.jpg": b"two",
    "a/1.JPG": b"one",
    "notes.txt": b"no picture",
    "__MACOSX/a/1.jpg": b"no picture",
    ".hidden/1.jpg": b"no picture",
}
KINDS = ["x.tar", "x.tar.gz", "x.tgz", "x.tar.xz", "x.zip"]


@pytest.mark.parametrize("kind", ["folder", *KINDS])
def test_a_folder_and_its_archives_hold_the_same_pictures(
    kind: str, tmp_path: Path
) -> None:
    write = write_folder if kind == "folder" else write_archive
    store = open_store(write(tmp_path / kind, FILES))
    assert store.names == ["a/1.JPG", "b/2.jpg"]
    assert [store.read(name) for name in store.names] == [b"one", b"two"]
    assert "b/2.jpg" in store
    assert "notes.txt" not in store or kind == "folder"
    with pytest.raises(MissingFileError, match=r"no b/3\.jpg in"):
        store.read("b/3.jpg")


def test_names_that_leave_the_folder_do_not_count(tmp_path: Path) -> None:
    files = {"../out.jpg": b"1", "/root.jpg": b"2", "./in.jpg": b"3"}
    store = open_store(write_archive(tmp_path / "x.tar", files))
    assert store.names == ["in.jpg"]
    (tmp_path / "out.jpg").write_bytes(b"1")
    (tmp_path / "inside").mkdir()
    assert "../out.jpg" not in open_store(tmp_path / "inside")


def test_links_in_a_tar_are_no_pictures(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        link = tarfile.TarInfo("a.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link, io.BytesIO())
    assert open_store(tmp_path / "x.tar").names == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_archive_is_one_clear_line(kind: str, tmp_path: Path) -> None:
    files = {f"a/{i}.jpg": bytes(range(256)) * 50 for i in range(20)}
    path = write_archive(tmp_path / kind, files)
    path.write_bytes(path.read_bytes()[: -12_000 if kind == "x.tar" else -30])
    with pytest.raises(ConfigError, match=r"cannot be read"):
        [open_store(path).read(name) for name in files]


@pytest.mark.parametrize("kind", KINDS)
def test_another_file_with_an_archives_ending_is_one_clear_line(
    kind: str, tmp_path: Path
) -> None:
    (tmp_path / kind).write_bytes(b"not an archive at all" * 100)
    with pytest.raises(ConfigError, match=f"{kind} cannot be read as an archive"):
        open_store(tmp_path / kind)


def test_a_gz_of_several_members_and_padding_is_read_whole(tmp_path: Path) -> None:
    files = {f"a/{i}.jpg": os.urandom(1000) * 3000 for i in range(2)}
    write_archive(tmp_path / "x.tar", files)
    content = (tmp_path / "x.tar").read_bytes()
    halves = (content[:2_500_000], content[2_500_000:])
    packed = bytes(3 * 2**20).join(map(gzip.compress, halves))
    (tmp_path / "x.tar.gz").write_bytes(packed + bytes(5000))
    store = open_store(tmp_path / "x.tar.gz")
    assert {name: store.read(name) for name in store.names} == files


def test_padding_without_end_is_refused_by_its_size(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "x.tar.gz", FILES)
    os.truncate(path, 2**43)
    with pytest.raises(LimitError, match="8,796,093,022,208 bytes"):
        open_store(path)


def test_what_is_neither_folder_nor_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.rar").write_bytes(b"")
    with pytest.raises(ConfigError, match="neither a folder nor an archive"):
        open_store(tmp_path / "x.rar")
    with pytest.raises(MissingFileError, match=r"There is no .*gone"):
        open_store(tmp_path / "gone.tar")


def test_a_folder_that_cannot_be_read_is_not_left_out_in_silence(
    tmp_path: Path,
) -> None:
    store = FolderStore(tmp_path / "gone")
    with pytest.raises(ConfigError, match="gone cannot be read"):
        _ = store.names


def test_a_compressed_archive_too_large_for_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVAUDIT_MAX_ARCHIVE", "5")
    path = write_archive(tmp_path / "x.tar.gz", FILES)
    with pytest.raises(
        ConfigError, match=r"x\.tar\.gz has \d+ bytes.*PRIVAUDIT_MAX_ARCHIVE"
    ):
        open_store(path)
    assert len(open_store(write_archive(tmp_path / "x.tar", FILES)).names) == 2
