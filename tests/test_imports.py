"""Imports point one way, and nothing that attacks can reach the truth."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("attacks", "scenarios", "trainers")
CORE = sorted(
    path
    for path in (ROOT / "privaudit").rglob("*.py")
    if not set(FOLDERS) & set(path.relative_to(ROOT / "privaudit").parts)
)


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{a.name}" for a in node.names}
    return found


@pytest.mark.parametrize("path", CORE, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_package_never_imports_from_the_three_folders(path: Path) -> None:
    for folder in FOLDERS:
        assert not any(
            name.startswith(f"privaudit.{folder}") for name in imports_of(path)
        )


@pytest.mark.parametrize("folder", ["attacks", "trainers"])
def test_methods_never_import_one_another(folder: str) -> None:
    for path in (ROOT / folder).glob("*.py"):
        others = {
            name
            for name in imports_of(path)
            if name.startswith(("privaudit.attacks.", "privaudit.trainers."))
        }
        assert not others, path


@pytest.mark.parametrize("folder", ["attacks", "trainers"])
def test_no_method_can_name_the_truth(folder: str) -> None:
    hidden = ("ledger", "audit", "auditor", "runs", "training", "population")
    for path in (ROOT / folder).glob("*.py"):
        assert not imports_of(path) & {f"privaudit.{name}" for name in hidden}, path


def test_what_attacks_use_cannot_name_the_truth_either() -> None:
    """shadows, threats, prompt_learning … are in reach; none of them is the ledger."""
    seen, todo = set(), ["attack", "shadows", "prompts.learning"]
    while todo:
        module = todo.pop()
        path = ROOT / "privaudit" / f"{module.replace('.', '/')}.py"
        if module in seen or not path.exists():
            continue
        seen.add(module)
        todo += [
            name.removeprefix("privaudit.")
            for name in imports_of(path)
            if name.startswith("privaudit.")
        ]
    assert {"attack", "trainer", "federation", "threats"} <= seen
    hidden = {"ledger", "audit", "auditor", "runs", "training", "population"}
    assert not seen & hidden


def test_only_the_federation_makes_messages() -> None:
    """In its name, delivery does, and the protocol of masked sums.

    Shadows and views make some too: of an adversary's own, or derived.
    """
    makers = {
        path.name
        for path in [*CORE, *(ROOT / "trainers").glob("*.py")]
        if "Message(" in path.read_text()
    }
    sending = {"federation.py", "delivery.py", "masked_sum.py"}
    assert makers <= {*sending, "shadows.py", "threats.py", "transcript.py"}
