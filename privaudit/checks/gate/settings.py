"""The gate's settings: fields of a dataclass, read from pyproject.toml or from flags.

Nothing here imports torch or numpy: pytest and ``--help`` load it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as checked

from privaudit.core.bounded_files import read_bytes, read_toml
from privaudit.core.errors import ConfigError, LimitError, UnknownNameError

Metric = Literal["auroc", "success", "utility"]
Margin = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]

PYPROJECT = "pyproject.toml"
TABLE = "tool.privaudit.gate"


@checked(frozen=True, config=ConfigDict(extra="forbid"))
class GateSettings:
    """What the gate asks; Holm's correction counts every question, so ask few.

    Attributes:
        scenario: Under which the run was audited.
        metrics: Of each attack "auroc" or "success"; "utility" of the models.
        guarantees: Whether no claimed or certified epsilon may be weaker than the
            baseline's; false is for a change that weakens one on purpose.
        attacks: By name. Empty: the scenario's headline attack, which was named before
            any score was seen.
        margin: The largest rise of a leak that does not matter, in (0, 1).
        utility_margin: The largest fall of utility that does not matter, in (0, 1).
        alpha: The chance of any false regression, in (0, 1).
        max_auroc: What no attack's AUROC may exceed, in [0, 1], as a confidence limit:
            of all attacks that the audit made, also those not in ``attacks``. None
            sets no limit.
        min_utility: What utility may not fall below, likewise.
        baseline: The file to compare with; None compares with limits alone.
    """

    scenario: str = "server-reconstruct"
    metrics: tuple[Metric, ...] = ("auroc", "utility")
    attacks: tuple[str, ...] = ()
    guarantees: bool = True
    margin: Margin = 0.05
    utility_margin: Margin = 0.05
    alpha: Margin = 0.05
    max_auroc: Share | None = None
    min_utility: Share | None = None
    baseline: str | None = None


@dataclass(frozen=True)
class SettingLine:
    """Where a setting is set: a file, and a line of it from 1 on."""

    file: str
    line: int


@dataclass(frozen=True)
class Configured:
    """Settings, and where each of them was set.

    Attributes:
        settings: All of them.
        places: Of those that a file sets; "" is the head of the file's table.
    """

    settings: GateSettings = field(default_factory=GateSettings)
    places: Mapping[str, SettingLine] = field(default_factory=dict)


def configure(folder: Path | None = None, **flags: Any) -> Configured:
    """Return the settings of a folder's pyproject.toml; flags win over the file.

    Args:
        folder: The working directory by default. Without a file, or without a table
            ``[tool.privaudit.gate]`` in it, settings stand at their defaults.
        **flags: Settings by name; None is a flag that was not given.

    Raises:
        ConfigError: The file is no TOML, or a setting is unknown or out of range.
    """
    path = (folder or Path()) / PYPROJECT
    text = _text(path) if path.is_file() else ""
    table = _table(path) if text else {}
    given = {name: value for name, value in flags.items() if value is not None}
    settings = make_settings({**table, **given}, str(path) if table else "the gate")
    lines = setting_lines(text) if table else {}
    places = {
        name: SettingLine(PYPROJECT, line)
        for name, line in lines.items()
        if name not in given and (name in table or not name)
    }
    return Configured(settings, places)


def make_settings(values: Mapping[str, Any], where: str = "the gate") -> GateSettings:
    """Return settings from what a file or flags say.

    Raises:
        UnknownNameError: There is no such setting.
        ConfigError: A value is out of range; the text names it.
    """
    known = [one.name for one in fields(GateSettings)]
    for name in values:
        if name not in known:
            raise UnknownNameError(f"setting of {where}", name, known)
    try:
        return GateSettings(**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"{where[:1].upper()}{where[1:]} cannot take {name} = "
            f"{first['input']!r}: {first['msg']}."
        ) from None


def _text(path: Path) -> str:
    return read_bytes(path, "toml").decode(errors="replace")


def _table(path: Path) -> dict[str, Any]:
    """Return the gate's table, empty where there is none."""
    try:
        table: Any = read_toml(path)
    except LimitError:
        raise
    except ConfigError as error:
        raise ConfigError(f"{error} So the gate has no settings: fix it.") from None
    for part in TABLE.split("."):
        table = table.get(part, {}) if isinstance(table, dict) else None
    if not isinstance(table, dict):
        raise ConfigError(
            f"{path} sets {TABLE} to {table!r}, which is no table. Write "
            f"[{TABLE}] and a setting a line."
        )
    return table


def setting_lines(text: str) -> dict[str, int]:
    r"""Return the line of each key of the gate's table; "" is the table's head.

    Read by line, since TOML's parser forgets where things stood: keys that are written
    otherwise, such as ``gate = {margin = 0.1}``, are not found.

    Example:
        >>> setting_lines("[tool.privaudit.gate]\nmargin = 0.1\n")
        {'': 1, 'margin': 2}
    """
    line_numbers, inside = {}, False
    for number, line in enumerate(text.splitlines(), 1):
        head = re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line)
        key = re.match(r"\s*\"?([A-Za-z0-9_-]+)\"?\s*=", line)
        if head:
            inside = re.sub(r"[\s\"']", "", head[1]) == TABLE
            if inside:
                line_numbers[""] = number
        elif inside and key:
            line_numbers.setdefault(key[1], number)
    return line_numbers
