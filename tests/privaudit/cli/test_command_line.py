"""The command line: its commands, which words they take, and errors of one line."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import pytest
import typer
from pydantic import Field

from privaudit.cli import plugins
from privaudit.cli.main import app
from privaudit.cli.options import take_fields
from privaudit.core.errors import ConfigError
from privaudit.core.registry import Registry
from privaudit.runs.fields import PANELS, RunFields
from privaudit.runs.run import latest_runs, runs_folder
from tests.conftest import Cli
from tests.plugins import install

Words = tuple[str, ...]


def options(command: Any) -> Iterator[tuple[Any, bool]]:
    """Yield a command's options, and whether they take a path."""
    hints = get_type_hints(command.callback)
    for option in command.params:
        if option.param_type_name == "option":
            yield (
                option,
                Path in (hints.get(option.name), *get_args(hints[option.name])),
            )


def required(command: Any, but: Any) -> Words:
    """Return words for what a command cannot be called without."""
    hints = get_type_hints(command.callback)
    needed: list[str] = []
    for one in command.params:
        if one.required and one is not but:
            is_option = one.param_type_name == "option"
            value = next((c for c in get_args(hints[one.name]) if str(c) == c), "x")
            needed += [one.opts[0], value] if is_option else [value]
    return tuple(needed)


TOP: Any = typer.main.get_command(app)


def commands_of(group: Any, words: Words = ()) -> Iterator[tuple[Words, Any]]:
    """Yield the commands below a group, with the words that call them."""
    for name, one in group.commands.items():
        if hasattr(one, "commands"):
            yield from commands_of(one, (*words, name))
        else:
            yield (*words, name), one


COMMANDS: dict[Words, Any] = dict(commands_of(TOP))
PATHS = [
    ((*words, *required(command, option)), option.opts[0])
    for words, command in COMMANDS.items()
    for option, is_path in options(command)
    if is_path
]


def start(module: str, *words: str, here: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=here)


