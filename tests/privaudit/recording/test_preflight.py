from pathlib import Path

import pytest

from privaudit.core.errors import ConfigError
from privaudit.recording.preflight import app_findings, look_at

CLIENT = """
from opacus import PrivacyEngine
from flwr.clientapp.mod import fixedclipping_mod

app = ClientApp(mods=[fixedclipping_mod])


@app.train()
def train(message, context):
    engine = PrivacyEngine()
    engine.make_private(
        module=net,
        poisson_sampling=False,
    )
"""
SERVER = (
    "strategy = DifferentialPrivacyClientSideFixedClipping(FedAvg(), 1.0, 1.0, 5)\n"
)
PROJECT = '[tool.flwr.app.components]\nserverapp = "s:app"\nclientapp = "c:app"\n'


@pytest.fixture
def app(tmp_path: Path) -> Path:
    (tmp_path / "client.py").write_text(CLIENT)
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    return tmp_path


def test_what_would_be_recorded_is_said_with_its_line(app: Path) -> None:
    found = list(app_findings(app))
    assert found[0] == ("app", "s:app, c:app")
    assert ("client.py:5", "fixedclipping_mod: clients' clipping is recorded, behind "
            "name_partition among the mods") in found  # fmt: skip
    assert ("server.py:1", "DifferentialPrivacyClientSideFixedClipping: the server's "
            "noise is recorded") in found  # fmt: skip
    to_add = [said for name, said in found if name == "to add"]
    assert len(to_add) == 3
    assert "with RecordingGrid" in to_add[0]


def test_what_makes_a_guarantee_weaker_is_a_fault(app: Path) -> None:
    faults = [(one.where, one.name) for one in look_at(app) if one.is_fault]
    assert faults == [
        ("client.py:10", "PrivacyEngine"),
        ("client.py:13", "poisson_sampling=False"),
    ]


def test_an_engine_that_outlives_the_rounds_is_none(tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text("def main():\n    engine = PrivacyEngine()\n")
    assert not [one for one in look_at(tmp_path) if one.is_fault]


def test_a_file_that_is_no_python_is_said(app: Path) -> None:
    (app / "odd.py").write_text("def (")
    assert ("odd.py", "not read") in [(one.where, one.name) for one in look_at(app)]


def test_installed_packages_are_not_read_in_place_of_the_app(app: Path) -> None:
    for folder in (".venv/lib", "venv/lib/site-packages", "tasks"):
        (app / folder).mkdir(parents=True)
        for number in range(600 if folder != "tasks" else 10):
            (app / folder / f"a{number}.py").write_text("PrivacyEngine()")
    found = {one.where for one in look_at(app)}
    assert {"tasks/a9.py:1", "client.py:5"} <= found
    assert not [where for where in found if "venv" in where]


def test_where_an_app_is_too_large_it_is_said(app: Path) -> None:
    for number in range(500):
        (app / f"z{number}.py").touch()
    assert look_at(app)[-1].meaning == "502 files, of which the first 500 were read"


def test_a_folder_without_an_app_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no Flower app"):
        list(app_findings(tmp_path))
