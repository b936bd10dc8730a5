import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from privaudit import load_run, train
from privaudit.core.errors import ConfigError, TranscriptError
from privaudit.core.storage import read_json
from privaudit.privacy.events import ClippedNorm, Trace, noise_std_published
from privaudit.trainers.dp_fpl import DPFPL
from tests.altered_runs import sign_again
from tests.conftest import train_and_stop
from tests.golden import golden
from tests.toy_federation import Play, Shards


def test_the_published_standard_deviations_are_those_of_the_published_code() -> None:
    known = golden("rgp", "noise_")
    columns = [known[n].tolist() for n in ("eps", "delta", "T", "C", "B", "N")]
    got = [noise_std_published(*row) for row in zip(*columns, strict=True)]
    want = np.c_[known["std_local"], known["std_global"]]
    assert np.array(got) == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epsilon", 0.0),
        ("epsilon", -1.0),
        ("epsilon", math.nan),
        ("delta", 0.0),
        ("delta", 1.0),
        ("rounds", 0),
        ("clip_norm", 0.0),
        ("batch_size", 0),
        ("clients", 0),
    ],
)
def test_a_published_value_outside_its_range_is_refused(
    field: str, value: float
) -> None:
    settings: dict[str, float] = {
        "epsilon": 1.0,
        "delta": 1e-5,
        "rounds": 100,
        "clip_norm": 10.0,
        "batch_size": 32,
        "clients": 10,
    }
    with pytest.raises(ConfigError, match=field.split("_")[0]):
        noise_std_published(**(settings | {field: value}))  # type: ignore[arg-type]


QUICK: dict[str, Any] = {
    "mode": "published-paper",
    "epsilon": 0.4,
    "rounds": 4,
    "seed": 0,
}


TRAINER = DPFPL(epsilon=8.0, rank=2, batch_size=5, noise_at="client")


def test_notes_change_nothing_that_is_sent(play: Play, shards: Shards) -> None:
    with_notes, without = play(TRAINER, traced=True).rounds, play(TRAINER).rounds
    assert all(record.trace == {} for record in without)
    for one, other in zip(with_notes, without, strict=True):
        assert [m.describe() for m in one.messages] == [
            m.describe() for m in other.messages
        ]
        assert set(one.trace) == set(shards)


def test_a_cohort_notes_what_its_clients_note_one_by_one(
    play: Play, shards: Shards
) -> None:
    together = play(TRAINER, traced=True).rounds
    alone = play(TRAINER, traced=True, cohort_size=1).rounds
    for one, other in zip(together, alone, strict=True):
        for client, notes in one.trace.items():
            assert notes.batches == other.trace[client].batches
            assert notes.records == len(shards[client])
            squares = [drawn.square for drawn in notes.noise]
            again = [drawn.square for drawn in other.trace[client].noise]
            assert squares == pytest.approx(again, rel=1e-6)


def test_the_largest_norm_of_a_round_stays() -> None:
    """By hand: (3, 4) has norm 5, twice that in the event's units is 10."""
    trace = Trace(torch.tensor([2]))
    trace.clipped("local", "record", {"a": torch.tensor([[[3.0, 4.0], [0, 1]]])}, 2.0)
    trace.clipped("local", "record", {"a": torch.tensor([[[0.0, 1.0], [0, 1]]])}, 2.0)
    assert trace.of(0).norms == (ClippedNorm("local", "record", 10.0),)


def test_noise_counts_all_tensors_of_a_release() -> None:
    trace = Trace(torch.tensor([2]))
    noise = {"u": torch.tensor([[1.0, 2.0]]), "v": torch.tensor([[2.0]])}
    trace.noise("local", noise, 3.0)
    (drawn,) = trace.of(0).noise
    assert (drawn.values, drawn.square) == (3, 81.0)


def test_a_resumed_run_notes_the_same_bytes(tmp_path: Path) -> None:
    whole = train("dp-fpl", name="whole", **QUICK)
    train_and_stop(2, "dp-fpl", **QUICK)
    path = whole.path.parent / "cut" / "trace.jsonl"
    with path.open("a") as file:
        file.write("what a killed run began to wri")
    resumed = train("dp-fpl", name="cut", resume=True, **QUICK)
    assert path.read_bytes() == (whole.path / "trace.jsonl").read_bytes()
    assert resumed.trace == whole.trace
    assert len(resumed.trace or ()) == 4
    for private in (path.parent, path, whole.path / "trace.jsonl"):
        assert (private.stat().st_mode & 0o077) == 0


def test_altered_notes_are_refused(whole: Path) -> None:
    path = whole / "trace.jsonl"
    path.write_bytes(path.read_bytes().replace(b"{}", b"{ }"))
    with pytest.raises(TranscriptError, match=r"trace\.jsonl does not hold the notes"):
        _ = load_run(whole).trace


def test_a_run_of_an_earlier_version_has_no_notes(whole: Path) -> None:
    header = read_json(whole / "run.json")
    del header["progress"]["trace_hash"]
    sign_again(whole, progress=header["progress"])
    assert load_run(whole).trace is None


def test_such_a_run_is_resumed_without_notes(cut: Path) -> None:
    header = read_json(cut / "run.json")
    del header["progress"]["trace_hash"]
    sign_again(cut, progress=header["progress"])
    (cut / "trace.jsonl").unlink()
    run = train(name="cut", rounds=3, epochs=1, resume=True, seed=0)
    assert run.is_complete
    assert run.trace is None
