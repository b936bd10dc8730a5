"""A recording and a ledger become a run, or say why not; damage is found."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

from privaudit import load_run
from privaudit.cli.commands.train import import_recording
from privaudit.cli.options import own_claim
from privaudit.core.errors import ConfigError, PrivauditError
from privaudit.datasets.split import PUBLIC, TEST
from privaudit.privacy.events import Claim
from privaudit.recording.bundle import BUNDLE, Bundle
from privaudit.recording.importing import finish_recording
from privaudit.recording.recorder import Recorder
from privaudit.runs.ledger import Ledger
from privaudit.runs.run_header import save_header
from tests.conftest import Cli
from tests.places import ROOT
from tests.privaudit.recording.small_federation import (
    NAMES,
    Linear,
    owners,
    run_federation,
    toss,
)

SCHEMA = ROOT / "docs" / "bundle.schema.json"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording that nobody has joined with a ledger."""
    place = tmp_path_factory.mktemp("recorded") / "run"
    with Recorder(place, weight="num-examples") as recorder:
        run_federation(recorder, toss(), Linear())
    return place


@pytest.fixture
def copy(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "run"))


def change(folder: Path, **fields: Any) -> None:
    content = json.loads((folder / BUNDLE).read_bytes())
    (folder / BUNDLE).write_text(json.dumps({**content, **fields}))


def test_the_command_makes_a_run(copy: Path, tmp_path: Path, cli: Cli) -> None:
    toss().save(tmp_path / "ledger.npz")
    code, out, _ = cli("import", copy, "--ledger", tmp_path / "ledger.npz", "--json")
    assert code == 0
    assert json.loads(out)["messages"] == len(load_run(copy).transcript) == 18
    assert load_run(copy).population.task.clients == NAMES
    code, _, err = cli("import", copy, "--ledger", tmp_path / "ledger.npz")
    assert code == 2
    assert "is a run already" in err


def test_a_bundle_is_what_its_schema_says(copy: Path) -> None:
    schema = json.loads(SCHEMA.read_bytes())
    assert schema.pop("$schema") == "https://json-schema.org/draft/2020-12/schema"
    assert schema == Bundle.model_json_schema()
    jsonschema.validate(json.loads((copy / BUNDLE).read_bytes()), schema)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"format": 1}, "reads format 2"),
        ({"rounds": -1}, "rounds"),
        ({"rounds": 0}, "holds no round"),
        ({"rounds": "2"}, "rounds"),
        ({"clients": ["../../etc"]}, "clients"),
        ({"aggregation": {"kind": "median"}}, "aggregation.kind"),
        ({"more": 1}, "more"),
        ({"head": "0" * 64}, "replaced"),
        ({"length": 500}, "cut"),
        ({"claimed": {"epsilon": float("nan")}}, "finite"),
        ({"mechanisms": [{"release": "upload"}]}, "rounds"),
        ({"mechanisms": [{"release": "upload", "rounds": [0]}]}, "mechanism"),
        ({"trainer": "x" * 1000}, "trainer"),
        ({"trainer": "\x1b[31mred"}, "trainer"),
        ({"settings": {"note": ["\x1b[2J"]}}, "settings"),
        ({"libraries": {"torch\n": "1"}}, "libraries"),
        ({"rounds": 1}, "uploads were sent in 2"),
        ({"clients": ["client-0"]}, "no such parties"),
        (
            {"aggregation": {"kind": "mean", "weight": "other", "uploads": "models"}},
            "no weight called 'other'",
        ),
    ],
)
def test_a_bundle_that_is_wrong_says_where(
    copy: Path, fields: dict[str, Any], says: str
) -> None:
    change(copy, **fields)
    before = (copy / BUNDLE).read_bytes()
    with pytest.raises(PrivauditError, match=says):
        finish_recording(copy, toss(), claim=Claim(1.0))
    assert not (copy / "run.json").exists()
    assert (copy / BUNDLE).read_bytes() == before


def test_terminals_obey_no_word_of_a_foreign_header(copy: Path) -> None:
    """run.json holds the words again: whoever signs it may write them anew."""
    finish_recording(copy, toss())
    header = load_run(copy).header
    config = {**header["config"], "trainer": "\x1b[2J\nmine: No evidence of a leak"}
    save_header(copy, {**header, "config": config})
    with pytest.raises(PrivauditError, match="control character"):
        _ = load_run(copy).config


