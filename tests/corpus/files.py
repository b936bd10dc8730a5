"""Every file that is read, in forms that no file should have."""

import io
import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

from tests.corpus.case import Case
from tests.corpus.flags import BASE
from tests.corpus.signing import sign_again

HUGE = 2**43  # bytes of a file that has none on the disk


def replace(path: Path, content: bytes) -> None:
    """Put a file in the place of what is there."""
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name(f".{path.name}.was"))
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def bomb(name: str, mebibytes: int, others: Mapping[str, bytes]) -> bytes:
    """Return a zip of so many zeros, deflated to nearly none, and of other entries."""
    buffer = io.BytesIO()
    with ZipFile(buffer, "w", ZIP_DEFLATED, compresslevel=1) as zipped:
        with zipped.open(name, "w", force_zip64=True) as entry:
            for _ in range(mebibytes):
                entry.write(bytes(2**20))
        for other, content in others.items():
            zipped.writestr(other, content)
    return buffer.getvalue()


def gone(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    replace(path, b"")


def cut(path: Path) -> None:
    replace(path, path.read_bytes()[: path.stat().st_size // 2])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[len(content) // 2] ^= 0xFF
    replace(path, bytes(content))


def zeros(path: Path) -> None:
    replace(path, bytes(path.stat().st_size))


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def circle(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def device(path: Path, name: str = "/dev/zero") -> None:
    path.unlink()
    path.symlink_to(name)


def random_device(path: Path) -> None:
    device(path, "/dev/urandom")


def sparse(path: Path) -> None:
    replace(path, path.read_bytes())
    os.truncate(path, HUGE)


def nested(path: Path) -> None:
    replace(path, b'{"a":' * 90000 + b"1" + b"}" * 90000)


def brackets(path: Path) -> None:
    replace(path, b"[" * 3000 + b"]" * 3000)


def digits(path: Path) -> None:
    replace(path, b'{"a": ' + b"9" * 20000 + b"}")


def many(path: Path) -> None:
    replace(path, b"[" + b"[]," * (20 * 2**20) + b"[]]")


def many_lines(path: Path) -> None:
    replace(path, b"[[],[],[],[]]\n" * (12 * 2**20))


def not_text(path: Path) -> None:
    replace(path, b"\xff\xfe\x00{}")


SPOILERS: tuple[Callable[[Path], None], ...] = (
    gone, empty, cut, flipped, zeros, pipe, folder, circle, device, random_device,
    sparse, nested, brackets, digits, many, many_lines, not_text,
)  # fmt: skip

RUN = "runs/one"
AUDIT = f"{RUN}/audits/server-reconstruct"
READERS: Mapping[str, tuple[str, ...]] = {
    f"{RUN}/run.json": ("report", "lint", "gate", "costs", "attack"),
    f"{RUN}/privacy.json": ("lint", "export", "attack"),
    f"{RUN}/ledger.npz": ("report", "gate", "attack"),
    f"{RUN}/metrics.jsonl": ("costs", "report"),
    f"{RUN}/trace.jsonl": ("lint",),
    f"{RUN}/transcript/manifest.jsonl": ("lint", "attack", "export"),
    f"{RUN}/transcript/round-0000.safetensors": ("lint", "attack"),
    f"{RUN}/kept/personal.safetensors": ("attack",),
    f"{AUDIT}/audit.json": ("report", "gate", "export"),
    f"{AUDIT}/scores.npz": ("report", "gate"),
    "runs/latest": ("latest",),
    "public/card.json": ("verify", "gate-card"),
    "baseline.json": ("gate-baseline",),
    "scores.csv": ("scores",),
    "scores.npz": ("scores-npz",),
    "plan.toml": ("table",),
    "sweep.toml": ("tradeoff",),
    "pyproject.toml": ("gate",),
}
MORE: Mapping[str, tuple[str, ...]] = {
    "latest": ("report",),
    "scores-npz": ("scores", "scores.npz", "--name", "new"),
    "gate-card": ("gate", "one", "--baseline", "public", "--accept-unsigned"),
    "gate-baseline": ("gate", "one", "--baseline", "baseline.json"),
}
UNREAD = "the command does not need it"
FINE: frozenset[tuple[str, str, str]] = frozenset()


How = Callable[[Path], None] | bytes


def spoil(file: str, how: How, world: Path) -> None:
    """Spoil one file of a world, or give it other content."""
    path = world / file
    if not path.exists():
        path.write_text("")
    replace(path, how) if isinstance(how, bytes) else how(path)
    sign_again(path)


def file_cases() -> Iterator[Case]:
    """Yield each file in each wrong form, under the commands that read it."""
    for file, readers in READERS.items():
        for how in SPOILERS:
            for reader in readers:
                argv = MORE.get(reader) or BASE[reader]
                name = f"{reader}: {file} {how.__name__}"
                yield Case(name, argv, partial(spoil, file, how), fine=_why(file, how))


def _why(file: str, how: Callable[[Path], None]) -> str:
    """Return why a command may go on, where it may."""
    if file == "pyproject.toml" and how in (gone, empty, cut, flipped):
        return "without a table there are no settings"
    if file.endswith(".toml") and how in (cut,):
        return "half of it may be whole"
    if file.endswith(("metrics.jsonl", "trace.jsonl")):
        return "a finished run may be reported without it"
    if file == "scores.csv" and how in (cut, flipped):
        return "half of the rows may be whole, and a digit another digit"
    if file.endswith(".safetensors") and how is flipped:
        return "its maker signed these weights"
    return ""


JSON_FILES: Mapping[str, tuple[str, ...]] = {
    f"{RUN}/run.json": ("costs", "report"),
    f"{RUN}/privacy.json": ("lint",),
    f"{AUDIT}/audit.json": ("report",),
    "public/card.json": ("gate-card",),
    "baseline.json": ("gate-baseline",),
}
VALUES: tuple[Any, ...] = (
    None, -1, 10**9, 10**30, 1e308, "x", "", [], {}, True, "\0", "x" * 5000,
)  # fmt: skip


def value_cases(world: Path) -> Iterator[Case]:
    """Yield each entry of each JSON file with each wrong value, in turn.

    Entries take turns with values: not every pair is run, but every entry is, and every
    value in many places. What the owner's key signs is signed again, as by somebody
    else who made the file.
    """
    turn = 0
    for file, readers in JSON_FILES.items():
        places = list(_places(json.loads((world / file).read_text())))
        for place in places:
            for reader in readers:
                for step in range(2):
                    value = VALUES[(turn + 5 * step) % len(VALUES)]
                    shown = ".".join(map(str, place))
                    yield Case(
                        f"{reader}: {file} {shown} = {str(value)[:12]!r}",
                        MORE.get(reader) or BASE[reader],
                        partial(set_value, file, place, value),
                        fine="" if _matters(file, place) else UNREAD,
                    )
                turn += 1


def _matters(file: str, place: tuple[str | int, ...]) -> bool:
    """Say whether a wrong value must be refused, and may not be passed over."""
    return file.endswith("run.json") and place in MUST


MUST: frozenset[tuple[str | int, ...]] = frozenset(
    [("config", "clients"), ("config", "rounds"), ("config", "trainer"), ("format",)]
)


def _places(content: Any, most: int = 80) -> Iterator[tuple[str | int, ...]]:
    """Yield where each entry stands, for so many of them, spread evenly."""
    found: list[tuple[str | int, ...]] = []
    todo: list[tuple[tuple[str | int, ...], Any]] = [((), content)]
    while todo:
        place, value = todo.pop()
        if place:
            found.append(place)
        if isinstance(value, dict):
            todo += [((*place, key), value[key]) for key in value]
        elif isinstance(value, list):
            todo += [((*place, n), one) for n, one in enumerate(value[:2])]
    yield from found[:: max(1, len(found) // most)]


def set_value(file: str, place: tuple[str | int, ...], value: Any, world: Path) -> None:
    """Set an entry of a JSON file, and sign it again where it is signed."""
    path = world / file
    content = json.loads(path.read_text())
    below = content
    for key in place[:-1]:
        below = below[key]
    below[place[-1]] = value
    replace(path, json.dumps(content).encode())
    sign_again(path)


def tensor_cases() -> Iterator[Case]:
    """Yield safetensors whose headers declare what is not there."""
    headers: tuple[Any, ...] = (
        {"a": {"dtype": "F32", "shape": [2**50], "data_offsets": [0, 2**52]}},
        {"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}},
        {"a": {"dtype": "X9", "shape": [1], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [2**32, 2**32], "data_offsets": [0, 0]}},
        {"a": {"dtype": "F4", "shape": [1], "data_offsets": [0, 4]}},
        {"a/b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}},
        {"server": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}},
        [], {"a": []}, {},
    )  # fmt: skip
    for number, header in enumerate(headers):
        text = json.dumps(header).encode()
        content = struct.pack("<Q", len(text)) + text + bytes(4)
        for file in (
            f"{RUN}/transcript/round-0000.safetensors",
            f"{RUN}/kept/personal.safetensors",
        ):
            name = f"attack: {file} header {number}"
            yield Case(name, BASE["attack"], partial(spoil, file, content))
    for size in (2**63, 2**40, 10**8, 0):
        content = struct.pack("<Q", size) + b"{}"
        file = f"{RUN}/transcript/round-0000.safetensors"
        name = f"attack: a header of {size} bytes"
        yield Case(name, BASE["attack"], partial(spoil, file, content))
