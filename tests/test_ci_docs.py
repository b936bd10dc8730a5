"""The examples of docs/ci.md and docs/gate.md are what they say they are."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from typing import Any

import click
import pytest
import typer
import yaml  # type: ignore[import-untyped]

from privaudit.checks.gate.settings import make_settings
from privaudit.cli.main import app
from tests.places import ROOT

DOCS = ROOT / "docs"
CI = (DOCS / "ci.md").read_text(encoding="utf-8")
GATE = (DOCS / "gate.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def scripts(node: Any) -> Iterator[str]:
    """Yield the shell lines of a workflow or a pipeline, wherever they stand."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "run":
                yield from str(value).splitlines()
            elif key in ("script", "before_script"):
                yield from value
            else:
                yield from scripts(value)
    elif isinstance(node, list):
        for entry in node:
            yield from scripts(entry)


FILES = [
    yaml.safe_load((ROOT / "ci" / name).read_text(encoding="utf-8"))
    for name in ("action.yml", "gitlab.yml")
]
WORKFLOWS = [yaml.safe_load(text) for text in blocks(CI, "yaml")]
SHELL = [line for workflow in [*WORKFLOWS, *FILES] for line in scripts(workflow)]
TRAIN_ARGS = shlex.split(blocks(CI, "text")[0])
NAMED = sorted(
    {f"privaudit {found}" for found in re.findall(r"`privaudit ([^`…]+)`", CI + GATE)}
)
LINES = [
    *(line for line in SHELL if "privaudit " in line and "pip " not in line),
    *(line for block in blocks(GATE, "") for line in block.splitlines()),
]
COMMANDS = [line for line in LINES if re.match(r"(xargs )?privaudit ", line)]


def parse(line: str) -> click.Context:
    """Parse a command line as the shell and privaudit would, without running it."""
    line = re.sub(r"\$\{(\w+):\+(.*?)\}", r"\2", line).partition(" || ")[0]
    words = shlex.split(re.sub(r"\$\w+", "1", line))
    takes_file = words[0] == "xargs"
    for sign in "<>":
        words = words[: words.index(sign)] if sign in words else words
    words = [*words[1:], *TRAIN_ARGS] if takes_file else words
    assert words[0] == "privaudit"
    command = typer.main.get_command(app)
    top = click.Context(command)  # type: ignore[arg-type]
    name, found, rest = command.resolve_command(top, words[1:])  # type: ignore[attr-defined]
    context: click.Context = found.make_context(name, rest, parent=top)
    return context


def test_there_are_two_complete_examples_and_a_baseline() -> None:
    github, gitlab, _, _, baseline = WORKFLOWS
    assert set(github) >= {"name", "permissions", "jobs"}
    assert True in github  # YAML 1.1 reads the key "on" as a truth value
    assert "privacy" in gitlab
    assert "baseline" in baseline["jobs"]
    for workflow in (github, gitlab):
        words = " ".join(scripts(workflow))
        for command in ("train", "attack", "lint", "gate", "export"):
            assert f"privaudit {command}" in words


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_examples_exists_with_its_options(line: str) -> None:
    assert parse(line).params


@pytest.mark.parametrize("line", NAMED)
def test_a_command_named_in_the_text_exists(line: str) -> None:
    name = shlex.split(line)[1]
    assert name in typer.main.get_command(app).commands  # type: ignore[attr-defined]


def test_the_parser_notices_an_option_that_is_not_there() -> None:
    with pytest.raises(Exception, match="No such option"):
        parse("privaudit gate after --base-line baseline.json")


def test_pinned_versions_are_the_tested_ones_with_wheels_for_processors() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    tested = dict(line.split("==") for line in lines)
    action, gitlab = FILES
    said = {name: entry.get("default") for name, entry in action["inputs"].items()}
    variables = gitlab[".privaudit"]["variables"]
    assert said["torch"] == variables["TORCH"] == tested["torch"]
    assert said["torchvision"] == variables["TORCHVISION"] == tested["torchvision"]
    installs = [line for line in SHELL if "pip install" in line]
    assert len(installs) == 10
    for line in installs:
        assert ("whl/cpu" in line) == ("torch" in line)
        for name, version in re.findall(r"(\w+)==([\d.]+)", line):
            assert tested[name] == version


