"""Check that a tag is a release: ``python .ci/release.py v0.1.0``.

The version stands in pyproject.toml. CITATION.cff and the changelog have to name it, and
nothing may stand under "Unreleased". Exit code 1, and a sentence for each, where not.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def missing(tag: str, root: Path = ROOT) -> list[str]:
    """Return what keeps a tag from being a release, a sentence each."""
    version = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"][
        "version"
    ]
    citation = (root / "CITATION.cff").read_text("utf-8")
    changes = (root / "CHANGELOG.md").read_text("utf-8")
    said = []
    if tag != f"v{version}":
        said.append(f"The tag is {tag}, and pyproject.toml has {version}.")
    if f"\nversion: {version}\n" not in citation:
        said.append(f"CITATION.cff does not name {version}.")
    if not re.search(rf"^## {re.escape(version)}\b", changes, re.MULTILINE):
        said.append(f"CHANGELOG.md has no section {version}.")
    unreleased = re.search(r"^## Unreleased\n(.*?)(?=^## |\Z)", changes, re.M | re.S)
    if unreleased and unreleased[1].strip():
        said.append(
            "CHANGELOG.md has entries under Unreleased: name the release there."
        )
    return said


if __name__ == "__main__":
    problems = missing(sys.argv[1])
    print("\n".join(problems) or f"{sys.argv[1]} is a release.")
    sys.exit(bool(problems))
