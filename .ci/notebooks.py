"""Run the code of every notebook in docs/notebooks/, in a folder of its own.

``python .ci/notebooks.py``. A cell that fails ends the command with its traceback.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def code_of(notebook: Path) -> str:
    """Return the code of a notebook's cells in their order."""
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    return "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")


def main() -> None:
    """Run them, and print the seconds of each."""
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            exec(
                compile(code_of(notebook), notebook.name, "exec"),
                {"__name__": "notebook"},
            )
            os.chdir(ROOT)
        print(f"{notebook.name}: {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
