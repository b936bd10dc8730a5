import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.conftest import Cli


def test_the_command_writes_a_baseline_and_ends_with_the_outcome(
    runs: Path, cli: Cli
) -> None:
    code, out, _ = cli("gate", "plain", "--write-baseline", "b.json")
    assert (code, "keep it private" in out) == (0, True)
    words = ("gate", "broken", "--baseline", "b.json", "--no-guarantees")
    code, out, _ = cli(*words, "--metrics", "utility")
    assert code == 1
    said = " ".join(out.split())
    assert "Regression: accuracy on own classes fell beyond the margin" in said
    assert "Regression: the one check found one (broken against plain" in said
    same = ("gate", "plain", *words[2:], "--metrics", "auroc")
    code, out, _ = cli(*same, "--margin", "0.2")
    said = " ".join(out.split())
    assert code == 0
    assert "Pass: the one check rules out what it looks for" in said
    assert "In plain words: nothing that was compared with" in said
    assert cli(*same, "--margin", "0.001")[0] == 3


def test_a_report_in_a_folder_that_is_not_there_is_refused_first(
    runs: Path, tmp_path: Path, cli: Cli
) -> None:
    words = ("gate", "broken", "--min-utility", "0.9", "--markdown", "m.md")
    code, _, said = cli(*words, "--junit", "none/j.xml")
    assert code == 2
    message = (
        "none/j.xml was to be written, and there is no folder none. Create it first"
    )
    assert message in " ".join(said.split())
    assert not (tmp_path / "m.md").exists()


def test_the_command_reads_pyproject_and_flags_win(
    runs: Path, tmp_path: Path, cli: Cli
) -> None:
    text = '[tool.privaudit.gate]\nmetrics = ["auroc"]\nmargin = 0.001\n'
    (tmp_path / "pyproject.toml").write_text(text)
    assert cli("gate", "plain", "--write-baseline", "b.json")[0] == 0
    (tmp_path / "pyproject.toml").write_text(text + 'baseline = "b.json"\n')
    code, out, _ = cli("gate", "plain", "--json")
    found = json.loads(out)
    assert code == found["exit_code"] == 3
    assert found["checks"][0]["limit"] == 0.001
    code, out, _ = cli("gate", "plain", "--json", "--margin", "0.2")
    assert (code, json.loads(out)["outcome"]) == (0, "pass")


def test_the_command_writes_all_three_reports(
    runs: Path, tmp_path: Path, cli: Cli
) -> None:
    code, _, _ = cli(
        "gate", "broken", "--baseline", str(runs / "plain.json"), "--min-utility",
        "0.99", "--junit", "j.xml", "--sarif", "s.json", "--markdown", "m.md",
    )  # fmt: skip
    assert code == 1
    suite = ET.fromstring((tmp_path / "j.xml").read_text())
    assert suite.get("tests") == "8"  # two changes, a limit, and five epsilons
    sarif = json.loads((tmp_path / "s.json").read_text())
    rules = {result["ruleId"] for result in sarif["runs"][0]["results"]}
    assert {"use-change", "use-limit", "guarantee"} <= rules
    assert "❌ regression" in (tmp_path / "m.md").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["broken"], "nothing to ask"),
        (["broken", "--margin", "2"], "cannot take margin = 2.0"),
        (["broken", "--metrics", "f1"], "cannot take metrics.0"),
        (["broken", "--baseline", "no.json"], "There is no baseline no.json"),
        (["broken", "--baseline", "a", "--write-baseline", "b"], "Give one of the two"),
        (["nobody", "--max-auroc", "1"], "nobody holds no run"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    runs: Path, words: list[str], says: str, cli: Cli
) -> None:
    code, _, err = cli("gate", *words)
    assert code == 2
    assert says in err
    assert err.count("\n") == 1
