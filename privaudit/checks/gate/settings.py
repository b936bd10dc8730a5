"""Settings of the gate, read from pyproject.toml, a revision of it, or flags.

Nothing here imports torch or numpy: pytest and ``--help`` load it.
"""

import re
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as checked
from pydantic.fields import FieldInfo

from privaudit.core.errors import ConfigError, LimitError, UnknownNameError
from privaudit.core.limits import parse_toml, read_bytes
from privaudit.core.parameters import readable, refuse_truths

_SECONDS = 60.0


def _git(*words: str) -> bytes | None:
    """Return what git says here; None where there is no git, or it finds nothing."""
    try:
        done = subprocess.run(
            ["git", *words], capture_output=True, timeout=_SECONDS, check=False
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def revision_of(name: str = "HEAD") -> str | None:
    """Return the commit that a name stands for; None where nobody knows."""
    if name.startswith("-"):  # an option, and no name
        return None
    found = _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    return None if found is None else found.decode().strip()


def file_at(name: str, path: str) -> bytes | None:
    """Return a file as a revision has it, empty where that has none.

    None where there is no such revision. The path is relative to the working directory.
    """
    revision = revision_of(name)
    if revision is None:
        return None
    return _git("cat-file", "blob", f"{revision}:./{path}") or b""


def commits_since(revision: str) -> int | None:
    """Return how many commits HEAD has that a revision does not lead to.

    None where nobody knows: without git, or in a shallow checkout that lacks it.

    Raises:
        LookupError: HEAD does not come from that revision.
    """
    shallow = _git("rev-parse", "--is-shallow-repository")
    if shallow is None or revision_of() is None:
        return None
    if (
        revision_of(revision) is None
        or _git("merge-base", "--is-ancestor", revision, "HEAD") is None
    ):
        if shallow.strip() == b"true":
            return None
        raise LookupError(revision)
    return commits_lacking(revision, "HEAD")


def commits_lacking(revision: str, tip: str) -> int | None:
    """Return how many commits a branch has that a revision does not lead to.

    None where nobody knows: there is no such revision, or no such branch.
    """
    known, newest = revision_of(revision), revision_of(tip)
    if known is None or newest is None:
        return None
    return int(_git("rev-list", "--count", f"{known}..{newest}") or 0)


def _known_metric(code: str) -> str:
    from privaudit.evaluation.metric import METRICS  # imports torch

    METRICS.find(code)
    return code


Metric = Annotated[str, AfterValidator(_known_metric)]
Margin = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]

PYPROJECT = "pyproject.toml"
TABLE = "tool.privaudit.gate"


@checked(frozen=True, config=ConfigDict(extra="forbid"))
class GateSettings:
    """What the gate asks; Holm's correction counts every question, so ask few.

    The command line makes its options of the fields.
    """

    scenario: str = Field(
        default="server-reconstruct",
        description="Under which the run was audited. By default: server-reconstruct.",
    )
    metrics: tuple[Metric, ...] = Field(
        default=("auroc", "utility"),
        description="Comma-separated codes: of each attack, as auroc, tpr (at 1 % false "
        "positives), success; of the models utility. By default: auroc,utility.",
    )
    attacks: tuple[str, ...] = Field(
        default=(),
        description="Comma-separated. By default: the scenario's headline attack, which "
        "was named without sight of membership.",
    )
    guarantees: bool = Field(
        default=True,
        description="Fail if a claimed or certified epsilon is weaker than the baseline's; "
        "off for a change that weakens one on purpose.",
    )
    margin: Margin = Field(
        default=0.05,
        description="Non-inferiority margin of leakage: the largest rise that does not "
        "matter, in (0, 1). By default: 0.05.",
    )
    utility_margin: Margin = Field(
        default=0.05,
        description="Non-inferiority margin of utility: the largest fall that does not "
        "matter, in (0, 1). By default: 0.05.",
    )
    alpha: Margin = Field(
        default=0.05,
        description="Family-wise false-alarm rate: the chance of any false regression, in "
        "(0, 1). By default: 0.05.",
    )
    max_auroc: Margin | None = Field(
        default=None,
        description="Limit on the AUROC of every attack that the audit made, in (0, 1), as "
        "a confidence limit. By default: none.",
    )
    max_tpr: Margin | None = Field(
        default=None,
        description="Likewise on the share of members that an attack tells at 1 % false "
        "positives. By default: none.",
    )
    min_utility: Margin | None = Field(
        default=None,
        description="Lower limit on utility, in (0, 1), as a confidence limit. By default: "
        "none.",
    )
    shadows: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        description="Fewest shadow models that are enough; 0: attacks without any. By "
        "default: as the baseline; without one as many as an attack takes at least.",
    )
    clients: Annotated[int, Field(ge=1)] | Literal["all"] | None = Field(
        default=None,
        description="Fewest attacked clients, or 'all' that the audit attacked. By default: "
        "as the baseline; without one all.",
    )
    baseline: str | None = Field(
        default=None,
        description="A file of --write-baseline; or an export (unpaired). By default: "
        "limits alone.",
    )


