"""What a recording would hold of an app, read from its source before anything is trained.

Nothing is imported or run: names and calls are looked for, with their lines.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from privaudit.core.errors import ConfigError, PrivauditError
from privaudit.core.limits import read_bytes, read_toml

_MOST = 500  # files that are read
_BEHIND = "behind name_partition among the mods"
_TO_ADD = {
    "RecordingGrid": "with RecordingGrid(grid, FOLDER, ledger=LEDGER) as grid: (ServerApp)",
    "name_partition": "mods=[name_partition, ...], for train and evaluate (ClientApp)",
    "members_of": "members_of(context, LEDGER), in place of the partition (ClientApp)",
}
KNOWN: Mapping[str, str] = {
    **{
        f"DifferentialPrivacy{side}Side{how}Clipping": "the server's noise is recorded"
        for side in ("Server", "Client")
        for how in ("Fixed", "Adaptive")
    },
    "LocalDpMod": f"clients' own noise is recorded, {_BEHIND}",
    "fixedclipping_mod": f"clients' clipping is recorded, {_BEHIND}",
    "adaptiveclipping_mod": f"clients' clipping is recorded, {_BEHIND}",
    "SecAggPlusWorkflow": "masked uploads and their sums are recorded, and no update",
    "PrivacyEngine": f"Opacus' steps in the client are recorded, {_BEHIND}",
    "SVTPrivacy": "its noise is recorded, by a RecordingFilter behind it",
    "PercentilePrivacy": "NVFlare's filter adds no noise, and bounds no epsilon",
    "start_simulation": "gives no Grid: take run_simulation, or flwr run",
    "start_server": "gives no Grid: take a ServerApp",
}
"""What becomes of calls and names that are known."""
_EACH_ROUND = (
    "a new engine each time that this runs, and its accountant begins at 0: the epsilon "
    "it gives is of that round alone"
)
_NOT_POISSON = (
    "batches are no Poisson samples, and Opacus' accountant counts them as such: its "
    "epsilon is too low"
)


@dataclass(frozen=True)
class Sight:
    """Something in a source file that a recording, or a guarantee, depends on.

    Attributes:
        where: File and line, from the app's folder.
        is_fault: Whether it makes a guarantee weaker than is said.
    """

    where: str
    name: str
    meaning: str
    is_fault: bool = False


def look_at(folder: Path) -> list[Sight]:
    """Return what the Python files of a folder hold, by file and line.

    Hidden folders and installed packages, such as those of ``.venv``, are no part of it.
    """
    files = sorted(
        file
        for file in folder.rglob("*.py")
        if not any(
            part.startswith(".") or part == "site-packages"
            for part in file.relative_to(folder).parts
        )
    )
    sights = [sight for file in files[:_MOST] for sight in _in_file(file, folder)]
    if len(files) > _MOST:
        why = f"{len(files)} files, of which the first {_MOST} were read"
        sights.append(Sight(".", "not read", why))
    return sights


def _in_file(file: Path, folder: Path) -> Iterator[Sight]:
    where = file.relative_to(folder).as_posix()
    try:
        nodes = list(ast.walk(ast.parse(read_bytes(file))))
    except (PrivauditError, SyntaxError, ValueError, RecursionError) as error:
        yield Sight(where, "not read", str(error))
        return
    first = dict[str, int]()  # names that are only imported are no such nodes
    for node in nodes:
        if isinstance(node, ast.Name | ast.Attribute):
            line = first.setdefault(_name(node), node.lineno)
            first[_name(node)] = min(line, node.lineno)
    for name, line in sorted(first.items(), key=lambda one: one[1]):
        if name in _TO_ADD or name in KNOWN:
            yield Sight(f"{where}:{line}", name, KNOWN.get(name, "is there"))
    for node in nodes:
        if isinstance(node, ast.FunctionDef) and _runs_each_round(node):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Call) and _name(inner.func) == "PrivacyEngine":
                    at = f"{where}:{inner.lineno}"
                    yield Sight(at, "PrivacyEngine", _EACH_ROUND, is_fault=True)
        if isinstance(node, ast.keyword) and node.arg == "poisson_sampling":
            at = f"{where}:{node.value.lineno}"
            if getattr(node.value, "value", True) is False:
                yield Sight(at, "poisson_sampling=False", _NOT_POISSON, is_fault=True)


def _name(node: ast.AST) -> str:
    return getattr(node, "attr", "") or getattr(node, "id", "")


def _runs_each_round(function: ast.FunctionDef) -> bool:
    """Say whether a function is what a client runs in each round: train or fit."""
    called = [getattr(d, "func", d) for d in function.decorator_list]
    return function.name == "fit" or "train" in map(_name, called)


def app_findings(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield what would be recorded of a Flower app, and what to add, in two columns.

    Raises:
        ConfigError: The folder holds no app.
    """
    try:
        project = read_toml(folder / "pyproject.toml")
        components = project["tool"]["flwr"]["app"]["components"]
    except (PrivauditError, KeyError, TypeError):
        raise ConfigError(
            f"{folder} is no Flower app: no pyproject.toml there has "
            "[tool.flwr.app.components]. Go to the app's folder first."
        ) from None
    yield "app", ", ".join(map(str, components.values()))
    sights = look_at(folder)
    for one in sights:
        yield one.where, f"{one.name}: {one.meaning}"
    names = {one.name for one in sights}
    for name in sorted(_TO_ADD.keys() - names):
        yield "to add", _TO_ADD[name]
    if not names & KNOWN.keys():
        yield "privacy", "none that is known: record yours by RecordingGrid.mechanism"
