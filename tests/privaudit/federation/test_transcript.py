import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from privaudit.core.errors import LimitError, TranscriptError
from privaudit.core.storage import write_tensors
from privaudit.core.tensors import digest
from privaudit.federation.transcript import (
    SERVER,
    ChainEnd,
    Message,
    Shard,
    Transcript,
    TranscriptFolder,
    bytes_sent,
)

Stored = tuple[TranscriptFolder, list[Message], ChainEnd]


def message(round: int, client: str, value: float) -> Message:
    return Message(
        round, client, SERVER, "update", {"context": torch.full((2,), float(value))}
    )


def written(folder: Path, messages: list[Message]) -> tuple[TranscriptFolder, ChainEnd]:
    """Store messages, round by round."""
    stored, end = TranscriptFolder(folder), ChainEnd()
    for index in sorted({m.round for m in messages}):
        end = stored.write(index, [m for m in messages if m.round == index], end)
    return stored, end


def read(folder: TranscriptFolder, end: ChainEnd) -> Transcript:
    return folder.read(head=end.head, length=end.length)


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    messages = [message(n, f"client-{i}", i + n) for n in range(3) for i in range(2)]
    folder, end = written(tmp_path, messages)
    return folder, messages, end


def test_a_stored_transcript_reads_back_the_same(stored: Stored) -> None:
    folder, messages, end = stored
    again = read(folder, end).check()
    assert [m.describe() for m in again] == [m.describe() for m in messages]
    assert again.end == end


def test_a_cut_tail_is_noticed(stored: Stored) -> None:
    folder, _, end = stored
    lines = folder.manifest.read_bytes().splitlines(keepends=True)
    folder.manifest.write_bytes(b"".join(lines[:4]))
    with pytest.raises(TranscriptError, match=r"has 4 lines, .* recorded 6: .* cut"):
        read(folder, end)


def test_truncating_keeps_what_counts(stored: Stored) -> None:
    folder, _, _ = stored
    lines = folder.manifest.read_text().splitlines()
    head = json.loads(lines[3])["hash"]
    kept = folder.truncate(head=head, length=4)
    assert kept.end == ChainEnd(head, 4)
    assert len(folder.read(head=head, length=4)) == 4
    assert sorted(p.name for p in folder.folder.glob("round-*")) == [
        "round-0000.safetensors",
        "round-0001.safetensors",
    ]


@pytest.mark.parametrize(
    "line",
    [
        *(b"garbage", b"\xff", b"[]", b"{}", b"[" * 99999, b'{"round": 0, "round": 1}'),
        b'{"round": 0, "sender": "a", "receivers": ["b"], "kind": "updat", "tensors": {}}',
    ],
)
def test_a_damaged_line_is_refused_and_nothing_is_dropped(
    line: bytes, stored: Stored
) -> None:
    folder, _, end = stored
    lines = folder.manifest.read_bytes().splitlines()
    folder.manifest.write_bytes(b"\n".join([lines[0], line, *lines[2:]]))
    before = {p.name: p.read_bytes() for p in folder.folder.iterdir()}
    with pytest.raises(TranscriptError, match="line 2 is not a message"):
        read(folder, end)
    with pytest.raises(TranscriptError, match="line 2 is not a message"):
        folder.truncate(head=end.head, length=6)
    with pytest.raises(TranscriptError, match="cut"):
        folder.truncate(head=end.head, length=7)
    assert {p.name: p.read_bytes() for p in folder.folder.iterdir()} == before


def refuse_tensors(
    folder: TranscriptFolder, end: ChainEnd, says: str, *, at_once: bool
) -> None:
    """Check that damage to round 1 is noticed: at once, or as soon as it is used.

    A run that goes on with it drops nothing.
    """
    before = {p.name: p.read_bytes() for p in folder.folder.iterdir()}
    if at_once:
        with pytest.raises(TranscriptError, match=says):
            read(folder, end)
    else:
        whole, damaged = read(folder, end)[0], read(folder, end)[2]
        assert whole.tensors["context"].tolist() == [0, 0]
        with pytest.raises(TranscriptError, match=says):
            _ = damaged.tensors["context"]
        with pytest.raises(TranscriptError, match=says):
            read(folder, end).check()
    fourth = json.loads(folder.manifest.read_text().splitlines()[3])["hash"]
    with pytest.raises(TranscriptError, match=says):
        folder.truncate(head=fourth, length=4)
    assert {p.name: p.read_bytes() for p in folder.folder.iterdir()} == before


