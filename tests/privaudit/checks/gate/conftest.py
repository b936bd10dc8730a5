import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from privaudit import Auditor, Run, train
from privaudit.auditing.stored_audit import save_audit
from privaudit.checks.gate.gate import write_baseline
from tests.conftest import common_cache

BROKEN = {"epochs": 3, "learning_rate": 5.0}  # trained, and the worse for it

SHADOWED: dict[str, dict[str, Any]] = {  # of the plain run, which trains nothing
    "shadowed": {"shadows": 8},
    "fewer": {"shadows": 6},
    "one-client": {"shadows": 8, "clients": 1},
}


@pytest.fixture(scope="package")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A broken run, two of no training that differ in their seed, private ones."""
    folder = tmp_path_factory.mktemp("audited")
    wanted: dict[str, tuple[str, dict[str, Any]]] = {
        "broken": ("promptfl", {"settings": BROKEN, "seed": 0}),
        "plain": ("zero-shot", {"seed": 0}),
        "other-seed": ("zero-shot", {"seed": 1}),
        "tuned": ("promptfl", {"seed": 0}),
        "private": ("dp-fpl", {"settings": {"epsilon": 8.0}, "seed": 0}),
        "more-private": ("dp-fpl", {"settings": {"epsilon": 4.0}, "seed": 0}),
        "other-split": ("zero-shot", {"seed": 0, "alpha": 1.0}),
    }
    with common_cache(tmp_path_factory):
        for name, (trainer, how) in wanted.items():
            run = train(trainer, folder=folder, name=name, rounds=1, clients=3, **how)
            save_audit(Auditor(run).attack(shadows=0))
        for name, asked in SHADOWED.items():
            copy = Run(Path(shutil.copytree(folder / "plain", folder / name)))
            save_audit(Auditor(copy).attack(**asked))
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)  # of no checkout
            for name in ("plain", "shadowed"):
                write_baseline(name, folder / f"{name}.json", folder=folder)
    return folder


def git(*words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    command = ["git", *who, *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def runs(audited: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The runs' folder, from a working directory without a pyproject.toml."""
    monkeypatch.setenv("PRIVAUDIT_RUNS", str(audited))
    monkeypatch.chdir(tmp_path)
    return audited
