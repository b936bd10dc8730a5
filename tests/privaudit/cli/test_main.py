import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from privaudit.federated.runs.folder.run_names import latest_runs, runs_folder
from tests.conftest import Cli


def test_help_imports_no_torch() -> None:
    """A start-up that imports torch takes seconds; this one takes a tenth of one."""
    script = (
        "import sys; sys.argv = ['privaudit', '--help']\n"
        "from privaudit.cli.main import run\n"
        "try: run()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'open_clip', 'sklearn', 'scipy'}\n"
        "assert not heavy & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "tradeoff" in done.stdout


def test_train_and_attack_with_no_further_arguments(cli: Cli, tmp_path: Path) -> None:
    code, out, _ = cli(
        "train", "--seed", 0, "--trainer", "promptfl:epochs=2", "--trainer", "zero-shot",
        "--rounds", "1",
    )  # fmt: skip
    assert code == 0
    assert out.count("seed0") == 2
    code, out, _ = cli(
        "attack", "--shadows", "5", "--clients", "1",
    )  # fmt: skip
    assert code == 0
    assert "AUROC" in out
    assert "report-server-reconstruct.html" in out
    code, out, _ = cli("report")
    assert Path(out.strip()).exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "--trainer", "promptlf"], "Did you mean 'promptfl'?"),
        (["train", "--set", "epochs"], "Write NAME=VALUE"),
        (["train", "--set", "epochs=many"], "cannot take epochs = 'many'"),
        (["train", "--trainer", "dp-fpl", "--epsilon", "-1"], "cannot take epsilon"),
        (["train", "--partition", "diriclet"], "cannot take partition = 'diriclet'"),
        (["train", "--clients", "0"], "cannot take clients = 0"),
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
        (["report", "nowhere"], "holds no run"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    words: list[str], says: str, cli: Cli
) -> None:
    code, _, err = cli(*words)
    assert code == 2
    assert says in err
    assert err.startswith("privaudit: ")
    assert err.count("\n") == 1


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
    code, out, err = cli(
        "train", "--seed", 0, "--trainer", "zero-shot", "--trainer", "promptfl:epochs=many",
    )  # fmt: skip
    assert (code, out) == (2, "")
    assert "cannot take epochs = 'many'" in err
    assert not runs_folder().exists()


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("words", "where", "says"),
    [
        (
            ["train"],
            "privaudit.federated.runs.training.train",
            "Finished rounds are kept: add --resume to the same command to continue.",
        ),
        (
            ["attack"],
            "privaudit.federated.runs.folder.run_names.latest_runs",
            "Run the same command again.",
        ),
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
        "fake = types.ModuleType('privaudit.federated.runs.training'); fake.train = train\n"
        "sys.modules['privaudit.federated.runs.training'] = fake\n"
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
    code, _, err = cli(
        "train", "--seed", 0, "--runs", str(tmp_path / "file" / "runs"), "--rounds", "1",
    )  # fmt: skip
    assert (code, err.count("\n")) == (2, 1)
    assert "Cannot write" in err


@pytest.mark.parametrize(
    "what", ["trainers", "attacks", "scenarios", "datasets", "models"]
)
def test_everything_can_be_listed(what: str, cli: Cli) -> None:
    code, out, _ = cli("list", what)
    assert code == 0
    assert out.strip()
