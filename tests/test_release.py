"""A release lacks the button alone: version, packages and the public names."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.places import ROOT, ci_script
from tests.public_api import STORED, public_api


def test_the_public_names_take_what_the_list_says() -> None:
    """Else: tell users in the changelog, then `python -m tests.public_api`."""
    assert STORED.read_text(encoding="utf-8").splitlines() == public_api()


@pytest.fixture
def missing() -> Any:
    return ci_script("release").missing


def write(root: Path, version: str, citation: str, changes: str) -> Path:
    (root / "pyproject.toml").write_text(f'[project]\nversion = "{version}"\n')
    (root / "CITATION.cff").write_text(f"title: a\nversion: {citation}\n")
    (root / "CHANGELOG.md").write_text(f"# Changelog\n\n## Unreleased\n{changes}")
    return root


def test_a_tag_is_a_release_when_all_places_name_it(
    missing: Any, tmp_path: Path
) -> None:
    root = write(tmp_path, "1.2.0", "1.2.0", "\n## 1.2.0 (2026-12-01)\n\n- New.\n")
    assert missing("v1.2.0", root) == []


@pytest.mark.parametrize(
    ("tag", "citation", "changes", "said"),
    [
        ("1.2.0", "1.2.0", "\n## 1.2.0\n", "The tag is 1.2.0"),
        ("v1.3.0", "1.2.0", "\n## 1.2.0\n", "The tag is v1.3.0"),
        ("v1.2.0", "1.1.0", "\n## 1.2.0\n", "CITATION.cff does not name"),
        ("v1.2.0", "1.2.0", "\n## 1.1.0\n", "has no section 1.2.0"),
        ("v1.2.0", "1.2.0", "\n- More.\n\n## 1.2.0\n", "entries under Unreleased"),
    ],
)
def test_what_is_forgotten_is_said(
    missing: Any, tmp_path: Path, tag: str, citation: str, changes: str, said: str
) -> None:
    (sentence,) = missing(tag, write(tmp_path, "1.2.0", citation, changes))
    assert said in sentence


def test_this_tree_forgets_nothing_but_the_changelogs_section(missing: Any) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    said = " ".join(missing(f"v{version}"))
    assert "tag" not in said
    assert "CITATION" not in said


def test_only_a_tag_that_passed_is_published_and_without_a_stored_password() -> None:
    path = ROOT / ".github" / "workflows" / "release.yml"
    text = path.read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    steps = " ".join(str(step.get("run", "")) for step in jobs["build"]["steps"])
    for check in (".ci/release.py", ".ci/run", ".ci/wheel oldest", ".ci/wheel newest"):
        assert check in steps
    assert jobs["publish"]["needs"] == "build"
    assert jobs["publish"]["permissions"]["id-token"] == "write"
    assert "id-token" not in jobs["build"].get("permissions", {})
    assert "password" not in text
    assert "secrets." not in text


def test_the_sdist_carries_no_tests_that_cannot_run_there() -> None:
    kept = (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()
    assert "prune tests" in kept
