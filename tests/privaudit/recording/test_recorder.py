"""The recorder: what it writes, refuses and leaves; it raises nothing into a federation."""

import gc
import inspect
import json
import logging
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from privaudit import Auditor, lint, load_run
from privaudit.core.errors import (
    ConfigError,
    MissingFileError,
    PrivauditError,
    StorageError,
)
from privaudit.core.tensors import Tensors
from privaudit.privacy.events import Claim, MechanismEvent
from privaudit.recording.bundle import BUNDLE, INCOMPLETE, read_bundle
from privaudit.recording.importing import finish_recording
from privaudit.recording.owner import use_owner
from privaudit.recording.recorder import Recorder
from privaudit.report.page import render_report
from privaudit.report.wording import absent
from privaudit.runs.run import Run
from tests.conftest import Cli
from tests.privaudit.recording.small_federation import (
    FEATURES,
    NAMES,
    ROUNDS,
    Linear,
    X,
    audited,
    first_updates,
    linear,
    record,
    recorded_messages,
    run_federation,
    start,
    toss,
)

NOISE = MechanismEvent(
    release="upload", noise_multiplier=5.0, sensitivity=1.0, clip_norm=1.0,
    sampling_rate=1.0, sampling="fixed-batch", noise_at="client", parties=3,
)  # fmt: skip


