"""Packages of other people, as an installer leaves them: modules and a dist-info."""

import os
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path

from tests.places import ROOT


def install(
    folder: Path, package: str, entries: Mapping[str, Mapping[str, str]], code: str
) -> None:
    """Put a package of one module into a folder, which is to be on ``sys.path``.

    Args:
        folder: The folder.
        package: Its name.
        entries: By group, entry points: what each name stands for.
        code: Of the module, which bears the package's name.
    """
    declare(folder, package, entries)
    (folder / f"{package}.py").write_text(code)


def declare(
    folder: Path, package: str, entries: Mapping[str, Mapping[str, str]]
) -> None:
    """Put a package's dist-info into a folder, whose modules stand elsewhere."""
    lines = [
        line
        for group, points in entries.items()
        for line in (f"[{group}]", *(f"{name} = {of}" for name, of in points.items()))
    ]
    info = folder / f"{package.replace('-', '_')}-1.2.dist-info"
    info.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n"
    (info / "METADATA").write_text(metadata)
    (info / "entry_points.txt").write_text("\n".join(lines))


# No audit changes by them.
NAMES = (
    "privaudit.attacks",
    "privaudit.commands",
    "privaudit.scenarios",
    "privaudit.secure_sums",
)


def declare_packages_beside(folder: Path, *, whole: bool = False) -> None:
    """Declare the tools and labs of the repository where they are not installed.

    Here, and in the processes that tests start.

    Args:
        folder: Where to.
        whole: Whether audits get what labs add to them: then they are other audits.
    """
    installed = {one.name for one in distributions()}
    for name in ("tools", "labs"):
        project = tomllib.loads((ROOT / name / "pyproject.toml").read_text())["project"]
        points = project["entry-points"]
        some = {group: points[group] for group in points if whole or group in NAMES}
        if project["name"] not in installed:
            declare(folder, project["name"], some)
    paths = [str(folder), str(ROOT / "tools"), str(ROOT / "labs")]
    sys.path += [path for path in paths if path not in sys.path]
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*([before] if before else []), *paths])
