"""What another package adds, as ``privaudit new`` writes it and with a slip in it."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from privaudit.checks.contracts import contracts_of
from privaudit.cli.list import REGISTRIES
from privaudit.core.errors import PluginError
from privaudit.core.registry import fault_of_plugin
from tests.conftest import Cli
from tests.plugins import declare

KINDS = {
    "trainer": ("trainers", "MineToo"),
    "attack": ("attacks", "MineToo"),
    "scenario": ("scenarios", "make_mine_too"),
    "data-set": ("datasets", "make_mine_too"),
}
IN_PLACE = """    def aggregate(self, task, server, inbox, at):
        server["means"] += 1
        return super().aggregate(task, server, inbox, at)

    def query"""
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> Iterator[Write]:
    """Write a package of a kind, mine-too, with a slip, and install it."""

    def build(kind: str, right: str = "", wrong: str = "") -> Path:
        cli.done("new", kind, "mine-too", "--folder", tmp_path / "mine")
        path, (group, entry) = tmp_path / "mine" / "mine_too.py", KINDS[kind]
        code = path.read_text()
        assert right in code
        path.write_text(code.replace(right, wrong))
        points = {f"privaudit.{group}": {"mine-too": f"mine_too:{entry}"}}
        declare(tmp_path / "mine", "mine-too", points)
        monkeypatch.syspath_prepend(tmp_path / "mine")
        return tmp_path / "mine"

    yield build
    for registry in REGISTRIES.values():
        registry._entries.pop("mine-too", None)
    sys.modules.pop("mine_too", None)


def faults() -> list[str]:
    """Return what the contracts of the package say that do not hold."""
    said = []
    for _, holds in contracts_of("mine_too"):
        try:
            holds()
        except PluginError as error:
            said.append(str(error))
        except Exception as error:
            said.append(fault_of_plugin(error) or str(error))
    return said


@pytest.mark.parametrize("kind", KINDS)
def test_a_package_as_it_is_written_keeps_to_its_contracts(
    kind: str, write: Write
) -> None:
    write(kind)
    assert faults() == []


@pytest.mark.parametrize(
    ("kind", "right", "wrong", "says"),
    [
        ("trainer", "->knc", "->nkc", "query gave log_probabilities of the shapes"),
        ("trainer", "=torch.zeros(len(cohort))", "=torch.zeros(1)", "gave loss of shape"),
        ("trainer", "LocalResult(sent, kept={}, loss=", "dict(sent=sent, loss=", "a dict"),
        ("trainer", "def query", "def ask", "has no query. Inherit from BaseTrainer"),
        ("trainer", "sums / hot", "sums / hat", "raised NameError in line"),
        ("trainer", "means = sums", "means = torch.rand(1) + sums", "the same seed"),
        ("trainer", ".log_softmax(dim=-1)", "", "probabilities that sum to"),
        ("trainer", "    def query", IN_PLACE, "is given: means"),
        ("trainer", "means = s", "means = len(cohort) * s", "otherwise beside other"),
        ("attack", "targets, score)", "targets[1:], score)", "2 results for 3"),
        ("attack", "return own", "return -own", "higher scores mean members"),
        ("attack", "return own", "return np.random.rand(1) + own", "asked again"),
        ("attack", ")[:, 0]", ")[:, 0]; own = own - own[0]", "in another order"),
        ("attack", "    task:", "    kind:", "has no task"),
        ("scenario", "sums?", "sums", "end it with a ?"),
        ("scenario", '"server-aggregate"', '"bystander"', "bystander"),
        ("data-set", ".manual_seed(0)", "", "Draw them from a fixed seed"),
        ("data-set", '("dark", "bright")', '("dark",)', "there are 1 names"),
    ],
)  # fmt: skip
def test_a_slip_ends_in_a_sentence(
    kind: str, right: str, wrong: str, says: str, write: Write
) -> None:
    write(kind, right, wrong)
    found = faults()
    assert any(says in one for one in found), found


def test_pytest_asks_the_contracts_and_the_command_line_says_whose_the_fault_is(
    write: Write, cli: Cli
) -> None:
    folder = write("trainer", "sums / hot", "sums / hat")
    loaded = (
        "-pno:privaudit",
        "-p",
        "privaudit.cli.pytest_plugin",
        "-pno:cacheprovider",
    )
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *loaded, "-k", "inputs", str(folder)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PYTHONPATH": str(folder)},
    )
    assert ran.returncode == 1, ran.stdout
    assert "mine_too.py raised NameError in line" in ran.stdout
    assert "Traceback" not in ran.stdout
    said = cli.refused("train", "--trainer", "mine-too", "--clients", 2, "--seed", 0)
    assert "mine_too.py raised NameError" in said


def test_a_package_that_is_not_there_or_a_name_that_is_taken_is_refused(
    cli: Cli, tmp_path: Path
) -> None:
    with pytest.raises(PluginError, match="Install it: pip install -e FOLDER"):
        [*contracts_of("nothing-of-that-name")]
    for name in ("lira", "numpy", "3d"):
        assert "Choose one that neither" in cli.refused("new", "attack", name)
    assert "small letters" in cli.refused("new", "attack", "Mine Too")
    there = cli.refused("new", "attack", "mine-too", "--folder", tmp_path)
    assert "is there already" in there