@pytest.mark.parametrize("module", ["privaudit", "privaudit.cli"])
def test_a_module_is_the_command_with_its_exit_codes_and_its_name(
    module: str, tmp_path: Path
) -> None:
    shown = start(module, "gate", "--help", here=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "Usage: privaudit gate " in shown.stdout
    unknown = start(module, "gate", "--nothing", here=tmp_path)
    assert unknown.returncode == 2
    assert "Usage: privaudit gate " in unknown.stderr
    bad = start(module, "gate", "--baseline", "--json", here=tmp_path)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith("privaudit: --baseline was given '--json'")


def test_many_commands_take_paths() -> None:
    assert (("export",), "--public") in PATHS
    assert len({words for words, _ in PATHS}) > 12


@pytest.mark.parametrize(("words", "option"), PATHS)
def test_no_option_is_taken_for_a_path(
    words: Words, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = cli(*words, option, "--help")
    assert (code, err) == (0, "")
    assert "Usage: privaudit" in out
    for value in ("--quiet", "-1"):
        err = cli.refused(*words, option, value)
        assert err.startswith(f"privaudit: {option} was given '{value}'")
    assert not list(tmp_path.iterdir())


GIVEN: dict[type, tuple[str, ...]] = {
    bool: (), int: ("3",), float: ("0.5",), str: ("x",), Path: ("x",)
}  # fmt: skip


@pytest.mark.parametrize(
    "name", sorted(RunFields.model_fields.keys() - {"trainer", "settings"})
)
def test_every_field_of_a_run_is_an_option_of_train(
    name: str, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    command = COMMANDS[("train",)]
    (option,) = (one for one in command.params if one.name == name)
    assert option.help == RunFields.model_fields[name].description
    kind, _ = get_args(get_type_hints(command.callback)[name])  # the other is None
    asked: dict[str, Any] = {}

    def stop(trainer: str, settings: Any, **fields: Any) -> None:
        asked.update(fields)
        raise ConfigError("Enough.")

    monkeypatch.setattr("privaudit.runs.config.make_config", stop)
    words = (option.opts[0], *GIVEN[kind])
    cli("train", *words)
    assert asked == {name: kind(*GIVEN[kind] or [True])}


def test_a_new_field_of_a_run_is_an_option_without_another_line() -> None:
    class More(RunFields):
        patience: Annotated[int, Field(ge=1)] | None = Field(
            None, description="Rounds."
        )

    def command(name: str = "", **fields: Any) -> None:
        raise NotImplementedError

    take_fields(command, More.model_fields)
    assert get_type_hints(command)["patience"] == int | None
    assert next(iter(signature(command).parameters)) == "name"


def test_help_names_the_columns_of_a_scores_file(cli: Cli) -> None:
    out = cli.done("scores", "--help")
    for column in ("client", "class", "record", "group", "baseline", "feature_NAME"):
        assert column in out


def panels_of(said: str) -> list[str]:
    return re.findall(r"^╭─ (.*?) ─+╮$", said, re.M)


def test_help_groups_the_commands_by_what_they_are_for(cli: Cli) -> None:
    said = cli.done("--help")
    assert panels_of(said) == ["Options", "Run", "Audit", "Decide", "Share", "More"]
    assert "tradeoff" in said
    run = said.partition("─ Run ─")[2].partition("╰")[0]
    assert re.findall(r"^│ (\w+)", run, re.M)[:2] == ["train", "split"]


def test_help_of_train_shows_its_options_by_subject(cli: Cli) -> None:
    options = COMMANDS[("train",)].params
    panels = Counter(getattr(one, "rich_help_panel", None) for one in options)
    assert len(options) > 50
    assert max(panels.values()) <= 12
    said = cli.done("train", "--help")
    assert panels_of(said) == ["Options", "Method", *PANELS, "Computing"]


def test_every_field_of_a_run_has_a_panel() -> None:
    placed = [name for names in PANELS.values() for name in names.split()]
    fields = RunFields.model_fields.keys() - {"trainer", "settings"}
    assert sorted(placed) == sorted(fields)


def test_train_and_attack_with_no_further_arguments(cli: Cli, tmp_path: Path) -> None:
    out = cli.done(
        "train", "--seed", 0, "--trainer", "promptfl:epochs=2", "--trainer", "zero-shot",
        "--rounds", "1",
    )  # fmt: skip
    assert out.count("seed0") == 2
    out = cli.done(
        "attack", "--shadows", "5", "--clients", "1",
    )  # fmt: skip
    assert "AUROC" in out
    assert "report-server-reconstruct.html" in out
    out = cli.done("report")
    assert Path(out.strip()).exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "--trainer", "promptlf"], "Did you mean 'promptfl'?"),
        (["train", "--set", "epochs"], "Write NAME=VALUE"),
        (["train", "--set", "epochs=many"], "cannot take epochs = 'many'"),
        (["train", "--trainer", "dp-fpl", "--epsilon", "-1"], "cannot take epsilon"),
        (["train", "--partition", "diriclet"], "cannot take partition = 'diriclet'"),
        (["train", "--clients", "0"], "The run cannot take clients = 0: "),
        (["train", "--alpha", "-1"], "The run cannot take alpha = -1.0: "),
        (["train", "--partition", "x"], "The run cannot take partition = 'x': "),
        (["train", "--tested", "0"], "The run cannot take tested = 0: "),
        (["train", "--name", "--resume"], "--name was given '--resume'"),
        (["gate", "--baseline", "--json"], "--baseline was given '--json'"),
        (["train", "--model", "open_clip:ViT-B-99"], "ViT-B-16"),
        (["train", "--model", "open_clip:ViT-B-16"], "weights"),
        (
            [
                "train",
                "--model",
                "open_clip:ViT-B-16@openai",
                "--checkpoint",
                "no.safetensors",
            ],
            "no.safetensors",
        ),
        (["train", "--trainer", ""], "'--trainer' has an empty value"),
        (["train", "--trainer", ":epochs=1"], "':epochs=1' lacks a name"),
        (["train", "--trainer", "dp-fpl:"], "'dp-fpl:' lacks a parameter"),
        (["train", "--set", "=1"], "'=1' sets nothing"),
        (["train", "--set", "learning_rate=inf"], "a finite number"),
        (["train", "--alpha", "inf"], "cannot take alpha = inf"),
        (["train", "--alpha", "nan"], "cannot take alpha = nan"),
        (["train", "--epsilon", "8"], "promptfl has no privacy budget"),
        (["attack"], "Train one with"),
        (["attack", "--clients", "few"], "--clients few is neither"),
        (["attack", "--clients", "0"], "--clients 0 is neither"),
        (["tradeoff", "--epsilons", "abc"], "--epsilons abc holds 'abc'"),
        (["tradeoff", "--epsilons", "-1,x"], "--epsilons -1,x holds 'x'"),  # no option
        (["tradeoff", "--epsilons", "8,,1"], "--epsilons 8,,1 holds ''"),
        (["tradeoff", "--epsilons", "nan"], "cannot take epsilon = nan"),
        (["tradeoff", "--epsilons", "8,8.0"], "The epsilons hold 8.0 more than once"),
        (["tradeoff", "--epsilons", "none,none"], "The epsilons hold none more"),
        (["tradeoff", "--seeds", "x"], "--seeds x holds 'x'"),
        (["tradeoff", "--seeds", "1,2,1"], "The seeds hold 1 more than once"),
        (["tradeoff", "--seeds", ""], "'--seeds' has an empty value"),
        (["tradeoff", "--modes", "loud"], "cannot take mode = 'loud'"),
        (["tradeoff", "--field", "client=3"], "cannot take client = '3'"),
        (["tradeoff", "--field", "clients=few"], "cannot take clients = 'few'"),
        (["tradeoff", "--field", "seed=3"], "The field seed = 3 was given"),
        (["attack", "--scenario", "x", "nowhere"], "holds no run"),
        (["list", "trainer"], "Did you mean 'trainers'?"),
        (["tradeoff", "--vary", "rank"], "'rank' sets nothing. Write NAME=VALUE"),
        (["tradeoff", "--vary", "rank=2,,4"], "--vary rank 2,,4 holds ''"),
        (["tradeoff", *(["--vary", "rank=2"] * 2)], "--vary rank was given twice"),
        (["tradeoff", "--plan", "nowhere.toml"], "nowhere.toml"),
        (["verify"], "without a card"),
        (["verify", "--recompute", "a", "b"], "takes one run"),
        (["verify", "--recompute", "a", "--again"], "was given with --again"),
        (["report", "nowhere"], "holds no run"),
        (["report", "nowhere", "--json"], "holds no run"),
        (["lint", "nowhere", "--json"], "holds no run"),
        (["train", "--trainer", "promptlf", "--json"], "Did you mean 'promptfl'?"),
        (["train", "--trainer", "promptlf", "--quiet"], "Did you mean 'promptfl'?"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    words: list[str], says: str, cli: Cli
) -> None:
    assert says in cli.refused(*words)


def test_an_epsilon_is_for_the_trainers_that_have_one(cli: Cli) -> None:
    code, _, err = cli(
        "train", "--seed", 0, "--trainer", "zero-shot", "--trainer", "dp-fpl",
        "--epsilon", "8", "--rounds", "1", "--quiet",
    )  # fmt: skip
    assert (code, err) == (0, "")
    blind, private = latest_runs()
    assert blind.config.settings == {}
    assert private.config.settings["epsilon"] == 8.0


def test_nothing_is_trained_if_one_of_the_trainers_cannot_be_made(cli: Cli) -> None:
    err = cli.refused(
        "train", "--seed", 0, "--trainer", "zero-shot", "--trainer", "promptfl:epochs=many",
    )  # fmt: skip
    assert "cannot take epochs = 'many'" in err
    assert not runs_folder().exists()


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("words", "where", "says"),
    [
        (
            ["train"],
            "privaudit.runs.training.train",
            "Finished rounds are kept: add --resume to the same command to continue.",
        ),
        (["attack"], "privaudit.runs.run.latest_runs", "Run the same command again."),
        (
            ["tradeoff"],
            "privaudit.evaluation.tradeoff.sweep.sweep",
            "Finished rounds and audits are kept: run the same command again.",
        ),
    ],
)
def test_ctrl_c_says_what_to_do(
    words: list[str], where: str, says: str, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    module, _, name = where.rpartition(".")
    monkeypatch.setattr(import_module(module), name, interrupt)
    code, _, err = cli(*words)
    assert (code, err) == (130, f"privaudit: interrupted. {says}\n")


def test_a_signal_ends_a_training_with_a_word_on_how_to_go_on(tmp_path: Path) -> None:
    """A real process, as no other test sees what Typer makes of a signal."""
    script = (
        "import os, signal, sys, types\n"
        # A shell's background jobs ignore Ctrl-C, and hand that on.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def train(*_, **__): os.kill(os.getpid(), signal.SIGINT); signal.pause()\n"
        "fake = types.ModuleType('privaudit.runs.training'); fake.train = train\n"
        "sys.modules['privaudit.runs.training'] = fake\n"
        "sys.argv = ['privaudit', 'train', '--trainer', 'zero-shot']\n"
        "from privaudit.cli.main import run\n"
        "run()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 130
    assert done.stderr == (
        "privaudit: interrupted. Finished rounds are kept: add --resume to the "
        "same command to continue.\n"
    )


def test_a_folder_that_cannot_be_written_is_one_line(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    err = cli.refused(
        "train", "--seed", 0, "--runs", str(tmp_path / "file" / "runs"), "--rounds", "1",
    )  # fmt: skip
    assert "Cannot write" in err


@pytest.mark.parametrize(
    "what", ["trainers", "attacks", "scenarios", "datasets", "models"]
)
def test_everything_can_be_listed(what: str, cli: Cli) -> None:
    out = cli.done("list", what)
    assert out.strip()


CODE = '''
import typer

from privaudit.core.errors import ConfigError


def hello(name: str = "nobody", count: int = 1) -> None:
    """Greet somebody."""
    if count < 1:
        raise ConfigError(f"{count} greetings are none. Ask for one.")
    typer.echo(f"hello {name}")


def train() -> None:
    """Stand in for the package's own command."""
    typer.echo("theirs")
'''


def _install(folder: Path, monkeypatch: pytest.MonkeyPatch, **points: str) -> None:
    install(folder, "greeting", {"privaudit.commands": points}, CODE)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(plugins.COMMANDS, "_entries", {})


def test_another_packages_command_is_listed_and_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    _install(tmp_path, monkeypatch, hello="greeting:hello")
    assert cli("hello", "--name", "you") == (0, "hello you\n", "")
    assert "Greet somebody." in cli("--help")[1]
    code, _, said = cli("hello", "--count", "0")
    assert (code, said) == (2, "privaudit: 0 greetings are none. Ask for one.\n")
    assert "looks like an option" in cli.refused("hello", "--name", "--count")


def test_no_package_replaces_a_command_and_a_broken_one_stops_only_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    points = {"train": "greeting:train", "broken": "greeting:nothing"}
    _install(tmp_path, monkeypatch, **points)
    assert "theirs" not in cli("train", "--help")[1]
    assert "broken" not in cli("--help")[1]
    said = cli.refused("broken")
    assert "The command 'broken' of the package greeting 1.2 cannot be used" in said


@pytest.mark.parametrize(
    ("words", "package", "folder"),
    [
        (["table", "a.toml"], "privaudit-tools", "./tools"),
        (["figure", "table", "a.json"], "privaudit-tools", "./tools"),
        (["costs"], "privaudit-tools", "./tools"),
        (["active"], "privaudit-labs", "./labs"),
        (["shift"], "privaudit-labs", "./labs"),
        (["retrain", "base-1", "base-2"], "privaudit-labs", "./labs"),
    ],
)
def test_what_is_not_installed_says_what_to_install(
    words: list[str],
    package: str,
    folder: str,
    monkeypatch: pytest.MonkeyPatch,
    cli: Cli,
) -> None:
    alone = Registry[Any]("command", "privaudit.cli.commands", "nobody's.commands")
    monkeypatch.setattr(plugins, "COMMANDS", alone)
    said = cli.refused(*words)
    assert f"stands in {package}, which is not installed" in said
    assert f"pip install {folder}." in said
    assert cli("--help")[0] == 0