def test_a_shard_that_is_replaced_after_it_was_opened_is_noticed(
    stored: Stored,
) -> None:
    folder, messages, end = stored
    path = folder.folder / "round-0001.safetensors"
    used = read(folder, end)[2]
    path.write_bytes((folder.folder / "round-0002.safetensors").read_bytes())
    with pytest.raises(TranscriptError, match="hash of a tensor"):
        _ = used.tensors["context"]
    path.write_bytes(path.read_bytes()[:-9])  # cut while it is used: no signal kills
    with pytest.raises(TranscriptError, match="shorter than it was"):
        _ = used.tensors["context"]
    path.unlink()
    with pytest.raises(TranscriptError, match=r"Round 1: There is no round-0001"):
        _ = used.tensors["context"]
    write_tensors(path, {digest(t): t for t in used_tensors(messages, 1)})
    assert used.tensors["context"].tolist() == [1, 1]


def used_tensors(messages: list[Message], round: int) -> list[torch.Tensor]:
    return [m.tensors["context"] for m in messages if m.round == round]


def test_tensors_of_another_round_are_refused(stored: Stored) -> None:
    """A manifest whose chain is whole, and which names what its shard lacks."""
    folder, _, _ = stored
    end, lines = ChainEnd(), []
    for text in folder.manifest.read_text().splitlines():
        entry = json.loads(text)
        del entry["hash"]
        entry["round"] = 2 - entry["round"]
        end = end.after(entry)
        lines.append(json.dumps({**entry, "hash": end.head}))
    folder.manifest.write_text("\n".join(lines))
    with pytest.raises(TranscriptError, match=r"Round 2: .* lacks a tensor"):
        read(folder, end)


