"""The example of NVFlare, in its simulator: make test-nvflare installs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from privaudit import Auditor, load_run, use_owner
from tests.docs.examples.owners import EXAMPLES, toss
from tests.places import ROOT

pytest.importorskip("nvflare")


@pytest.mark.slow
def test_a_simulated_federation_is_recorded_and_audited(tmp_path: Path) -> None:
    toss(1797, clients=2, each=40, public=20, tests=40).save(tmp_path / "ledger.npz")
    places = [str(tmp_path / name) for name in ("ledger.npz", "run")]
    words = [sys.executable, "job.py", *places]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        words, cwd=EXAMPLES / "nvflare", env={**os.environ, "PYTHONPATH": path},
        check=True, capture_output=True, timeout=1800,
    )  # fmt: skip
    with use_owner(str(EXAMPLES / "nvflare" / "owner.py")):
        run = load_run(tmp_path / "run")
        audit = Auditor(run).attack("server-reconstruct", shadows=0)
    assert audit.auroc.low > 0.5
    sent = [m.tensors for m in run.transcript if m.is_update and m.round == 1]
    total = sum(float(tensors["weight"]) for tensors in sent)
    for name, last in run.personal_models["client-1"].items():
        mean = sum(tensors[name] for tensors in sent) / total
        assert float((mean - last).abs().max()) < 1e-6
