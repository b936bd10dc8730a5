"""A run with a seed and a name that can be searched for, audited."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privaudit import Auditor, Run, train
from privaudit.auditing.attack_result import evaluate_scores
from privaudit.auditing.storage.load import read_audit
from privaudit.auditing.storage.save import save_audit
from privaudit.federated.runs.ledger import Ledger
from tests.conftest import common_cache
from tests.owner_changes import sign_again

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


@pytest.fixture
def run(zebra: Path) -> Run:
    runs = Path(os.environ["PRIVAUDIT_RUNS"])
    return Run(shutil.copytree(zebra, runs / NAME))


def edit(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))
    (folder,) = (place for place in path.parents if (place / "run.json").exists())
    sign_again(folder)


def make_small(run: Run, *, members: int) -> None:
    """Make most of client-0's members public records, in ledger, scores and numbers."""
    ledger = Ledger.load(run.path / "ledger.npz")
    owner, is_member = ledger.owner.copy(), ledger.is_member.copy()
    gone = ledger.members_of(0)[members:]
    owner[gone], is_member[gone] = -1, False
    small = Ledger(owner, is_member)
    (run.path / "ledger.npz").write_bytes(small.to_bytes())
    sign_again(run.path, ledger_hash=small.hash)
    for path in run.path.glob("audits/*/scores.npz"):
        with np.load(path, allow_pickle=False) as arrays:
            columns = dict(arrays)
        attacks = {key.rpartition("/")[0] for key in columns if "/" in key}
        for attack in attacks:
            kept = ~np.isin(columns[f"{attack}/records"], gone)
            for key in [key for key in columns if key.rpartition("/")[0] == attack]:
                columns[key] = columns[key][kept]
        np.savez(path, allow_pickle=False, **columns)
        sign_again(run.path)
        again = Run(run.path)
        stored = read_audit(again, path.parent.name)
        content = json.loads((path.parent / "audit.json").read_text())
        for name, leak in content["leaks"].items():
            texts = leak["settings"], leak["threshold"]
            measured = evaluate_scores(name, *texts, stored.clients(name))
            content["leaks"][name] = measured.to_dict()
        edit(path.parent / "audit.json", content)
    run.__dict__.clear()
    run.__dict__["path"] = again.path