def header_of(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header: dict[str, Any] = json.loads(content[8 : 8 + length])
    return header


def with_header(path: Path, text: str) -> None:
    """Give a shard another header, before the same tensors."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    data = content[8 + length :]
    path.write_bytes(struct.pack("<Q", len(text)) + text.encode() + data)


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    content[-9] ^= 1
    path.write_bytes(bytes(content))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def named_twice(path: Path) -> None:
    text = json.dumps(header_of(path))
    with_header(path, "{" + text[1:-1] + "," + text[1:])


def lying(field: str, value: object, first: int = -1) -> Callable[[Path], None]:
    """Let the last tensors in a shard's header be described otherwise."""

    def lie(path: Path) -> None:
        header = header_of(path)
        for entry in list(header.values())[first:]:
            entry[field] = value
        with_header(path, json.dumps(header))

    return lie


@pytest.mark.parametrize(
    ("damage", "says", "at_once"),
    [
        (flipped, r"round-0001\.safetensors .*hash of a tensor.* altered", False),
        (lying("shape", [1, 2], 0), "hash of a tensor", False),
        (lying("shape", [2, 1], 0), "hash of a tensor", False),
        (lying("dtype", "I32", 0), "hash of a tensor", False),
        (lying("dtype", "U32", 0), "hash of a tensor", False),
        (cut, r"round-0001\.safetensors .*cut", True),
        (named_twice, "stands twice", True),
        (lying("shape", [3]), "shape and bytes differ", True),
        (lying("shape", [-2]), "no whole number", True),
        (lying("shape", [2.0]), "no whole number", True),
        (lying("shape", [True, 2]), "no whole number", True),
        (lying("shape", [2**62, 2**62, 2**62]), "shape and bytes differ", True),
        (lying("dtype", "F4"), "F4", True),
        (lying("data_offsets", [0, 8]), "overlap", True),
        (lying("data_offsets", [8, 0]), "differ", True),
        (lying("data_offsets", [2**40, 2**40 + 8]), "overlap, or leave gaps", True),
        (lying("data_offsets", [0]), "unpack", True),
    ],
)
def test_a_damaged_shard_names_its_round(
    damage: Callable[[Path], None], says: str, at_once: bool, stored: Stored
) -> None:
    folder, _, end = stored
    damage(folder.folder / "round-0001.safetensors")
    refuse_tensors(folder, end, f"Round 1: .*{says}", at_once=at_once)


def test_a_large_header_or_tensor_is_not_read(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _, end = stored
    monkeypatch.setenv("PRIVAUDIT_MAX_TENSORS", "7")
    with pytest.raises(LimitError, match=r"A tensor in .* has 8 bytes"):
        read(folder, end).check()
    monkeypatch.setenv("PRIVAUDIT_MAX_TEXT", "7")
    with pytest.raises(LimitError, match="The header of"):
        read(folder, end)


def test_tensors_are_read_when_they_are_asked_for_and_not_kept(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _, end = stored
    keys: list[str] = []
    real = Shard._read

    def counted(shard: Shard, place: Any, key: str) -> torch.Tensor:
        keys.append(key)
        return real(shard, place, key)

    monkeypatch.setattr(Shard, "_read", counted)
    transcript = read(folder, end)
    assert bytes_sent(transcript) == {"up": 48, "down": 0}
    assert list(transcript[0].tensors) == ["context"]
    assert "other" not in transcript[0].tensors
    assert not keys
    held = transcript[0].tensors["context"]
    assert transcript[0].tensors["context"] is held  # while somebody holds it
    assert len(keys) == 1
    del held
    _ = transcript[0].tensors["context"]
    assert len(keys) == 2


@settings(
    deadline=None,  # a busy machine's first example may take long
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=30,
)
@given(line=st.integers(0, 5), field=st.sampled_from(["round", "sender", "kind"]))
def test_no_line_of_the_manifest_can_be_changed(
    stored: Stored, line: int, field: str
) -> None:
    folder, _, end = stored
    whole = folder.manifest.read_text()
    lines = whole.splitlines()
    entry = json.loads(lines[line])
    entry[field] = 2 - entry[field] if field == "round" else "someone"
    changed = json.dumps(entry, sort_keys=True)
    if changed != lines[line]:
        folder.manifest.write_text(
            "\n".join([*lines[:line], changed, *lines[line + 1 :]])
        )
        with pytest.raises(TranscriptError):
            read(folder, end)
    folder.manifest.write_text(whole)


def test_swapped_messages_are_noticed(stored: Stored) -> None:
    folder, _, end = stored
    lines = folder.manifest.read_text().splitlines()
    folder.manifest.write_text("\n".join([lines[1], lines[0], *lines[2:]]))
    with pytest.raises(TranscriptError, match="line 1"):
        read(folder, end)


def test_what_many_receive_is_one_line_and_digested_and_stored_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests: list[torch.Tensor] = []

    def counted(tensor: torch.Tensor) -> str:
        digests.append(tensor)
        return digest(tensor)

    monkeypatch.setattr("privaudit.federation.transcript.digest", counted)
    shared, other = torch.zeros(1000), torch.ones(1000)
    models = [shared] * 50 + [other] * 2 + [shared]
    messages = [
        Message(0, SERVER, f"client-{i}", "broadcast", {"context": one})
        for i, one in enumerate(models)
    ]
    folder, end = written(tmp_path, messages)
    assert len(digests) == 2
    assert (tmp_path / "round-0000.safetensors").stat().st_size < 9000
    assert end.length == 3
    again = read(folder, end)
    assert [m.receiver for m in again] == [m.receiver for m in messages]
    assert len({id(m.tensors) for m in again}) == 2
    assert all(
        torch.equal(a.tensors["context"], b.tensors["context"])
        for a, b in zip(again, messages, strict=True)
    )


def test_a_digest_tells_shapes_and_types_apart() -> None:
    flat = torch.zeros(4)
    assert len({digest(flat), digest(flat.view(2, 2)), digest(flat.int())}) == 3