def test_an_owner_that_is_no_client_costs_no_memory(tmp_path: Path) -> None:
    owner = owners()
    owner[0] = 2**40
    np.savez(tmp_path / "big.npz", owner=owner, is_member=np.zeros(len(owner), bool))
    with pytest.raises(PrivauditError, match="owners go from"):
        Ledger.load(tmp_path / "big.npz")


def drop(kind: int, keep: int) -> Callable[[], Ledger]:
    def make() -> Ledger:
        owner = owners()
        owner[np.flatnonzero(owner == kind)[keep:]] = -3
        return Ledger(owner, toss().is_member & (owner >= 0))

    return make


@pytest.mark.parametrize(
    ("ledger", "says"),
    [
        (drop(TEST, 0), "0 test records"),
        (drop(PUBLIC, 5), "5 reference records"),
        (drop(2, 1), "client-2 has 1 candidates"),
        (drop(2, 0), "not in the ledger, such as client-2"),
    ],
)
def test_a_ledger_that_does_not_fit_is_refused(
    copy: Path, ledger: Callable[[], Ledger], says: str
) -> None:
    with pytest.raises(PrivauditError, match=says):
        finish_recording(copy, ledger())
    assert not (copy / "run.json").exists()


@pytest.mark.parametrize(
    "name", ["bundle.json", "ledger.npz", "privacy.json", "metrics.jsonl"]
)
def test_a_changed_file_of_a_run_is_found(copy: Path, name: str) -> None:
    finish_recording(copy, toss())
    place = copy / name
    content = bytearray(place.read_bytes())
    content[len(content) // 2] ^= 1
    place.write_bytes(content)
    run = load_run(copy)
    with pytest.raises(PrivauditError):
        _ = (run.transcript, run.truth, run.privacy, run.metrics)


def test_a_changed_message_is_found_before_anything_is_written(copy: Path) -> None:
    shard = copy / "transcript" / "round-0001.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(PrivauditError, match="altered"):
        finish_recording(copy, toss())
    assert not (copy / "run.json").exists()


def test_a_pickle_is_never_read(copy: Path) -> None:
    """An npz with an object in it runs code when numpy unpickles it."""
    marker = copy.parent / "ran"

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (marker,)

    evil = np.array([Evil()], dtype=object)
    np.savez(copy.parent / "evil.npz", owner=evil, is_member=evil)
    with pytest.raises(PrivauditError):
        finish_recording(copy, copy.parent / "evil.npz")
    assert not marker.exists()


def test_nothing_in_the_folder_is_imported(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that lies in a foreign folder, even one with an owner's usual name."""
    marker = copy.parent / "ran"
    for name in ("theirs.py", "sitecustomize.py", "numpy.py"):
        (copy / name).write_text(f"open({str(marker)!r}, 'w')")
    monkeypatch.chdir(copy)
    finish_recording(copy, toss())
    _ = load_run(copy).transcript
    assert not marker.exists()


def test_an_origin_that_nobody_knows_is_refused(copy: Path) -> None:
    """Also where an extra is missing that another module of the folder needs."""
    finish_recording(copy, toss())
    header = load_run(copy).header
    save_header(copy, {**header, "origin": "elsewhere"})
    with pytest.raises(PrivauditError, match="recorded, scores"):
        load_run(copy)


def test_import_says_what_is_there_and_takes_a_claim(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = toss()
    ledger.save(tmp_path / "ledger.npz")
    with Recorder(tmp_path / "run") as recorder:
        recorder.broadcast(0, list(ledger.clients), {"w": torch.zeros(2)})
        for client in ledger.clients:
            recorder.masked(0, client, {"0": torch.ones(3)})
        recorder.broadcast(1, list(ledger.clients), {"w": torch.ones(2)})
    claim = "epsilon=3 delta=1e-4"
    import_recording(str(tmp_path / "run"), tmp_path / "ledger.npz", claim=claim)
    said = capsys.readouterr().out
    assert "3 of kind masked" in said
    assert "Uploads are masked. To be audited: a server that sees sums" in said
    assert "Declared epsilon: none." in said
    run = load_run(tmp_path / "run")
    assert run.privacy["claimed"]["epsilon"] == 3.0
    assert run.privacy["claimed"]["delta"] == 1e-4


@pytest.mark.parametrize(
    "text",
    ["", "8", "delta=1e-5", "epsilon=-1", "epsilon=8 delta=2", "epsilon=8 source=3"],
)
def test_a_claim_that_claims_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--claim|sets nothing"):
        own_claim(text)
