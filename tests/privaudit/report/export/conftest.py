"""A run with a seed and a name that can be searched for, audited."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from privaudit import Auditor, Run, train
from privaudit.auditing.stored_audit import save_audit
from privaudit.report.export import export_public
from tests.altered_runs import sign_again
from tests.conftest import common_cache

SEED = 987654321
NAME = "zebra-987654321"


@pytest.fixture(scope="session")
def zebra(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, to be copied by each test."""
    folder = tmp_path_factory.mktemp("public")
    with common_cache(tmp_path_factory):
        run = train(
            "promptfl", folder=folder, name=NAME, rounds=2, clients=3, seed=SEED,
            settings={"epochs": 1},
        )  # fmt: skip
        save_audit(Auditor(run).attack(clients=2, shadows=5))
        save_audit(Auditor(run).attack("one-run"))
        save_audit(Auditor(run).attack("curious-peer", shadows=0))
    return run.path


@pytest.fixture(autouse=True)
def _one_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privaudit.report.export.export.today", lambda: "2026-11-26")


@pytest.fixture
def run(zebra: Path) -> Run:
    runs = Path(os.environ["PRIVAUDIT_RUNS"])
    return Run(shutil.copytree(zebra, runs / NAME))


def edit(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))
    (folder,) = (place for place in path.parents if (place / "run.json").exists())
    sign_again(folder)


@pytest.fixture(scope="session")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The card of a run whose epsilon is certified in every view."""
    folder = tmp_path_factory.mktemp("certified")
    with common_cache(tmp_path_factory):
        run = train(
            "dp-fpl", folder=folder, rounds=2, clients=2, epsilon=8,
            randomness="system", settings={"noise_at": "client"},
        )  # fmt: skip
        save_audit(Auditor(run).attack(shadows=0))
    return export_public(run, folder / "card").folder
