import shutil
import subprocess
from pathlib import Path

import pytest

from privaudit.checks.gate.revision import commits_since, file_at, revision_of

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="no git here")


def git(*words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    command = ["git", *who, *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three commits of a file in a folder, from which the test is run."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    (tmp_path / "all" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "all" / "below")
    git("init", "-q", "-b", "main", "..")
    made = []
    for text in "abc":
        Path("file").write_text(text)
        git("add", "file")
        git("commit", "-q", "-m", text)
        made.append(git("rev-parse", "HEAD"))
    return made


def test_a_file_is_read_as_a_revision_has_it_from_the_folder_of_the_caller(
    commits: list[str],
) -> None:
    assert [file_at(one, "file") for one in (*commits, "main")] == [
        b"a", b"b", b"c", b"c",
    ]  # fmt: skip
    assert file_at("main", "none") == b""
    assert file_at("nowhere", "file") is None
    assert revision_of() == commits[-1]
    assert revision_of("--help") is None


def test_commits_are_counted_and_another_past_is_found(commits: list[str]) -> None:
    assert [commits_since(one) for one in commits] == [2, 1, 0]
    git("checkout", "-q", commits[0])
    with pytest.raises(LookupError):
        commits_since(commits[1])
    with pytest.raises(LookupError):
        commits_since("0" * 40)


def test_nobody_knows_in_a_shallow_copy_or_in_none(
    commits: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (tmp_path / "all").as_uri()
    git("clone", "-q", "--depth", "1", source, str(tmp_path / "shallow"))
    monkeypatch.chdir(tmp_path / "shallow")
    assert commits_since(commits[0]) is None
    assert commits_since(commits[-1]) == 0
    (tmp_path / "none").mkdir()
    monkeypatch.chdir(tmp_path / "none")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert (revision_of(), commits_since(commits[0])) == (None, None)