def test_the_action_puts_no_input_into_a_script() -> None:
    """An input that is shell would be run: they come as environment variables."""
    for line in scripts(FILES[0]):
        assert "${{" not in line


def test_the_template_fails_by_default_and_takes_no_baseline_where_none_is() -> None:
    job = FILES[1][".privaudit-gate"]
    assert "allow_failure" not in job
    (line,) = (one for one in job["script"] if one.startswith("privaudit gate"))
    assert '${PRIVAUDIT_BASELINE:+--baseline "$PRIVAUDIT_BASELINE"}' in line


def test_every_gate_of_a_change_holds_its_settings_to_the_target_branchs() -> None:
    """Else a change could ask for less in its own pyproject.toml."""
    gates = [line for line in SHELL if line.startswith("privaudit gate")]
    held = [line for line in gates if "--settings-from" in line]
    assert [line for line in gates if line not in held and "--write" not in line] == []
    assert len(held) == 5


def test_the_action_leaves_no_badge_of_an_earlier_run() -> None:
    lines = list(scripts(FILES[0]))
    gate = next(i for i, line in enumerate(lines) if line.startswith("privaudit gate"))
    assert "rm -f gate-badge.json" in lines[:gate]


def test_nothing_private_is_uploaded() -> None:
    uploaded: list[str] = []
    for workflow in WORKFLOWS[:2]:
        for job in (workflow.get("jobs") or workflow).values():
            for step in job.get("steps", []):
                if "upload" in step.get("uses", ""):
                    uploaded += map(str, step["with"].values())
            uploaded += job.get("artifacts", {}).get("paths", [])
    text = " ".join(uploaded)
    assert "public/" in text
    for private in ("runs", "baseline", "lint", "base.args", ".log"):
        assert private not in text


def test_every_job_draws_a_seed_of_its_own_and_needs_no_secret() -> None:
    """One seed over changes would make equations about one membership of them."""
    drawn = 'AUDIT_SEED=$(python -c "import secrets; print(secrets.randbelow(10**18))")'
    for workflow in WORKFLOWS:
        lines = list(scripts(workflow))
        trained = [n for n, line in enumerate(lines) if "privaudit train" in line]
        assert trained
        assert lines.count(drawn) == 1
        assert lines.index(drawn) < min(trained)
        assert all('--seed "$AUDIT_SEED"' in lines[n] for n in trained)
    assert "secrets." not in CI.replace("secrets.randbelow", "")


def test_no_command_prints_exact_numbers_into_a_log() -> None:
    printing = [line for line in SHELL if re.match(r"privaudit (attack|gate)\b", line)]
    assert len(printing) > 8
    for line in printing:
        assert ".log" in line or "--write-baseline" in line, line


def test_settings_of_the_examples_are_accepted() -> None:
    for text in (*blocks(CI, "toml"), *blocks(GATE, "toml")):
        table = tomllib.loads(text)["tool"]["privaudit"]["gate"]
        assert make_settings(table)


def test_python_of_the_examples_compiles_and_marks_what_the_plugin_knows() -> None:
    from privaudit.cli.pytest_plugin import AuditArguments, MarkerLimit

    known = {*AuditArguments.__dataclass_fields__, *MarkerLimit.__dataclass_fields__}
    for text in (*blocks(CI, "python"), *blocks(GATE, "python")):
        compile(text, "docs", "exec")
        for arguments in re.findall(r"mark\.privacy\((.*)\)\n", text):
            assert set(re.findall(r"(\w+)=[\"\d]", arguments)) <= {
                *known,
                "epsilon",
                "rounds",
            }


def test_every_setting_of_the_gate_is_documented() -> None:
    from privaudit.checks.gate.settings import GateSettings

    (table,) = blocks(GATE, "toml")
    names = set(tomllib.loads(table)["tool"]["privaudit"]["gate"])
    assert names == set(GateSettings.__dataclass_fields__)
