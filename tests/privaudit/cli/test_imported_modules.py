"""What an attack imports: counted, as modules cost start-up time and a reader's."""

import subprocess
import sys
from pathlib import Path

MOST = 400  # modules of privaudit
COUNT = """
import sys
from privaudit.cli.main import app
words = ["attack", sys.argv[1], "--shadows", "0", "--on", "local:1", "--quiet"]
app(words, standalone_mode=False)
print("Modules:", *sys.modules)
"""


def test_an_attack_imports_what_it_uses(whole: Path) -> None:
    command = [sys.executable, "-c", COUNT, str(whole)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = set(done.stdout.partition("Modules: ")[2].split())
    ours = {name for name in found if name.partition(".")[0] == "privaudit"}
    trainers = {name for name in ours if name.startswith("privaudit.trainers.")}
    heavy = {"scipy.stats", "scipy.optimize", "scipy.ndimage", "sklearn", "pandas"}
    assert (whole / "audits" / "server-reconstruct" / "report.html").exists()
    assert trainers == {f"privaudit.trainers.{n}" for n in ("promptfl", "dp_promptfl")}
    assert not found & heavy
    assert len(ours) <= MOST
