import subprocess
import sys
from pathlib import Path

import pytest

from privaudit import cli


def call(
    *words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["privaudit", *words])
    with pytest.raises(SystemExit) as end:
        cli.run()
    printed = capsys.readouterr()
    code = end.value.code
    return (code if isinstance(code, int) else 0), printed.out, printed.err


def test_help_imports_no_torch() -> None:
    """A start-up that imports torch takes seconds; this one takes a tenth of one."""
    script = (
        "import sys; sys.argv = ['privaudit', '--help']\n"
        "from privaudit.cli import run\n"
        "try: run()\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'open_clip', 'sklearn', 'scipy'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "tradeoff" in done.stdout


def test_train_and_attack_with_no_further_arguments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, _ = call(
        "train", "--trainer", "promptfl:epochs=2", "--trainer", "zero-shot",
        "--rounds", "1", monkeypatch=monkeypatch, capsys=capsys,
    )  # fmt: skip
    assert code == 0
    assert out.count("seed0") == 2
    code, out, _ = call(
        "attack", "--shadows", "5", "--clients", "1",
        monkeypatch=monkeypatch, capsys=capsys,
    )  # fmt: skip
    assert code == 0
    assert "AUROC" in out
    assert "report-server-reconstruct.html" in out
    code, out, _ = call("report", monkeypatch=monkeypatch, capsys=capsys)
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
                "open_clip:ViT-B-16",
                "--checkpoint",
                "no.safetensors",
            ],
            "no.safetensors",
        ),
        (["attack"], "Train one with"),
        (["attack", "--scenario", "x", "nowhere"], "holds no run"),
        (["list", "trainer"], "Did you mean 'trainers'?"),
        (["report", "nowhere"], "holds no run"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    words: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = call(*words, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 2
    assert says in err
    assert err.startswith("privaudit: ")
    assert err.count("\n") == 1


def test_a_folder_that_cannot_be_written_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = call(
        "train", "--runs", str(tmp_path / "file" / "runs"), "--rounds", "1",
        monkeypatch=monkeypatch, capsys=capsys,
    )  # fmt: skip
    assert (code, err.count("\n")) == (2, 1)
    assert "Cannot write" in err


@pytest.mark.parametrize(
    "what", ["trainers", "attacks", "scenarios", "datasets", "models"]
)
def test_everything_can_be_listed(
    what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = call("list", what, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0
    assert out.strip()
