"""Data sets, weights, arrays and plans that are wrong or too large."""

import gzip
import io
import os
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np

from tests.corpus.case import Case
from tests.corpus.files import AUDIT, RUN, SPOILERS, How, bomb, replace, spoil
from tests.corpus.flags import BASE
from tests.privaudit.datasets.conftest import picture, write_archive

DATA: Mapping[str, tuple[str, str]] = {
    "data/folder/cat/0.png": ("image-folder", "data/folder"),
    "data/pictures.zip": ("image-folder", "data/pictures.zip"),
    "data/pictures.tar": ("image-folder", "data/pictures.tar"),
    "data/pictures.tar.gz": ("image-folder", "data/pictures.tar.gz"),
    "data/bank/bank.npz": ("feature-bank", "data/bank"),
    "data/vectors/x.npy": ("caption-bank", "data/vectors"),
    "data/vectors/captions.json": ("caption-bank", "data/vectors"),
    "data/table/all.csv": ("image-table", "data/table"),
    "data/texts/all.csv": ("text-table", "data/texts"),
    "data/coop/split_zhou_x.json": ("coop-split", "data/coop"),
    "data/captions/metadata.jsonl": ("image-captions", "data/captions"),
    "data/squad/train-v1.1.json": ("squad", "data/squad"),
    "data/squad/dev-v1.1.json": ("squad", "data/squad"),
    "data/cifar10/data_batch_1.bin": ("cifar10", "data/cifar10"),
    "data/cifar10/batches.meta.txt": ("cifar10", "data/cifar10"),
    "data/cifar10-python/data_batch_1": ("cifar10", "data/cifar10-python"),
    "data/cifar10-python/batches.meta": ("cifar10", "data/cifar10-python"),
}


def read(name: str, place: str) -> None:
    """Read a data set, and decode every picture."""
    from privaudit.datasets.images.picture_files import PictureFiles
    from privaudit.datasets.sources import load_dataset
    from privaudit.models.clip.picture_preparation import PicturePreparation

    dataset = load_dataset(name, place)
    prepare = PicturePreparation(32, (0.5,) * 3, (0.5,) * 3)
    if isinstance(dataset.images, PictureFiles):
        for index in range(len(dataset.images)):
            prepare(dataset.images[index][None])
    _ = dataset.hash


def data_case(name: str, file: str, how: How, fine: str = "") -> Case:
    """Return a case of one spoilt file of a data set."""
    kind, place = DATA[file]
    return Case(
        f"{kind}: {file} {name}", spoil=partial(spoil, file, how),
        call=partial(read, kind, place), fine=fine,
    )  # fmt: skip


def data_cases() -> Iterator[Case]:
    """Yield each file of each data set in each wrong form."""
    for file in DATA:
        for how in SPOILERS:
            lax = file.endswith((".bin", ".txt", ".csv"))
            lax = lax or how.__name__ in ("flipped", "gone")
            lax = lax or (file.endswith(".jsonl") and how.__name__ == "cut")
            fine = "a reader cannot tell it from another" if lax else ""
            if (file, how.__name__) == ("data/pictures.tar", "sparse"):
                fine = "zeros behind an archive's end are its padding"
            yield data_case(how.__name__, file, how, fine)


def png(width: int, height: int) -> bytes:
    """Return a PNG that declares a size, and holds one compressed run of zeros."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(min(50_000_000, height * (1 + 3 * width))), 9)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", body)
        + chunk(b"IEND", b"")
    )


def picture_cases() -> Iterator[Case]:
    """Yield pictures that are too large, too narrow, or of other kinds."""
    file = "data/folder/cat/0.png"
    sizes = (
        (12_000, 12_000), (100_000, 100_000), (2**31 - 1, 2**31 - 1), (0, 5), (5, 0),
        (1, 1_000_000), (1_000_000, 1), (7_200, 7_200), (200, 1), (1, 30_000),
    )  # fmt: skip
    for size in sizes:
        yield data_case(f"{size}", file, partial(_put, content=partial(png, *size)))
    bodies = {
        "EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n",
        "SVG": b"<svg xmlns='http://www.w3.org/2000/svg'/>", "text": b"no picture",
        "PNG's first bytes": picture(3)[:20], "JPEG's": b"\xff\xd8\xff\xe0" + bytes(40),
        "GIF of 65535": b"GIF89a\xff\xff\xff\xff\x80\x00\x00" + bytes(900),
        "BMP of 2^31": b"BM" + struct.pack("<IHHI", 60, 0, 0, 54)
        + struct.pack("<IiiHHIIiiII", 40, 2**31 - 1, 2**31 - 1, 1, 24, 0, 0, 1, 1, 0, 0),
        "PPM of 10^9": b"P6 1000000000 1000000000 255\n" + bytes(10),
        "TIFF": b"II*\x00\xff\xff\xff\xff", "16 bits": picture(1, kind="png")[:24] + b"\x10" + picture(1)[25:],
    }  # fmt: skip
    for name, body in bodies.items():
        yield data_case(name, file, body)


def pickle_cases() -> Iterator[Case]:
    """Yield pickles that bloat, end or hold up Python's own reader, with names listed."""
    codec = (
        b"\x80\x02](c_codecs\nencode\nq\x00X" + struct.pack("<I", 2**20) + b"a" * 2**20
    )
    array = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
    rot13 = b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R."
    doubled = b"".join(b"q%ch%c\x86" % (n, n) for n in range(60))
    bodies = {
        "put aside as 10^8": b"Nr" + struct.pack("<I", 10**8) + b".",
        "a key of a million tuples": b"\x80\x02})" + b"\x85" * 10**6 + b"Ns.",
        "a key of 2^60 tuples": b"\x80\x02})" + doubled + b"Ns.",
        "a text made bytes 4,000 times": codec + b"q\x01" + b"h\x00h\x01\x85R" * 4000 + b"e.",
        "64 MB of lists": b"]" * 2**26,
        "an array of 1 GiB without content": array + b"J\x00\x00\x00\x40\x85U\x01b\x87R.",
        "rot13": rot13,
    }  # fmt: skip
    for name, body in bodies.items():
        yield data_case(f"pickle: {name}", "data/cifar10-python/data_batch_1", body)


