"""The apps of docs/examples/flower, simulated by Flower and attacked as its page says."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
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
        timeout=540,
    )
    return ended.stdout


@pytest.mark.parametrize(
    ("name", "package", "write", "records"),
    [("cnn", "pictures", write_pictures, 160), ("lora", "texts", write_texts, 100)],
)
def test_an_example_is_simulated_recorded_and_attacked(
    name: str,
    package: str,
    write: Callable[[Path, np.random.Generator, int], None],
    records: int,
    tmp_path: Path,
) -> None:
    app, rng = tmp_path / "app", np.random.default_rng(0)
    shutil.copytree(EXAMPLES / name, app)
    owner = rng.choice([0, 1, PUBLIC, TEST], records, p=[0.35, 0.35, 0.2, 0.1])
    is_member = (rng.random(records) < 0.5) & (owner >= 0)
    Ledger(owner, is_member, coin=Coin("seed", 0)).save(app / "ledger.npz")
    write(app, rng, records)
    run(app, "simulate.py", str(NODES))
    words = (
        "--owner",
        "owner.py",
        "--scenario",
        "server-reconstruct",
        "--shadows",
        "0",
    )
    printed = run(app, "-m", "privaudit", "attack", f"runs/{package}", *words, "--json")
    result = json.loads(printed.splitlines()[-1])
    assert result["verdict"] == "leaks"
    assert result["auroc"]["value"] > 0.8
    assert result["auroc"]["n"] == [
        int(is_member.sum()),
        int((owner >= 0).sum() - is_member.sum()),
    ]
    bundle = json.loads((app / "runs" / package / "bundle.json").read_text())
    assert bundle["rounds"] == 3
    assert sorted(bundle["clients"]) == ["client-0", "client-1"]
