"""``privaudit scores``, and the commands that take what it writes."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Cli


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIVAUDIT_RUNS", str(tmp_path / "runs"))
    rng = np.random.default_rng(0)
    is_member = rng.random(200) < 0.5
    for name, shift in (("before", 0.0), ("after", 2.0)):
        scores = rng.normal(size=200) + shift * is_member
        rows = [f"{s},{int(m)},r{n}" for n, (s, m) in enumerate(zip(scores, is_member))]  # noqa: B905
        Path(f"{name}.csv").write_text("\n".join(["score,member,record", *rows]))
    return tmp_path


def test_a_file_becomes_a_folder_that_the_other_commands_take(
    files: Path, cli: Cli
) -> None:
    assert cli("scores", "before.csv", "--sampling", "coin")[0] == 0
    for _ in range(2):  # the second replaces the first, and leaves no mark of it
        code, out, _ = cli("scores", "after.csv", "--sampling", "coin", "--json")
    assert not list(Path("runs/after").rglob("*.unfinished"))
    said = json.loads(out.splitlines()[-1])
    assert (code, said["verdict"], said["utility"]) == (0, "leaks", None)
    assert Path(said["report"]).is_file()
    assert cli("report")[0] == 0  # the latest
    assert "after" in Path(said["report"]).read_text()
    asked = ("--scenario", "scores")
    assert cli("gate", "before", "--write-baseline", "b.json", *asked)[0] == 0
    code, out, _ = cli("gate", "after", "--baseline", "b.json", *asked)
    assert (code, "Regression: the one check found one" in out) == (1, True)
    assert cli("compare", "after", "before", *asked)[0] == 0
    assert cli("export", "after", "--public", "card")[0] == 0
    assert cli("verify", "card")[0] == 0


def test_what_is_not_declared_is_said(files: Path, cli: Cli) -> None:
    code, out, _ = cli("scores", "after.csv", "--attack", "RMIA, 64 shadows")
    assert code == 0
    assert "No verdict on membership: AUROC" in " ".join(out.split())
    assert "nobody declares that a fair coin" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("none.csv",), "none.csv cannot be read"),
        ((".",), "no file of scores that is read"),
        (("after.csv", "--name", "../up"), "cannot be called"),
        (("after.csv", "--attack", " "), "The attack was to be called ' '"),
        (("after.csv", "--model", "a" * 61), "The model was to be called"),
        (("after.csv", "--sampling", "dice"), "dice"),
    ],
)
def test_bad_input_ends_with_2_and_writes_nothing(
    files: Path, cli: Cli, words: tuple[str, ...], says: str
) -> None:
    code, out, err = cli("scores", *words)
    assert (code, out) == (2, "")
    assert says in err
    assert not (files / "runs").exists()


def test_other_commands_name_the_scenario_of_scores(files: Path, cli: Cli) -> None:
    cli("scores", "after.csv", "--quiet")
    code, _, err = cli("gate", "after", "--max-auroc", "0.6")
    assert (code, "It holds scores: add --scenario scores." in err) == (2, True)
    for command in ("attack", "lint", "costs"):
        code, _, err = cli(command, "after")
        assert "holds scores that were computed elsewhere" in err, command
        assert code == 2


def test_a_second_try_says_what_it_replaces(files: Path, cli: Cli) -> None:
    coin = ("--sampling", "coin", "--name", "mine")
    code, _, err = cli("scores", "after.csv", *coin)
    assert (code, "replaces" in err) == (0, False)
    code, _, err = cli("scores", "after.csv", *coin)  # the same again
    assert (code, "replaces" in err) == (0, False)
    code, _, err = cli("scores", "before.csv", *coin)
    assert code == 0
    assert "It replaces an audit of other scores" in err
    assert "Leaks: AUROC" in err
