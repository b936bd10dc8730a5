"""Where tests find files that are not code."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULT_TABLES = ROOT / "docs" / "results" / "tables"
# Reference vectors and data, which are not in the repository; without them, tests skip.
SHARED = Path(os.environ.get("TEST_REFERENCES") or ROOT.parent / "shared").resolve()
