import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from privaudit.core.devices import chosen_device, use_device
from privaudit.core.memory import (
    is_checkpointing,
    memory_limit,
    use_checkpointing,
    use_memory,
)
from privaudit.evaluation.computing import computing_here
from privaudit.evaluation.tables import workers
from privaudit.evaluation.tables.outcomes import TableOutcome
from tests.places import ROOT

PLAN = """
title = "t"
seeds = [1, 2, 3, 4]
[fields]
clients = 3
rounds = 400
[[rows]]
label = "a"
trainer = "promptfl"
"""


@pytest.fixture
def table(tmp_path: Path) -> "subprocess.Popen[str]":
    (tmp_path / "plan.toml").write_text(PLAN)
    words = ["table", str(tmp_path / "plan.toml"), "--jobs", "2", "--runs"]
    script = f"import sys; sys.argv = ['privaudit', *{words}, {str(tmp_path)!r}]\n"
    # A shell's background jobs ignore Ctrl-C, and hand that on.
    script += (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    )
    call = "if __name__ == '__main__':\n from privaudit.cli.main import run; run()\n"
    (tmp_path / "main.py").write_text(script + call)
    return subprocess.Popen(
        [sys.executable, str(tmp_path / "main.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def wait_for_a_round(folder: Path, child: "subprocess.Popen[str]") -> None:
    while not list(folder.glob("*/kept/after-0001.safetensors")):
        assert child.poll() is None, child.communicate()
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is no signal there")
def test_ctrl_c_ends_every_process_and_says_what_to_do(
    table: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """The signal goes to the command alone; in a terminal, to its processes too."""
    wait_for_a_round(tmp_path, table)
    os.kill(table.pid, signal.SIGINT)
    out, err = table.communicate(timeout=60)  # until every process has let go of stderr
    assert table.returncode == 130
    assert not out
    assert "interrupted. Finished rounds are kept: run the same" in err
    assert "Traceback" not in err


def test_a_worker_computes_where_and_as_the_table_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def perform(digest: str) -> TableOutcome:
        found = f"{chosen_device()} {memory_limit()} {is_checkpointing()}"
        return TableOutcome(digest, run=found)

    monkeypatch.setattr(workers, "perform", perform)
    device = torch.device("cuda:3")
    with use_device(device), use_memory("9MB"), use_checkpointing():
        computing = computing_here(parts=3)
    done = workers.perform_there(computing, "a digest")
    assert done == TableOutcome("a digest", run="cuda:3 3000000 True")
    assert chosen_device().type == "cpu"
