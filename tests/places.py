"""Where tests find files that are not code."""

import os
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULT_TABLES = ROOT / "docs" / "results" / "tables"
# Reference vectors and data, which are not in the repository; without them, tests skip.
SHARED = Path(os.environ.get("TEST_REFERENCES") or ROOT.parent / "shared").resolve()


def common_folder(tmp_path_factory: Any) -> Path:
    """Return the folder of a session, which its processes share."""
    own: Path = tmp_path_factory.getbasetemp()
    return own.parent if own.name.startswith("popen-") else own


def ci_script(name: str) -> Any:
    """Return a script of .ci/, which is no package, as a module."""
    spec = spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
