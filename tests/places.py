"""Where tests find files that are not code."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULT_TABLES = ROOT / "docs" / "results" / "tables"
SHARED = ROOT.parent / "shared"  # reference vectors and data; without it, tests skip
