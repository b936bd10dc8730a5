from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from privaudit import train
from privaudit.core.errors import TranscriptError
from privaudit.core.seeds import Seeds
from privaudit.core.storage import read_tensors
from privaudit.federation.rounds import Federation
from privaudit.federation.transcript import SERVER
from privaudit.runs.run_files import (
    SAME,
    Checkpoints,
    checkpoint_path,
    drop_checkpoints,
    join_models,
    split_models,
)
from tests.conftest import train_and_stop

GATE, SHARED = torch.ones(2), torch.zeros(3)
MODELS = {
    "client-0": {"context": SHARED, "gate": GATE},
    "client-1": {"context": SHARED.clone()},
    "client-2": {"context": torch.ones(3)},
    "client-10": {"context": SHARED, "gate": GATE + 1},
}


def test_equal_tensors_of_models_are_stored_once() -> None:
    flat = join_models(MODELS)
    kept = {"client-0/context", "client-2/context", "client-0/gate", "client-10/gate"}
    assert set(flat) == {*kept, SAME}
    assert flat[SAME][0].tolist() == [0, 0, 2, *[-1] * 7, 0]
    found = split_models(flat)
    assert list(found) == ["client-0", "client-1", "client-10", "client-2"]
    for client, model in MODELS.items():
        assert set(found[client]) == set(model)
        for name, tensor in model.items():
            assert torch.equal(found[client][name], tensor)


def test_models_that_all_differ_are_stored_as_they_are() -> None:
    flat = join_models({c: MODELS[c] for c in ("client-0", "client-2")})
    assert set(flat) == {"client-0/context", "client-0/gate", "client-2/context"}


@pytest.mark.parametrize("same", [torch.tensor([[5]]), torch.tensor(0), torch.ones(9)])
def test_models_that_do_not_fit_what_they_share_are_refused(same: torch.Tensor) -> None:
    with pytest.raises(TranscriptError, match="does not fit the tensors"):
        split_models({"client-0/context": SHARED, SAME: same})


FEW: dict[str, Any] = {
    "clients": 8, "participation": 0.25, "rounds": 4, "measured_rounds": 1, "seed": 1,
}  # fmt: skip


def empty() -> Federation:
    return Federation({}, Seeds(0))


def states_in(path: Path, rounds: int) -> set[str]:
    tensors = read_tensors(checkpoint_path(path, rounds))
    return {name.partition("/")[0] for name in tensors} - {"rounds", "hashes"}


def saved(path: Path, rounds: Sequence[Sequence[str]]) -> tuple[Federation, str]:
    """Save a federation whose clients keep the number of their last round."""
    federation, checkpoints, found = empty(), Checkpoints(path), ""
    (path / "kept").mkdir(parents=True)
    for number, clients in enumerate(rounds, start=1):
        federation.server = {"round": torch.tensor(number)}
        federation.kept |= {c: {"x": torch.tensor([number])} for c in clients}
        federation.losses = dict.fromkeys(clients, 0.0)
        found = checkpoints.save(federation, number)
        drop_checkpoints(path, but=checkpoints.hashes, ready=lambda: None)
    return federation, found


def test_a_round_writes_its_participants_and_names_the_files_of_others(
    tmp_path: Path,
) -> None:
    rounds = [["a", "b"], ["c", "d"], ["b", "e"]]
    federation, found = saved(tmp_path, rounds)
    assert states_in(tmp_path, 1) == {SERVER, "a", "b"}
    assert states_in(tmp_path, 3) == {SERVER, "b", "e"}
    loaded, checkpoints = empty(), Checkpoints(tmp_path)
    checkpoints.load(loaded, 3, found, ["a", "b", "c", "d", "e", "keeps nothing"])
    assert loaded.server == {"round": torch.tensor(3)}
    assert loaded.kept == {**federation.kept, "keeps nothing": {}}
    assert checkpoints.newest == {"a": 1, "b": 3, "c": 2, "d": 2, "e": 3}
    again, direct = Checkpoints(tmp_path / "a"), saved(tmp_path / "a", [*rounds, ["d"]])
    again.load(empty(), 4, direct[1], federation.kept)
    assert checkpoints.save(direct[0], 4) == direct[1]


def test_a_state_that_is_empty_by_now_stays_empty(tmp_path: Path) -> None:
    federation, found = saved(tmp_path, [["a", "b"], ["c"]])
    checkpoints, after, again = Checkpoints(tmp_path), empty(), empty()
    checkpoints.load(federation, 2, found, "abc")
    federation.kept["a"], federation.server = {}, {}
    federation.losses = {"a": 0.0}
    found = checkpoints.save(federation, 3)
    Checkpoints(tmp_path).load(after, 3, found, "abc")
    assert (after.server, after.kept) == ({}, federation.kept)
    found = checkpoints.save(federation, 4)  # where it took part again
    Checkpoints(tmp_path).load(again, 4, found, "abc")
    assert (again.server, again.kept) == ({}, federation.kept)


def test_files_with_more_states_of_the_past_than_of_now_become_one(
    tmp_path: Path,
) -> None:
    saved(tmp_path, ["abcd", "abc"])
    assert [states_in(tmp_path, n) for n in (1, 2)] == [
        {*"abcd", SERVER},
        {*"abc", SERVER},
    ]
    saved(tmp_path / "whole", ["abcd", "abc", "ab"])  # 4 + 3 + 2 are more than 2 x 4
    (only,) = (tmp_path / "whole" / "kept").iterdir()
    assert only.name == "after-0003.safetensors"
    assert states_in(tmp_path / "whole", 3) == {*"abcd", SERVER}


def test_an_earlier_file_that_was_altered_is_refused(tmp_path: Path) -> None:
    _, found = saved(tmp_path, [["a"], ["b"]])
    file = checkpoint_path(tmp_path, 1)
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(TranscriptError, match=r"after-0001\.safetensors is not"):
        Checkpoints(tmp_path).load(empty(), 2, found, ["a", "b"])


def test_a_run_of_few_participants_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    options = {"folder": tmp_path, **FEW}
    whole = train("dp-fpl", name="whole", **options)
    train_and_stop(3, "dp-fpl", **options)
    cut = tmp_path / "cut"
    drawn = [set(clients) for clients in whole.participants]
    assert states_in(cut, 3) == drawn[2] | {SERVER}
    assert len(list((cut / "kept").iterdir())) > 1
    train("dp-fpl", name="cut", resume=True, **options)
    assert states_in(whole.path, 4) == set.union(*drawn) | {SERVER}
    for file in whole.path.glob("[kt]*/*"):
        assert file.read_bytes() == (cut / file.parent.name / file.name).read_bytes()
