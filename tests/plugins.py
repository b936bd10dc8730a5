"""Packages of other people, as an installer leaves them: modules and a dist-info."""

from collections.abc import Mapping
from pathlib import Path


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
    lines = [
        line
        for group, points in entries.items()
        for line in (f"[{group}]", *(f"{name} = {of}" for name, of in points.items()))
    ]
    info = folder / f"{package}-1.2.dist-info"
    info.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n"
    (info / "METADATA").write_text(metadata)
    (info / "entry_points.txt").write_text("\n".join(lines))
    (folder / f"{package}.py").write_text(code)
