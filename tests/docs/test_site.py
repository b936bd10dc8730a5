"""The documentation site: every page is in it, and it builds without a warning."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.places import ROOT

DOCS = ROOT / "docs"
FROM_ELSEWHERE = re.compile(r"<(?:script|link|img)[^>]*(?:src|href)=[\"']?https?:")


def test_every_page_is_in_the_navigation() -> None:
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    listed = set(re.findall(r"\S+\.md\b", (ROOT / "mkdocs.yml").read_text()))
    assert listed == pages


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("mkdocs") is None or find_spec("mkdocstrings") is None,
    reason="needs the docs extra: make docs installs it",
)
def test_the_site_builds_and_fetches_nothing_from_elsewhere(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir"]
    done = subprocess.run(
        [*build, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "api.html").read_text()
    for name in ("from_shadows", "measure_shift", "judge_leak", "GateResult"):
        assert name in reference
    for page in tmp_path.rglob("*.html"):
        assert not FROM_ELSEWHERE.search(page.read_text()), page
