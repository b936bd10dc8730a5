import json
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from privaudit.core.errors import TranscriptError
from privaudit.core.tensors import digest
from privaudit.federated.transcripts.transcript import (
    SERVER,
    Message,
    Transcript,
    TranscriptFolder,
)

Stored = tuple[TranscriptFolder, Transcript]


def message(round: int, client: str, value: float) -> Message:
    return Message(
        round, client, SERVER, "update", {"context": torch.full((2,), value)}
    )


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    folder, transcript = TranscriptFolder(tmp_path), Transcript()
    for round in range(3):
        messages = [message(round, f"client-{i}", i + round) for i in range(2)]
        folder.write(round, messages, [transcript.append(m) for m in messages])
    return folder, transcript


def test_a_stored_transcript_reads_back_the_same(stored: Stored) -> None:
    folder, transcript = stored
    again = folder.read(head=transcript.head, length=6)
    assert [m.describe() for m in again] == [m.describe() for m in transcript]


def test_a_cut_tail_is_noticed(stored: Stored) -> None:
    folder, transcript = stored
    lines = folder.manifest.read_bytes().splitlines(keepends=True)
    folder.manifest.write_bytes(b"".join(lines[:4]))
    with pytest.raises(TranscriptError, match=r"has 4 messages, .* recorded 6: .* cut"):
        folder.read(head=transcript.head, length=6)


def test_truncating_keeps_what_counts(stored: Stored) -> None:
    folder, transcript = stored
    short = Transcript()
    for one in list(transcript)[:4]:
        short.append(one)
    kept = folder.truncate(head=short.head, length=4)
    assert kept.head == short.head
    assert len(folder.read(head=short.head, length=4)) == 4
    assert sorted(p.name for p in folder.folder.glob("round-*")) == [
        "round-0000.safetensors",
        "round-0001.safetensors",
    ]


@pytest.mark.parametrize("line", [b"garbage", b"\xff", b"[]", b"{}", b"[" * 99999])
def test_a_damaged_line_is_refused_and_nothing_is_dropped(
    line: bytes, stored: Stored
) -> None:
    folder, transcript = stored
    lines = folder.manifest.read_bytes().splitlines()
    folder.manifest.write_bytes(b"\n".join([lines[0], line, *lines[2:]]))
    before = {p.name: p.read_bytes() for p in folder.folder.iterdir()}
    with pytest.raises(TranscriptError, match="line 2 is not a message"):
        folder.read(head=transcript.head, length=6)
    with pytest.raises(TranscriptError, match="line 2 is not a message"):
        folder.truncate(head=transcript.head, length=6)
    with pytest.raises(TranscriptError, match="cut"):
        folder.truncate(head=transcript.head, length=7)
    assert {p.name: p.read_bytes() for p in folder.folder.iterdir()} == before


def test_an_altered_tensor_names_file_and_round(stored: Stored) -> None:
    folder, transcript = stored
    path = folder.folder / "round-0001.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(TranscriptError, match=r"round 1.*round-0001\.safetensors"):
        folder.read(head=transcript.head, length=6)


def test_a_truncated_file_names_file_and_round(stored: Stored) -> None:
    folder, transcript = stored
    path = folder.folder / "round-0002.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(TranscriptError, match=r"Round 2: .*round-0002\.safetensors"):
        folder.read(head=transcript.head, length=6)


@settings(
    deadline=None,  # a busy machine's first example may take long
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=30,
)
@given(line=st.integers(0, 5), field=st.sampled_from(["round", "sender", "kind"]))
def test_no_line_of_the_manifest_can_be_changed(
    stored: Stored, line: int, field: str
) -> None:
    folder, transcript = stored
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
            folder.read(head=transcript.head, length=6)
    folder.manifest.write_text(whole)


def test_swapped_messages_are_noticed(stored: Stored) -> None:
    folder, transcript = stored
    lines = folder.manifest.read_text().splitlines()
    folder.manifest.write_text("\n".join([lines[1], lines[0], *lines[2:]]))
    with pytest.raises(TranscriptError, match="line 1"):
        folder.read(head=transcript.head, length=6)


def test_what_many_receive_is_stored_once(tmp_path: Path) -> None:
    folder, transcript = TranscriptFolder(tmp_path), Transcript()
    shared = torch.zeros(1000)
    messages = [
        Message(0, SERVER, f"client-{i}", "broadcast", {"context": shared})
        for i in range(50)
    ]
    folder.write(0, messages, [transcript.append(m) for m in messages])
    assert (tmp_path / "round-0000.safetensors").stat().st_size < 5000


def test_a_digest_tells_shapes_and_types_apart() -> None:
    flat = torch.zeros(4)
    assert len({digest(flat), digest(flat.view(2, 2)), digest(flat.int())}) == 3