def _put(path: Path, content: Callable[[], bytes]) -> None:
    replace(path, content())


def archive_cases() -> Iterator[Case]:
    """Yield archives that hold, or declare, far more than they should."""
    for ending in ("zip", "tar", "tar.gz"):
        file = f"data/pictures.{ending}"
        names = (
            "../x.png", "/x.png", "a/../../x.png", "cat/\0.png", "x" * 5000 + ".png",
            ".png", "cat/a\nb.png",
        )  # fmt: skip
        for name in names:
            files = {name: picture(1), "cat/1.png": picture(2), "dog/1.png": picture(4)}
            how, fine = (
                partial(_archive, files=files),
                "names that lead away are left out",
            )
            yield data_case(f"names {name[:12]!r}", file, how, fine)
        yield data_case("is empty", file, partial(_archive, files={}))
    yield data_case("a picture of 3 GB", "data/pictures.zip", _picture_bomb)
    yield data_case("a header of 3 GB", "data/pictures.tar", _long_name)
    yield data_case("a negative size", "data/pictures.tar", _negative)
    yield data_case("3 GB of zeros", "data/pictures.tar.gz", _gzip_bomb)
    yield data_case("1 GB of padding", "data/pictures.tar.gz", _padding)
    yield data_case("a sparse picture", "data/pictures.tar", _sparse_picture)
    yield data_case("a list of 8 EB", "data/pictures.zip", _long_list)
    yield data_case("60,000 classes", "data/pictures.zip", _many_classes)
    yield data_case("links in a circle", "data/folder/cat/0.png", _linked)


def _archive(path: Path, files: Mapping[str, bytes]) -> None:
    path.unlink()
    write_archive(path, files)


def _picture_bomb(path: Path) -> None:
    replace(path, bomb("cat/0.png", 300, {"dog/0.png": picture(1)}))


def _many_classes(path: Path) -> None:
    content = picture(1)
    _archive(path, {f"{number}/0.png": content for number in range(60_000)})


def _long_name(path: Path) -> None:
    member = tarfile.TarInfo("long")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 3 * 2**30
    replace(path, member.tobuf())
    os.truncate(path, 4 * 2**30)


def _negative(path: Path) -> None:
    member = tarfile.TarInfo("cat/0.png")
    block = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    block[124:136] = b"\xff" * 10 + b"\xfe\x00"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block[:512])
    replace(path, bytes(block) * 4)


def _gzip_bomb(path: Path) -> None:
    path.unlink()
    with gzip.open(path, "wb", compresslevel=1) as file:
        member = tarfile.TarInfo("cat/0.png")
        member.size = 3 * 2**30
        file.write(member.tobuf())
        block = bytes(2**22)
        for _ in range(200):
            file.write(block)


def _padding(path: Path) -> None:
    replace(path, path.read_bytes())
    os.truncate(path, 2**30)
    with path.open("ab") as file:
        file.write(b"end")


def _sparse_picture(path: Path) -> None:
    member = tarfile.TarInfo("cat/0.png")
    member.size = 2**40
    replace(path, member.tobuf())
    os.truncate(path, 2**40 + 2048)


def _long_list(path: Path) -> None:
    content = bytearray(path.read_bytes())
    place = content.rfind(b"PK\5\6")
    content[place + 12 : place + 20] = b"\xfe\xff\xff\xff" + b"\xff\xff\xff\x00"
    replace(path, bytes(content))


def _linked(path: Path) -> None:
    for number in range(4):
        (path.parent / f"loop{number}").symlink_to("..")


