"""``privaudit list`` and ``privaudit doctor``."""

from importlib.metadata import version
from pathlib import Path

import pytest

from privaudit.auditing.attack import ATTACKS
from privaudit.auditing.scenario import SCENARIOS
from privaudit.cli.list import names_of
from privaudit.core.registry import Registry
from privaudit.federation.trainer import TRAINERS
from tests.conftest import Cli


@pytest.mark.parametrize("registry", [TRAINERS, ATTACKS, SCENARIOS])
def test_every_parameter_has_a_default_and_is_explained(
    registry: Registry[object],
) -> None:
    for name in registry.names():
        (heading, *said), *parameters = names_of(name)  # or of two that are called so
        assert heading == name
        assert all(said)
        has_source = any(words.startswith("Source: ") for words in said)
        assert has_source or registry is SCENARIOS
        for parameter, text, *_ in parameters:
            default, _, meaning = text.partition(". ")
            if parameter == name:
                continue
            assert default != "required", (name, parameter)
            assert meaning, (name, parameter)


def test_an_attack_is_listed_with_its_source_and_parameters(cli: Cli) -> None:
    out = cli.done("list", "lira")
    first, *rest = out.splitlines()
    assert first.startswith("lira                 LiRA: likelihood ratio of")
    assert any(line.strip().startswith("Source: Carlini et al.") for line in rest)
    assert "shadows              50. Shadow models for each attacked client." in rest


def test_an_entrys_source_may_stand_with_its_module(cli: Cli) -> None:
    _, out, _ = cli("list", "digits")
    assert "1,797 scans of 8 by 8 pixels." in out
    assert "Source: Alpaydin and Kaynak" in out
    _, out, _ = cli("list", "cifar10")
    assert "looks in: --data" in out
    assert cli("list", "prefix")[0] == 0


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
    out = cli.done("list")
    lists = {line.split()[0]: line for line in out.splitlines()}
    assert {"trainers", "attacks", "models"} <= lists.keys()
    assert "promptfl" in lists["trainers"]
