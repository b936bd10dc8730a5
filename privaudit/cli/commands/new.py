"""``privaudit new``: a package for a trainer, attack, scenario or data set of one's own."""

from collections.abc import Mapping
from importlib.resources import files
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Literal

import typer

from privaudit.cli import options
from privaudit.cli.printing import show
from privaudit.core.errors import ConfigError, StorageError

Kind = Literal["trainer", "attack", "scenario", "data-set"]
_GROUPS: Mapping[Kind, str] = {
    "trainer": "trainers",
    "attack": "attacks",
    "scenario": "scenarios",
    "data-set": "datasets",
}


def new(
    kind: Annotated[Kind, typer.Argument(help="What the package adds.")],
    name: Annotated[str, typer.Argument(help="Its name, such as my-attack.")],
    folder: Annotated[
        Path | None,
        options.folder_option("Where to; by default a folder of that name here."),
    ] = None,
) -> None:
    """Write a package that adds a trainer, attack, scenario or data set, with tests."""
    from privaudit.cli.list import REGISTRIES
    from privaudit.runs.own_files import write_output

    registry = REGISTRIES[_GROUPS[kind]]
    registry.check_name(name)
    place, module = folder or Path(name), name.replace("-", "_")
    usable = module.isidentifier() and not iskeyword(module) and not find_spec(module)
    if registry.has(name) or not usable:
        raise ConfigError(
            f"The {registry.kind} {name!r} was to be begun, and that is the name of "
            f"another, or of a Python module, or can be none. Choose one that neither "
            f"`privaudit list {_GROUPS[kind]}` nor Python knows."
        )
    if place.exists():
        raise StorageError(f"{place} is there already. Name another --folder.")
    is_class = kind in ("trainer", "attack")
    words = {
        "MODULE": module,
        "CLASS": module.title().replace("_", "") if is_class else f"make_{module}",
        "NAME": name,
        "GROUP": _GROUPS[kind],
    }
    written = {
        "pyproject.toml": place / "pyproject.toml",
        f"{kind}.txt": place / f"{module}.py",
        f"test_{kind}.txt": place / "tests" / f"test_{module}.py",
    }
    for template, path in written.items():
        text = files("privaudit.cli").joinpath("templates", template).read_text("utf-8")
        for word, value in words.items():
            text = text.replace(word, value)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_output(path, text.encode())
    paths = [*map(str, written.values())]
    then = f"pip install -e '{place}[dev]' && pytest {place}"
    show({"files": paths}, "\n".join([*paths, f"Then: {then}"]))