def arrays(**declared: tuple[str, tuple[int, ...]]) -> bytes:
    """Return an .npz whose arrays declare types and shapes, and hold nearly nothing."""
    buffer = io.BytesIO()
    with ZipFile(buffer, "w", ZIP_DEFLATED) as zipped:
        for name, (kind, shape) in declared.items():
            head = io.BytesIO()
            about = {"descr": kind, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(head, about)
            zipped.writestr(f"{name}.npy", head.getvalue() + bytes(64))
    return buffer.getvalue()


def array_cases() -> Iterator[Case]:
    """Yield arrays that declare too much, objects, and other shapes than expected."""
    shapes = (
        ("<i8", (10**15,)), ("|O", (3,)), ("<i8", (-1,)), ("<U0", (10**12,)),
        ("<f8", (2**40, 2**40)), ("<i8", ()), ("<i8", (8, 1)), ("|V8", (3,)),
        ("<i8", (5 * 10**9,)), ("<M8[s]", (2,)), ("<c16", (2,)),
    )  # fmt: skip
    for kind, shape in shapes:
        ledger = arrays(owner=(kind, shape), is_member=("|b1", shape))
        yield _of(f"{RUN}/ledger.npz", ledger, "report", f"{kind} {shape}")
        scores = arrays(**{"loss-threshold/scores": (kind, shape)})
        yield _of(f"{AUDIT}/scores.npz", scores, "report", f"{kind} {shape}")
        bank = arrays(
            embeddings=(kind, shape), labels=(kind, shape), class_names=("<U3", (2,))
        )
        yield data_case(f"{kind} {shape}", "data/bank/bank.npz", bank)
    how = partial(spoil, f"{RUN}/ledger.npz", _ledger_bomb)
    yield Case(f"report: {RUN}/ledger.npz of 900 MiB, deflated", BASE["report"], how)


def _ledger_bomb(path: Path) -> None:
    replace(path, bomb("owner.npy", 900, {}))


def _of(file: str, content: bytes, reader: str, name: str) -> Case:
    how = partial(spoil, file, content)
    return Case(f"{reader}: {file} {name}", BASE[reader], how)


def line_cases() -> Iterator[Case]:
    """Yield lists and tables whose lines are wrong, or have no end."""
    long = b"a" * (40 * 2**20)
    deep = b"[" * 5000 + b"]" * 5000
    lists: Mapping[str, tuple[bytes, ...]] = {
        "data/captions/metadata.jsonl": (
            long, b"{}", b"[]", b"null", b"1", deep, b'{"image": "cat/0.png"}',
            b'{"image": 1, "captions": ["a"]}', b'{"image": "/etc/passwd", "captions": ["a"]}',
            b'{"image": "../x.png", "captions": ["a"]}', b'{"image": "", "captions": ["a"]}',
            b'{"image": "cat/0.png", "captions": []}', b'{"image": "cat/\\u0000.png", "captions": ["a"]}',
            b'{"image": "' + b"x" * 5000 + b'", "captions": ["a"]}', b"\n" * (200 * 2**20),
        ),
        "data/table/all.csv": (
            long, b"image,label", b"image\ncat/0.png", b"image,image\na,b", b'image,label\n"a',
            b"image,label\ncat/0.png,cat,dog", b"image,label\n../x,cat\n../y,dog",
            b"image,label\n/etc/passwd,cat\n/etc/group,dog", b"\x00" * 100,
            b"image,label\ncat/0.png,cat\n" + b"x" * 200000 + b",dog",
            b"image,label\n" + b"x" * 5000 + b",cat\ny,dog",
        ),
        "data/texts/all.csv": (
            long, b"text,label", b"text,label\n,cat\nx,dog", b"text,label\nx,cat",
            b"text,label\nx,\ny,", b"a,b\nc,d\ne,f",
        ),
        "data/coop/split_zhou_x.json": (
            b"[]", b"{}", b'{"train": 1}', b'{"train": [1]}', b'{"train": [["a", 0]]}',
            b'{"train": [["cat/0.png", -1, "a"]]}', b'{"train": [["cat/0.png", 1e9, "a"]]}',
            b'{"train": [["cat/0.png", ' + b"9" * 40 + b', "a"]]}', deep,
            b'{"train": [["../../x", 0, "a"], ["cat/0.png", 1, "b"]]}',
            b'{"train": [["cat/0.png", true, "a"]]}', b'{"train": [["", 0, "a"], ["x", 1, "b"]]}',
        ),
        "data/vectors/captions.json": (
            b"{}", b"[1]", b'["a"]', b'[""]', deep, b'["a", null]', b'"a"',
        ),
        "data/squad/train-v1.1.json": (
            b"{}", b'{"data": []}', b'{"data": [{}]}', deep, b'{"data": {"data": 1}}',
            b'{"data": [{"title": 1, "paragraphs": []}]}',
        ),
    }  # fmt: skip
    for file, bodies in lists.items():
        for number, body in enumerate(bodies):
            yield data_case(f"{number}: {body[:30]!r}", file, body)