def test_what_a_killed_recorder_wrote_can_be_audited(tmp_path: Path) -> None:
    """Rounds count when the next begins; the one that was cut does not."""

    def run() -> None:
        with Recorder(tmp_path / "run", weight="num-examples") as recorder:
            run_federation(recorder, toss(), Linear(), rounds=2)
            recorder.update(2, "client-0", {"weight": torch.ones(1)}, weight=1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    bundle = read_bundle(tmp_path / "run")
    assert bundle.rounds == 2
    ended = finish_recording(tmp_path / "run", toss(), stopped=True)
    assert ended.config.rounds == 2
    assert max(m.round for m in ended.transcript) == 1


def test_lines_beyond_the_last_count_are_dropped(tmp_path: Path) -> None:
    """A kill between a round's messages and its count."""
    recorder = Recorder(tmp_path / "run", weight="num-examples")
    run_federation(recorder, toss(), Linear(), rounds=1)
    counted = (tmp_path / "run" / BUNDLE).read_bytes()
    recorder.close()
    (tmp_path / "run" / BUNDLE).write_bytes(counted)
    run = finish_recording(tmp_path / "run", toss(), stopped=True)
    assert {m.round for m in run.transcript} == {0}


def test_the_last_model_is_given_away_unless_that_is_not_so(tmp_path: Path) -> None:
    run = record(tmp_path / "run").run
    kept = record(tmp_path / "kept", publish=False).run
    assert run is not None
    assert kept is not None
    assert "release" not in {m.kind for m in kept.transcript}
    released = {m.sender: m for m in run.transcript if m.kind == "release"}
    assert set(released) == set(NAMES)
    assert all(m.round == ROUNDS for m in released.values())
    assert load_run(tmp_path / "run").config.publish


def test_a_tensor_is_recorded_as_it_was(tmp_path: Path) -> None:
    """The federation's own code goes on to change it in place."""
    recorder = Recorder(tmp_path / "run")
    weight = torch.zeros(3)
    for client in NAMES:
        inspect.unwrap(Recorder.broadcast)(recorder, np.int64(0), client, {"w": weight})
    weight += 1
    for client in NAMES:
        recorder.update(0, client, {"w": weight.numpy()})
    weight += 1
    recorder.close()
    stored = recorded_messages(tmp_path / "run")
    assert [m.tensors["w"].sum().item() for m in stored] == [0, 0, 0, 3, 3, 3]


def test_repeated_broadcasts_and_second_updates_count_once_whoever_else_sends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Flower sends a model twice, and a second node may claim a partition.

    No client's name is compared with those of others: a round costs no clients squared.
    """

    class Name(str):
        compared = 0
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            Name.compared += 1
            return super().__eq__(other)

    def counted(clients: int) -> int:
        recorder, before = Recorder(tmp_path / f"{clients}"), Name.compared
        for name in [Name(f"client-{number}") for number in range(clients)]:
            for at in range(2):
                recorder.broadcast(0, name, {"w": torch.zeros(3)})
                assert recorder.update(0, name, {"w": torch.ones(3) + at}) is (not at)
        compared = Name.compared - before
        assert recorder.update(1, "client-0", {"w": torch.ones(3)})
        recorder.close()
        stored = recorded_messages(tmp_path / f"{clients}")
        kinds = [message.kind for message in stored]
        assert kinds == ["broadcast", "update"] * clients + ["update"]
        assert all(message.tensors["w"].sum() < 4 for message in stored)
        return compared

    assert counted(80) == 8 * counted(10)
    assert "client-9 sent in round 0 is not recorded" in caplog.text
    assert "second update" in caplog.text


def test_memory_does_not_grow_with_rounds(tmp_path: Path) -> None:
    """All tensors that live are counted: torch's memory is not Python's."""

    def live() -> int:
        gc.collect()
        found = [held for held in gc.get_objects() if type(held) is torch.Tensor]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in found}
        return sum(storage.nbytes() for storage in storages.values())

    def one(round: int) -> int:
        sent = {"w": np.full(100_000, float(round))}
        recorder.broadcast(round, "a", sent)
        recorder.update(round, "a", {"w": sent["w"] + 1})
        return live()

    before, recorder = live(), Recorder(tmp_path / "run")
    taken = [one(round) - before for round in range(6)]
    assert taken[-1] == taken[0] <= 2 * 800_000  # the round that is not yet written


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda r: r.broadcast(0, "a", {}), "nothing is in it"),
        (lambda r: r.broadcast(0, "a/b", {"w": torch.ones(1)}), "no name of a client"),
        (lambda r: r.broadcast(0, "server", {"w": torch.ones(1)}), "taken"),
        (lambda r: r.broadcast(0, "a", {"w": "text"}), "no tensor"),
        (lambda r: r.broadcast(10**9, "a", {"w": torch.ones(1)}), "Count rounds"),
        (lambda r: r.broadcast(-1, "a", {"w": torch.ones(1)}), "Count rounds"),
        (lambda r: r.declare(limit=float("inf")), "settings"),
        (lambda r: r.declare(limit={1, 2}), "settings"),
    ],
)
def test_what_is_no_message_is_refused(tmp_path: Path, spoil: Any, says: str) -> None:
    recorder = Recorder(tmp_path / "run", weight="n")
    with pytest.raises(ConfigError, match=says):
        spoil(recorder)


def test_the_last_model_is_everybodys_where_it_is_one(tmp_path: Path) -> None:
    """Flower evaluates on some clients only: the others have no older model."""
    with Recorder(tmp_path / "run", ledger=toss()) as recorder:
        for client in NAMES:
            recorder.broadcast(0, client, {"w": torch.zeros(3)})
            recorder.update(0, client, {"w": torch.ones(3)})
        recorder.broadcast(1, "client-1", {"w": torch.ones(3)})
    run = recorder.run
    assert run is not None
    released = {m.sender: m.tensors for m in run.transcript if m.kind == "release"}
    assert set(released) == set(NAMES)
    assert all(tensors["w"].sum() == 3 for tensors in released.values())


def test_without_a_last_model_a_server_knows_the_mean(tmp_path: Path) -> None:
    """Nobody broadcast what came of the last round; who summed it knows."""
    with Recorder(tmp_path / "run", ledger=toss(), weight="n") as recorder:
        recorder.broadcast(0, NAMES, start())
        for number, (client, sent) in enumerate(first_updates().items()):
            weight = len(toss().members_of(number))
            recorder.update(0, client, sent, weight=weight)
    audit = audited(tmp_path / "run", "server-aggregate", shadows=0)
    assert audit.auroc.value > 0.95


def test_a_weight_that_nobody_declared_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no name is declared for weights"):
        Recorder(tmp_path / "run").update(0, "a", {"w": torch.ones(1)}, weight=3)


def test_a_round_that_is_written_is_not_added_to(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run")
    recorder.broadcast(0, "a", {"w": torch.ones(1)})
    recorder.broadcast(1, "a", {"w": torch.ones(1)})
    with pytest.raises(ConfigError, match="written already"):
        recorder.update(0, "a", {"w": torch.ones(1)})
    recorder.close()
    with pytest.raises(ConfigError, match="written already"):
        recorder.update(1, "a", {"w": torch.ones(1)})


def test_what_is_there_or_missing_is_said_with_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # as where Flower runs an app, which nobody knows
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match=re.escape(f"{tmp_path}/run holds")):
        Recorder("run")
    with pytest.raises(MissingFileError, match=re.escape(f" in {tmp_path}.")):
        Recorder("other", ledger="ledger.npz")


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "theirs.txt").write_text("mine")
    with pytest.raises(ConfigError, match="no run"):
        Recorder(tmp_path)
    record(tmp_path / "run")
    before = (tmp_path / "run" / "run.json").read_bytes()
    with pytest.raises(PrivauditError):
        Recorder(tmp_path / "run")
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_one_mechanism_twice_in_a_round_composes(tmp_path: Path) -> None:
    epsilons = []
    for times in (1, 2):
        with Recorder(tmp_path / f"run-{times}", ledger=toss(), weight="n") as recorder:
            for _ in range(times):
                recorder.mechanism(0, NOISE)
            run_federation(recorder, toss(), Linear(), rounds=1)
        certified = load_run(tmp_path / f"run-{times}").privacy["certified"]
        assert certified["server"]["epsilon"] is None
        epsilons.append(certified["server"]["declared"])
    assert epsilons[1] > 1.3 * epsilons[0]


def test_mechanisms_are_declared_and_accounted_for(tmp_path: Path) -> None:
    """Noise of 0.01 clip norms a round proves next to nothing, and lint says so."""
    event = replace(NOISE, noise_multiplier=0.01, unit="client")
    with Recorder(
        tmp_path / "run",
        ledger=toss(),
        weight="num-examples",
        claim=Claim(8.0, 1e-5, "the paper's formula"),
    ) as recorder:
        for round in range(ROUNDS):
            recorder.mechanism(round, event)
        run_federation(recorder, toss(), Linear())
    run = load_run(tmp_path / "run")
    groups = json.loads((tmp_path / "run" / BUNDLE).read_bytes())["mechanisms"]
    assert [group["rounds"] for group in groups] == [[0, 1]]
    certificate = run.privacy["certified"]["server"]
    assert certificate["unit"] == "client"
    assert certificate["epsilon"] is None
    assert certificate["declared"] > 1000
    found = {finding.rule: finding.severity for finding in lint(run)}
    assert found["claim-covers-certificate"] == "error"


def test_a_stopped_recording_gives_no_verdict_as_if_it_were_whole(
    tmp_path: Path, cli: Cli
) -> None:
    """By an error, or a kill: without close() nobody knows what was to come."""
    folder, ledger = tmp_path / "run", tmp_path / "ledger.npz"
    toss().save(ledger)

    def fails(recorder: Recorder) -> None:
        with recorder:
            run_federation(recorder, toss(), Linear(), rounds=1)  # and a broadcast
            raise RuntimeError

    one = Recorder(folder, ledger=toss(), weight="n")
    with pytest.raises(RuntimeError):
        fails(one)
    assert not (folder / "run.json").exists()
    assert one.run is None
    code, _, said = cli("import", folder, "--ledger", ledger)
    assert code == 2
    assert "was stopped" in said
    assert "--stopped" in said
    assert not (folder / "run.json").exists()
    code, said, _ = cli("import", folder, "--ledger", ledger, "--stopped")
    assert code == 0
    assert load_run(folder).config.settings == {
        "recording": "stopped after round 1, before the federation's end"
    }
    whole = record(tmp_path / "whole").run
    assert whole is not None
    assert "recording" not in whole.config.settings


W = {"weight": torch.ones(4, 192), "bias": torch.ones(4)}
NOT_RECORDED: dict[str, tuple[Any, Any]] = {
    "nothing": ({}, 5),
    "no mapping": (3, 5),
    "no tensor": ({"weight": object()}, 5),
    "objects": ({"weight": np.array([None, {}])}, 5),
    "texts": ({"weight": np.array(["a", "b"])}, 5),
    "dates": ({"weight": np.array(["2026-01-01"], dtype="datetime64[D]")}, 5),
    "rows of two lengths": ({"weight": [[1.0], [1.0, 2.0]]}, 5),
    "complex": ({n: t.to(torch.complex64) for n, t in W.items()}, 5),
    "sparse": ({"weight": torch.ones(2, 2).to_sparse()}, 5),
    "no memory": ({"weight": torch.ones(1, device="meta")}, 5),
    "a name of 20 MB": ({**W, "x" * 20_000_000: torch.ones(1)}, 5),
    "many names": ({str(n): torch.ones(1) for n in range(200_000)}, 5),
    "no weight": (W, None),
    "a negative weight": (W, -1),
    "a weight of NaN": (W, np.nan),
    "an infinite weight": (W, np.inf),
    "a weight of many digits": (W, 10**400),
    "a weight beyond float32": (W, 1e300),
    "a weight in words": (W, "many"),
    "two weights": (W, torch.ones(2)),
    "a tensor of the weight's name": ({**W, "num-examples": torch.ones(3, 2)}, 5),
}
RECORDED: dict[str, tuple[Any, Any]] = {
    "not finite": ({**W, "bias": torch.tensor([np.nan, np.inf, 0, 0])}, 5),
    "a tensor less": ({"weight": W["weight"]}, 5),
    "a tensor more": ({**W, "more": torch.ones(3)}, 5),
    "other shapes": ({"weight": torch.ones(2, 2), "bias": torch.ones(())}, 5),
    "empty": ({"weight": torch.ones(0, 192), "bias": torch.ones(0)}, 5),
    "other types": ({n: t.to(torch.int8) for n, t in W.items()}, 5),
    "truth values": ({n: t > 0 for n, t in W.items()}, 5),
    "huge": ({n: t * 3e38 for n, t in W.items()}, 5),
    "odd names": ({**W, "\ud800\x1b[31m../../x\n": torch.ones(1)}, 5),
    "weighs nothing": (W, 0),
    "weighs much": (W, 2.0**62),
}


OF_ANOTHER_FORM = ("a tensor less", "other shapes", "empty")


def odd_run(folder: Path, tensors: Any, weight: Any) -> Run:
    """Record a federation whose second client sends the same odd update in each round."""

    def say(said: Recorder, at: int, client: str, sent: Tensors, count: int) -> None:
        if client == NAMES[1]:
            said.update(at, client, tensors, weight=weight)
        else:
            said.update(at, client, sent, weight=count)

    record(folder, played={"say": say})
    return load_run(folder)


@pytest.mark.parametrize("odd", NOT_RECORDED)
def test_what_is_no_update_is_left_out_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, odd: str
) -> None:
    run = odd_run(tmp_path / "run", *NOT_RECORDED[odd])
    said = [r for r in caplog.records if r.name == "privaudit.recording"]
    assert len(said) == 1
    assert f"What {NAMES[1]} sent in round 0 is not recorded" in said[0].getMessage()
    assert len(said[0].getMessage()) < 1000
    assert run.participants == [(NAMES[0], NAMES[2])] * 2
    assert run.config.settings["left_out"] == {NAMES[1]: 2}


@pytest.mark.parametrize("odd", ["complex", *RECORDED])
def test_an_odd_update_is_recorded_as_it_was_sent_and_can_be_linted_and_audited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, odd: str
) -> None:
    run = odd_run(tmp_path / "run", *{**RECORDED, **NOT_RECORDED}[odd])
    if odd in RECORDED:
        assert run.participants == [NAMES] * 2
        assert len(caplog.records) == (odd in OF_ANOTHER_FORM)
    with use_owner(Linear()):
        assert not [one for one in lint(run) if one.severity == "error"]
        audit = Auditor(run).attack("server-reconstruct", shadows=0)
    attacked = {client.client for client in audit.headline.clients}
    assert {NAMES[0], NAMES[2]} <= attacked


def fill_the_disk(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)


def delete_the_folder(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    shutil.rmtree(folder)


def put_a_file_there(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    shutil.rmtree(folder / "transcript")
    (folder / "transcript").write_text("")


@pytest.mark.parametrize("fail", [fill_the_disk, delete_the_folder, put_a_file_there])
def test_a_recorder_that_cannot_write_stops_and_no_run_is_made(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fail: Callable[[pytest.MonkeyPatch, Path], None],
) -> None:
    folder, ledger = tmp_path / "run", toss()

    def say(said: Recorder, at: int, client: str, sent: Tensors, count: int) -> None:
        if (at, client) == (1, NAMES[0]):
            fail(monkeypatch, folder)
        said.update(at, client, sent, weight=count)

    recorder = record(folder, ledger, played={"rounds": 4, "say": say})
    monkeypatch.undo()
    assert recorder.run is None
    errors = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "no run is made of it" in errors[0].getMessage()
    if fail is not delete_the_folder:
        assert (folder / INCOMPLETE).exists()
        with pytest.raises(ConfigError, match="was not recorded whole"):
            finish_recording(folder, ledger)
        with pytest.raises(ConfigError, match=INCOMPLETE):
            Recorder(folder)


def test_a_run_that_cannot_be_written_at_the_end_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise StorageError("Cannot write: the disk is full.")

    place = "privaudit.recording.recorder.finish_recording"
    with Recorder(tmp_path / "run", ledger=toss(), weight="n") as recorder:
        run_federation(recorder, toss(), Linear())
        monkeypatch.setattr(place, full)
    assert "no run yet: Cannot write" in caplog.text
    assert finish_recording(tmp_path / "run", toss()).is_complete


@pytest.mark.parametrize("names", [NAMES[:2], NAMES])
def test_after_the_first_round_the_log_says_of_how_many_clients_it_is_and_the_page_who_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, names: tuple[str, ...]
) -> None:
    caplog.set_level(logging.INFO, logger="mylib")
    record(tmp_path, library="mylib", played={"names": names})
    (said,) = [line for line in caplog.records if line.name == "mylib.privaudit"]
    assert f"In round 0 uploads of {len(names)} of 3 clients" in said.message
    is_short = len(names) < 3
    assert said.levelno == (logging.WARNING if is_short else logging.INFO)
    audit = audited(tmp_path, shadows=0)
    why = "Not attacked: client-2, which sent nothing that was recorded." * is_short
    assert absent(audit) == why
    assert ("Not attacked" in render_report([audit])) == is_short


def test_an_upload_that_is_less_or_coarser_than_what_was_received_is_a_setting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def say(
        recorder: Recorder, round: int, client: str, sent: Tensors, count: int
    ) -> None:
        recorder.update(round, client, {"weight": sent["weight"].half()}, weight=count)

    record(tmp_path, settings={"quantised": "mine"}, played={"say": say})
    settings = read_bundle(tmp_path).settings
    assert settings["partial"] == "1 of 2 tensors, without bias"
    assert settings["quantised"] == "mine"  # the owner's own words come first
    assert caplog.text.count("sends 1 of 2 tensors") == 1


def test_uploads_of_other_names_or_without_a_broadcast_are_said_in_the_first_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Recorder(tmp_path) as recorder:
        with pytest.raises(ConfigError, match=r"given as a list\. Give tensors"):
            recorder.broadcast(0, "client-0", [torch.ones(2)])
        recorder.broadcast(0, "client-0", {"weight": torch.ones(2)})
        for client in ("client-0", "client-1"):
            recorder.update(0, client, {"module.weight": torch.ones(2)})
    assert caplog.text.count("client-0 sends 0 of 1 tensors, without weight") == 1
    assert "No broadcast to client-1 was recorded in round 0" in caplog.text


def test_uploads_of_another_shape_are_said_in_the_first_round_and_attacked_by_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As trees in bytes are: no weights move, and a model answers all the same."""

    def say(
        recorder: Recorder, round: int, client: str, sent: Tensors, count: int
    ) -> None:
        turned = {**sent, "weight": sent["weight"].T.contiguous()}
        recorder.update(round, client, turned, weight=count)
        assert "1 of 2 tensors in another shape than it received" in caplog.text

    def query(tensors: Tensors, positions: np.ndarray) -> torch.Tensor:
        weight = tensors["weight"]
        turned = weight if len(weight) == FEATURES else weight.T
        return X[positions] @ turned + tensors["bias"]

    record(tmp_path, played={"say": say})
    assert caplog.text.count("another shape") == 1
    audit = audited(tmp_path, owner=linear(query=query), shadows=0)
    assert str(audit.run.config.settings["reshaped"]).startswith("1 of 2 tensors")
    assert audit.auroc.value > 0.75
