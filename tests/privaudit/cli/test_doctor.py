from importlib.metadata import version
from pathlib import Path

import pytest

from tests.conftest import Cli


def test_it_says_what_is_installed_and_what_is_found(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data" / "pacs").mkdir(parents=True)
    (tmp_path / "hub" / "models--openai--clip-vit-base-patch32").mkdir(parents=True)
    monkeypatch.setenv("PRIVAUDIT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    code, out, _ = cli("doctor")
    found = {line[:20].strip(): line[21:] for line in out.splitlines()}
    assert code == 0
    assert found["torch"] == version("torch")
    assert found["extra [hf]"] == "installed"
    assert found["runs"] == f"{tmp_path / 'runs'} (made when needed)"
    assert found["pacs"] == str(tmp_path / "data" / "pacs")
    assert "pacs" not in found["not found"].split(", ")
    assert "cifar10" in found["not found"].split(", ")
    assert "openai/clip-vit-base-patch32" in out
    assert "[dev]" not in out


def test_the_version_and_the_lists_need_no_argument(cli: Cli) -> None:
    assert cli("--version") == (0, f"privaudit {version('privaudit')}\n", "")
    code, out, _ = cli("list")
    assert code == 0
    lists = {line.split()[0]: line for line in out.splitlines()}
    assert {"trainers", "attacks", "models"} <= lists.keys()
    assert "promptfl" in lists["trainers"]
