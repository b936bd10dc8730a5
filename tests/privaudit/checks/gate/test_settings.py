from pathlib import Path

import pytest

from privaudit.checks.gate.settings import (
    GateSettings,
    SettingLine,
    configure,
    make_settings,
    setting_lines,
)
from privaudit.core.errors import ConfigError, UnknownNameError

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
    assert not found.places


def test_settings_are_read_from_pyproject_with_their_lines(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    found = configure(tmp_path)
    assert found.settings == GateSettings(
        attacks=("loss-threshold",), margin=0.02, max_auroc=0.6
    )
    assert found.places == {
        "": SettingLine("pyproject.toml", 4),
        "attacks": SettingLine("pyproject.toml", 5),
        "margin": SettingLine("pyproject.toml", 7),
        "max_auroc": SettingLine("pyproject.toml", 8),
    }


def test_a_flag_wins_and_then_no_line_governs(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    found = configure(tmp_path, margin=0.1, max_auroc=None)
    assert (found.settings.margin, found.settings.max_auroc) == (0.1, 0.6)
    assert "margin" not in found.places


def test_a_table_written_otherwise_is_read_without_lines(tmp_path: Path) -> None:
    text = "[tool.privaudit]\ngate = {margin = 0.03}\n"
    (tmp_path / "pyproject.toml").write_text(text)
    found = configure(tmp_path)
    assert found.settings.margin == 0.03
    assert found.places == {}


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


def test_an_unknown_setting_is_named_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.privaudit.gate]\nmax_aurok = 1\n")
    with pytest.raises(UnknownNameError, match="Did you mean 'max_auroc'"):
        configure(tmp_path)


@pytest.mark.parametrize(
    ("text", "says"),
    [("[tool", "is no TOML"), ("[tool.privaudit]\ngate = 3\n", "which is no table")],
)
def test_a_file_that_cannot_be_read_is_an_error(
    tmp_path: Path, text: str, says: str
) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigError, match=says):
        configure(tmp_path)