GATE_FIELDS: Mapping[str, FieldInfo] = getattr(GateSettings, "__pydantic_fields__")  # noqa: B009


@dataclass(frozen=True)
class SettingLine:
    """Where a setting is set: a file, and a line of it from 1 on."""

    file: str
    line: int


@dataclass(frozen=True)
class Configured:
    """Settings, and where each of them was set.

    Attributes:
        lines: Of those that a file sets; "" is the head of the file's table.
        chosen: Names of those that whoever calls the gate chose: they may be weaker
            than the reference. None: all of them.
        reference: Settings that the others may not be weaker than, such as the target
            branch's; None takes those of the baseline.
    """

    settings: GateSettings = field(default_factory=GateSettings)
    lines: Mapping[str, SettingLine] = field(default_factory=dict)
    chosen: Collection[str] | None = None
    reference: GateSettings | None = None
    source: str = ""

    @property
    def baseline_unheld(self) -> bool:
        """Whether the baseline is named where a change can, and nowhere else."""
        if self.settings.baseline is None or self.chosen is None:
            return False
        held = self.reference is not None and self.reference.baseline is not None
        return "baseline" not in self.chosen and not held


def configure(
    folder: Path | None = None, settings_from: str | None = None, **flags: Any
) -> Configured:
    """Return the settings of a folder's pyproject.toml; flags win over the file.

    Args:
        folder: The working directory by default. Without a file, or without a table
            ``[tool.privaudit.gate]`` in it, settings stand at their defaults.
        settings_from: A TOML file, or a revision of the repository such as
            "origin/main": settings that the folder's may not be weaker than.
        **flags: Settings by name; None is a flag that was not given.

    Raises:
        ConfigError: A file is no TOML, a setting is unknown or out of range, or there
            is no such file and no such revision.
    """
    path = (folder or Path()) / PYPROJECT
    content = read_bytes(path, "toml") if path.is_file() else b""
    table = _table(content, str(path))
    given = {name: value for name, value in flags.items() if value is not None}
    settings = make_settings({**table, **given}, str(path) if table else "the gate")
    lines = setting_lines(content.decode(errors="replace")) if table else {}
    own_lines = {
        name: SettingLine(PYPROJECT, line)
        for name, line in lines.items()
        if name not in given and (name in table or not name)
    }
    reference = _settings_of(settings_from) if settings_from is not None else None
    return Configured(
        settings, own_lines, frozenset(given), reference, settings_from or ""
    )


def _settings_of(source: str) -> GateSettings:
    """Return the settings of a file, or of pyproject.toml in a revision."""
    path = Path(source)
    content = read_bytes(path, "toml") if path.is_file() else file_at(source, PYPROJECT)
    if content is None:
        raise ConfigError(
            f"The gate's settings were asked from {source}, which is no file here and "
            "no revision that git finds here. Fetch it (`git fetch origin BRANCH`), or "
            "name a file."
        )
    return make_settings(_table(content, source), source)


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
    what = where.removeprefix("the ")
    try:
        settings = GateSettings(**values)
    except ValidationError as error:
        raise ConfigError(readable(error, what)) from None
    refuse_truths(what, values, settings)
    return settings


def _table(content: bytes, path: str) -> dict[str, Any]:
    """Return the gate's table, empty where there is none."""
    try:
        table: Any = parse_toml(content, path)
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
