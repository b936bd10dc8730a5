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


def declare_packages_beside(folder: Path) -> None:
    """Declare the tools of the repository where they are not installed.

    Here, and in the processes that tests start.
    """
    project = tomllib.loads((ROOT / "tools/pyproject.toml").read_text())["project"]
    if project["name"] not in {one.name for one in distributions()}:
        declare(folder, project["name"], project["entry-points"])
    paths = [str(folder), str(ROOT / "tools")]
    sys.path += [path for path in paths if path not in sys.path]
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*([before] if before else []), *paths])
