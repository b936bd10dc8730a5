"""A sample of the bad inputs: no traceback, no hang, no silent answer, no 2 GiB."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks, and measures as Linux does")
def test_a_sample_of_bad_inputs_is_refused_in_one_line(tmp_path: Path) -> None:
    """The rest is run by make corpus, in the same way, in a process of its own."""
    command = [sys.executable, "-m", "tests.corpus", "--every", "75"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stdout[-3000:] + done.stderr[-2000:]
    assert " 0 are not as they should be" in done.stdout
