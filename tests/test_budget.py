"""What is counted, what is not, and that more than the budget is told."""

from pathlib import Path

import pytest

from tests.budget import Budget, count, main


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in {
        "privaudit/core/a.py": "1\n2\n3\n",
        "attacks/b.py": "1\n2\n",
        "tests/test_a.py": "1\n",
        "tests/tools/test_b.py": "1\n2\n3\n4\n",
        "tools/c.py": "1\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "privaudit/attacks").symlink_to("../attacks")
    return tmp_path


def test_folders_are_counted_once(root: Path) -> None:
    assert count(root) == {
        "attacks": (2, 1),
        "privaudit/core": (3, 1),
        "tests": (1, 1),
        "tests/tools": (4, 1),
        "tools": (1, 1),
    }


@pytest.mark.parametrize("name", ["lines", "files", "tests"])
def test_one_more_than_the_budget_fails_and_is_named(
    name: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exact = {"lines": 5, "files": 2, "tests": 1}
    assert main(root, Budget(**exact)) == 0
    assert "In the wheel 5 lines in 2 files" in capsys.readouterr().out
    assert main(root, Budget(**exact | {name: exact[name] - 1})) == 1
    assert capsys.readouterr().err.startswith(f"{name}: {exact[name]} are above")
