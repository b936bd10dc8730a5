"""Imports point downwards, and nothing that attacks can reach the truth."""

import ast
from collections.abc import Iterator

import pytest

from tests.places import ROOT

METHODS = ("attacks", "scenarios", "trainers")
LEVELS = (  # each may import what stands before it; what shares a line knows not its peer
    {"core"},
    {"statistics"},
    {"privacy"},
    {"datasets"},
    {"models"},
    {"execution"},
    {"federation"},
    {"runs", "tuning"},
    {"recording"},
    {"auditing"},
    {"evaluation"},
    {"checks"},
    {"report"},
    {"cli"},
)
LEVEL = {folder: n for n, level in enumerate(LEVELS) for folder in level}
APART = {"recording": {"tuning"}, "auditing": {"tuning"}}  # though it stands below
BELOW = {name for name, n in LEVEL.items() if n < LEVEL["runs"]} - {"execution"}
REACH = {  # what a method may import
    "attacks": {"auditing"} | BELOW,
    "trainers": {"tuning"} | BELOW,
    "scenarios": {"auditing"} | BELOW,
}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for path in sorted((ROOT / "privaudit").rglob("*.py"))
    if not set(METHODS) & set(path.relative_to(ROOT / "privaudit").parts)
}
TRUTH = {
    f"privaudit.{name}"
    for name in (
        "runs.ledger",
        "runs.population",
        "runs.run",
        "runs.training",
        "auditing.audit",
        "auditing.auditor",
    )
}


def imports_of(text: str) -> set[str]:
    """Every import of a module, also those in functions and for types only."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{a.name}" for a in node.names}
    return found


def folder_of(module: str) -> str:
    return module.split(".")[1] if module.count(".") else ""


def upward(folder: str, text: str) -> Iterator[str]:
    """Yield what a module in a folder imports that does not stand below it."""
    for name in imports_of(text):
        other = folder_of(name) if name.startswith("privaudit.") else folder
        is_below = LEVEL.get(other, len(LEVELS)) < LEVEL[folder]
        if other != folder and (not is_below or other in APART.get(folder, ())):
            yield name


def test_nothing_imports_upwards() -> None:
    found = {
        module: list(upward(folder_of(module), path.read_text()))
        for module, path in MODULES.items()
        if folder_of(module) in LEVEL
    }
    assert len(found) > 200
    assert {module: names for module, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "line",
    [
        "from privaudit.auditing.auditor import Auditor",
        "import privaudit.report.page",
        "def late():\n    from privaudit.cli import main",
        "if TYPE_CHECKING:\n    from privaudit.runs.run import Run",
        "from privaudit.trainers.promptfl import PromptFL",
    ],
)
def test_an_upward_import_is_found(line: str) -> None:
    assert list(upward("models", line))
    assert not list(upward("models", "from privaudit.core.errors import ConfigError"))


@pytest.mark.parametrize("folder", ["runs", "recording", "auditing"])
def test_tuning_and_runs_recordings_and_audits_do_not_know_each_other(
    folder: str,
) -> None:
    assert list(upward(folder, "import privaudit.tuning"))
    assert list(upward("tuning", f"import privaudit.{folder}"))
    assert list(upward("recording", "import privaudit.auditing"))
    assert list(upward("federation", "import privaudit.runs"))


def test_every_folder_has_its_level() -> None:
    folders = {folder_of(module) for module in MODULES} - {"__init__", "__main__"}
    assert folders == set(LEVEL)
    entries = (ROOT / "privaudit").glob(
        "[!_]*"
    )  # without caches of a folder that moved
    assert len([e for e in entries if e.is_file() or any(e.rglob("*.py"))]) <= 19


@pytest.mark.parametrize("method", METHODS)
def test_methods_import_only_what_is_meant_for_them(method: str) -> None:
    for path in (ROOT / method).glob("[!_]*.py"):
        names = {n for n in imports_of(path.read_text()) if n.startswith("privaudit.")}
        assert {folder_of(name) for name in names} <= REACH[method], path


@pytest.mark.parametrize("method", ["attacks", "trainers"])
def test_no_method_can_name_the_truth(method: str) -> None:
    for path in (ROOT / method).glob("*.py"):
        assert not imports_of(path.read_text()) & TRUTH, path


def read_with(*todo: str) -> set[str]:
    """Return these modules with all of ours that they need, lazily or not."""
    seen: set[str] = set()
    left = list(todo)
    while left:
        module = left.pop()
        if module in MODULES and module not in seen:
            seen.add(module)
            left += imports_of(MODULES[module].read_text())
    return seen


def test_an_attack_with_shadow_models_is_read_without_accountants() -> None:
    attack = imports_of((ROOT / "attacks" / "lira.py").read_text())
    needed = read_with(*attack)
    assert "privaudit.federation.rounds" in needed
    assert not {n for n in needed if n.endswith(".accountant")}
    assert len(needed) < 52


def test_what_attacks_use_cannot_name_the_truth_either() -> None:
    """Shadow models and threat models are in reach; none of them is the ledger."""
    seen = read_with(
        "privaudit.auditing.attack",
        "privaudit.auditing.shadow_models",
        "privaudit.tuning.prompts.learning",
    )
    assert {f"privaudit.federation.{n}" for n in ("trainer", "threat_models")} <= seen
    assert not seen & TRUTH
    assert set(MODULES) >= TRUTH


def test_only_the_federation_makes_messages() -> None:
    """In its name, the exchange of messages does.

    Shadows and views make some too: of an adversary's own, or derived. The recorder
    writes down what others sent.
    """
    paths = [*MODULES.items(), *((p.stem, p) for p in (ROOT / "trainers").glob("*.py"))]
    makers = {name for name, path in paths if "Message(" in path.read_text()}
    sending = {"rounds", "threat_models", "transcript"}
    assert makers <= {
        *(f"privaudit.federation.{name}" for name in sending),
        "privaudit.auditing.shadow_models",
        "privaudit.recording.recorder",
    }


def test_what_only_unix_has_is_imported_where_it_is_used() -> None:
    """So that every module can be imported on Windows."""
    unix = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "termios", "tty"}
    found = {
        f"{name}: {alias.name}"
        for name, path in MODULES.items()
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if {alias.name, getattr(node, "module", "")} & unix
    }
    assert found == set()
