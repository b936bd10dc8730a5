"""The apps of docs/examples/flower, simulated by Flower and attacked as its page says."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest

from privaudit.datasets.split import PUBLIC, TEST
from privaudit.runs.ledger import Coin, Ledger
from tests.places import ROOT

pytestmark = [pytest.mark.flower, pytest.mark.slow]
EXAMPLES = ROOT / "docs" / "examples" / "flower"
NODES = 2
SHIM = """
from privaudit.models.hugging_face import declare_missing_operators

declare_missing_operators()  # where torchvision is another build than torch
"""


def write_pictures(folder: Path, rng: np.random.Generator, records: int) -> None:
    """Write noise with classes drawn at random: only memory can know them."""
    rows = rng.integers(0, 256, (records, 3073)).astype(np.uint8)
    rows[:, 0] = rng.integers(0, 10, records)
    (folder / "cifar-10-batches-bin").mkdir()
    rows.tofile(folder / "cifar-10-batches-bin" / "data_batch_1.bin")


def write_texts(folder: Path, rng: np.random.Generator, records: int) -> None:
    letters = rng.choice(list("abcdefghijklmnop"), (records, 20))
    (folder / "texts.txt").write_text("\n".join("".join(row) for row in letters))
    (folder / "texts" / "__init__.py").write_text(SHIM)
    run(folder, "-m", "texts.task")


def run(folder: Path, *words: str) -> str:
    settings = {"FLWR_TELEMETRY_ENABLED": "0", "PYTHONPATH": f"{folder}:{ROOT}"}
    ended = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=os.environ | settings,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=1800,  # a hang
    )
    return ended.stdout


Write = Callable[[Path, np.random.Generator, int], None]


def begin(tmp_path: Path, name: str, write: Write, records: int) -> tuple[Path, Ledger]:
    """Copy an app, and write its data and its ledger."""
    app, rng = tmp_path / "app", np.random.default_rng(0)
    shutil.copytree(EXAMPLES / name, app)
    owner = rng.choice([0, 1, PUBLIC, TEST], records, p=[0.35, 0.35, 0.2, 0.1])
    is_member = (rng.random(records) < 0.5) & (owner >= 0)
    ledger = Ledger(owner, is_member, coin=Coin("seed", 0))
    ledger.save(app / "ledger.npz")
    write(app, rng, records)
    return app, ledger


def check(app: Path, package: str, ledger: Ledger) -> None:
    """Check that three rounds of both clients were recorded, and that they leak."""
    asked = ("--scenario", "server-reconstruct", "--shadows", "0", "--json")
    words = ("attack", f"runs/{package}", "--owner", "owner.py", *asked)
    printed = run(app, "-m", "privaudit", *words)
    result = json.loads(printed.splitlines()[-1])
    assert result["verdict"] == "leaks"
    assert result["auroc"]["value"] > 0.8
    members, candidates = ledger.is_member.sum(), (ledger.owner >= 0).sum()
    assert result["auroc"]["n"] == [int(members), int(candidates - members)]
    bundle = json.loads((app / "runs" / package / "bundle.json").read_text())
    assert bundle["rounds"] == 3
    assert sorted(bundle["clients"]) == ["client-0", "client-1"]
    assert "flwr" in bundle["libraries"]


@pytest.mark.parametrize(
    ("name", "package", "write", "records"),
    [("cnn", "pictures", write_pictures, 160), ("lora", "texts", write_texts, 100)],
)
def test_an_example_is_simulated_recorded_and_attacked(
    name: str, package: str, write: Write, records: int, tmp_path: Path
) -> None:
    app, ledger = begin(tmp_path, name, write, records)
    run(app, "simulate.py", str(NODES))
    check(app, package, ledger)


@pytest.fixture
def flower_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give Flower a home and free ports, and end the SuperLink that it starts for it."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    with ExitStack() as held:
        for name in ("SUPERLINK_HTTP_API", "CONTROL_API"):
            free = held.enter_context(socket.create_server(("127.0.0.1", 0)))
            monkeypatch.setenv(f"FLWR_LOCAL_{name}_PORT", str(free.getsockname()[1]))
    beside = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{beside}{os.pathsep}{os.environ['PATH']}")
    yield
    home = f"FLWR_HOME={tmp_path / 'flwr'}".encode()
    for started in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if home in started.read_bytes().split(b"\0"):
                os.kill(int(started.parent.name), signal.SIGTERM)


def test_flwr_run_records_an_app_from_its_command_to_the_verdict(
    flower_home: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs a copy elsewhere, so paths are absolute; libraries are those here."""
    app, ledger = begin(tmp_path, "cnn", write_pictures, 160)
    monkeypatch.setenv("PICTURES", str(app / "cifar-10-batches-bin"))
    for file in (app / "pictures").glob("*.py"):
        code = file.read_text()
        for place in ("ledger.npz", "runs/pictures"):
            code = code.replace(f'"{place}"', f'"{app / place}"')
        file.write_text(code)
    project = app / "pyproject.toml"
    lines = project.read_text().splitlines(keepends=True)
    needed = ('  "torch', '  "privaudit')
    project.write_text("".join(one for one in lines if not one.startswith(needed)))
    flwr = str(Path(sys.executable).with_name("flwr"))
    run(app, flwr, "run", ".", "--stream")
    check(app, "pictures", ledger)
