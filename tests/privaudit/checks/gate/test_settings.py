"""Settings of the gate, from files, revisions and flags."""

import shutil
from pathlib import Path

import pytest

from privaudit.checks.gate.settings import (
    GateSettings,
    SettingLine,
    commits_since,
    configure,
    file_at,
    make_settings,
    revision_of,
    setting_lines,
)
from privaudit.core.errors import ConfigError, UnknownNameError
from tests.privaudit.checks.gate.conftest import git

PYPROJECT = """\
[project]
margin = "not this one"

[tool.privaudit.gate]
attacks = ["loss-threshold"]
# a comment
margin = 0.02
max_auroc = 0.6

[tool.other]
alpha = 0.5
"""


def test_without_a_file_settings_stand_at_their_defaults(tmp_path: Path) -> None:
    found = configure(tmp_path)
    assert found.settings == GateSettings()
    assert not found.lines


def test_settings_are_read_from_pyproject_with_their_lines(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    found = configure(tmp_path)
    assert found.settings == GateSettings(
        attacks=("loss-threshold",), margin=0.02, max_auroc=0.6
    )
    assert found.lines == {
        "": SettingLine("pyproject.toml", 4),
        "attacks": SettingLine("pyproject.toml", 5),
        "margin": SettingLine("pyproject.toml", 7),
        "max_auroc": SettingLine("pyproject.toml", 8),
    }


def test_a_flag_wins_and_then_no_line_governs(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    found = configure(tmp_path, margin=0.1, max_auroc=None)
    assert (found.settings.margin, found.settings.max_auroc) == (0.1, 0.6)
    assert "margin" not in found.lines


def test_a_table_written_otherwise_is_read_without_lines(tmp_path: Path) -> None:
    text = "[tool.privaudit]\ngate = {margin = 0.03}\n"
    (tmp_path / "pyproject.toml").write_text(text)
    found = configure(tmp_path)
    assert found.settings.margin == 0.03
    assert found.lines == {}


def test_a_heading_may_have_spaces_and_quotes() -> None:
    assert setting_lines('\n[ tool . "privaudit".gate ] # x\nalpha=1\n') == {
        "": 2,
        "alpha": 3,
    }


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"margin": 0}, "margin = 0"),
        ({"margin": float("nan")}, "margin = nan"),
        ({"alpha": 1.0}, "alpha = 1.0"),
        ({"max_auroc": 1.5}, "max_auroc = 1.5"),
        ({"metrics": ["f1"]}, r"metrics.0 = 'f1'"),
        ({"attacks": "loss-threshold"}, "attacks = 'loss-threshold'"),
    ],
)
def test_a_value_out_of_range_is_named(values: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=f"The gate cannot take {says}"):
        make_settings(values)


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("[tool", ConfigError, "is no TOML"),
        ("[tool.privaudit]\ngate = 3\n", ConfigError, "which is no table"),
        (
            "[tool.privaudit.gate]\nmax_aurok = 1\n",
            UnknownNameError,
            "Did you mean 'max_auroc'",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error(
    tmp_path: Path, text: str, error: type[ConfigError], says: str
) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(error, match=says):
        configure(tmp_path)


pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="no git here")


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
