"""Options that name data or places: nothing is written into a run, through a link, or over a
device.

What a command can write is found by walking the command line: a new option is tried in
all places without a new line here.
"""

import ast
import hashlib
import inspect
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import typer
from matplotlib.figure import Figure
from PIL import Image
from typer.models import ParameterInfo

from privaudit import Auditor, Recorder, load_run, train, write_tradeoff
from privaudit.auditing.audit_log import make_plan, write_plan
from privaudit.auditing.stored_audit import save_audit
from privaudit.checks.gate.gate import write_baseline
from privaudit.cli import main, options, plugins
from privaudit.core.errors import ConfigError, StorageError, TranscriptError
from privaudit.datasets.split import PUBLIC, TEST, UNUSED
from privaudit.evaluation.tradeoff.result import Tradeoff
from privaudit.report.ci_formats import STEP_SUMMARY, write_summary
from privaudit.report.export import export_public
from privaudit.report.figures.figure_style import write_figure
from privaudit.report.page import write_report
from privaudit.runs.own_files import write_output
from privaudit.runs.run import latest_runs
from tests.conftest import Cli
from tests.places import ROOT

SIZES = {"train": 14, "val": 6, "test": 4}


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Grey and red pictures, in three parts."""
    rng = np.random.default_rng(0)
    for part, count in SIZES.items():
        for label, name in enumerate(("grey", "red")):
            folder = tmp_path / "pictures" / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(60, 90, (12, 16, 3), dtype=np.uint8)
                pixels[..., 0] += np.uint8(150 * label)
                buffer = io.BytesIO()
                Image.fromarray(pixels).save(buffer, "png")
                (folder / f"{number}.png").write_bytes(buffer.getvalue())
    return tmp_path / "pictures"


def test_ones_own_pictures_are_trained_on_by_their_own_split(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.chdir(pictures.parent)
    words = (
        "train", "--trainer", "zero-shot", "--dataset", "image-folder",
        "--clients", "2", "--shots", "10", "--rounds", "1", "--data",
    )  # fmt: skip
    assert cli(*words, "pictures")[0] == 0
    (run,) = latest_runs()
    monkeypatch.setenv("PRIVAUDIT_DATA", str(pictures.parent))
    before = (run.path / "run.json").stat()
    assert cli(*words, "data://pictures")[0] == 0  # another place of the same content
    assert [one.path for one in latest_runs()] == [run.path]
    assert (run.path / "run.json").stat() == before
    monkeypatch.chdir(pictures)  # the path was made whole
    split = load_run(run.path).population.split
    assert [len(split.of(one)) for one in (TEST, PUBLIC, UNUSED)] == [8, 12, 8]
    assert run.metrics[-1]["local_accuracy"] is not None


def test_other_pictures_in_their_place_are_noticed(pictures: Path, cli: Cli) -> None:
    words = ("train", "--trainer", "zero-shot", "--dataset", "image-folder")
    more = ("--data", pictures, "--clients", "2", "--members", "all")
    shares = ("--test-share", "0.2", "--public-share", "0.4", "--rounds", "1")
    assert cli(*words, *more, *shares)[0] == 0
    assert "there are no non-members" in cli.refused("attack")
    (run,) = latest_runs()
    assert run.population.split.members == "all"
    moved = pictures / "train" / "red" / "0.png"
    moved.write_bytes((pictures / "train" / "red" / "1.png").read_bytes())
    from privaudit.datasets import sources as on_disk

    on_disk._load.cache_clear()  # as in another process
    with pytest.raises(TranscriptError, match="has changed since"):
        _ = load_run(run.path).population


def test_a_missing_data_set_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cli: Cli
) -> None:
    monkeypatch.setenv("PRIVAUDIT_DATA", str(tmp_path))
    printed = cli.refused("train", "--seed", 0, "--dataset", "dtd")
    assert "https://www.robots.ox.ac.uk/~vgg/data/dtd/" in printed
    err = cli.refused("train", "--seed", 0, "--data", tmp_path)
    assert "'digits' is part of the package" in err


def test_the_list_of_data_sets_has_four_lines_for_each_that_one_brings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cli: Cli
) -> None:
    monkeypatch.setenv("PRIVAUDIT_DATA", str(tmp_path))
    (tmp_path / "pacs").mkdir()
    code, out, _ = cli("list", "datasets")
    lines = out.splitlines()
    assert code == 0
    first = next(i for i, line in enumerate(lines) if line.startswith("pacs "))
    assert [line.split()[0] for line in lines[first + 1 : first + 4]] == [
        "needs:", "looks", "found:",
    ]  # fmt: skip
    assert any(line.startswith("digits ") for line in lines)


INPUTS = {  # only read
    "train plan", "tradeoff plan", "benchmark plan", "table plan", "scores file",
    "import ledger", "train session", "answer session", "verify as_auditor",
    "benchmark cards",
}  # fmt: skip
WRITES = {"write_bytes", "write_parts", "write_json", "write_tensors", "append_lines"}
OWN_FILES = {  # modules above the runs that write what no user named
    "report/page.py": "an audit's own report.html, in its run",
    "report/index.py": "index.html of a folder of runs; check_place has seen it",
    "report/ci_formats.py": "lines added to GitHub's own summary, once it is checked",
    "report/export/account.py": "the accounts of cards, beside the owner's key",
    "report/export/opening.py": "what was opened to an auditor, beside their key",
}


def _alone(name: str) -> typer.Typer:
    """Return another package's command as the only one of an app, under its name."""
    app, found = typer.Typer(), plugins.find_command(name)
    if isinstance(found, typer.Typer):
        for one in found.registered_commands:
            app.command(f"{name} {one.name}")(one.callback)  # type: ignore[type-var]
    else:
        app.command(name)(found)
    return app


def parameters() -> Iterator[tuple[tuple[str, ...], str, Any, ParameterInfo]]:
    """Yield each command's words, a parameter's name, its type, and what typer knows."""
    groups = [((), main.app)]
    groups += [((g.name,), g.typer_instance) for g in main.app.registered_groups]  # type: ignore[misc]
    groups += [((), _alone(name)) for name in plugins.installed_commands()]
    for above, group in groups:
        for command in group.registered_commands:
            assert command.callback is not None
            name = command.name or command.callback.__name__.replace("_", "-")
            for one in inspect.signature(command.callback).parameters.values():
                kind, *about = get_args(one.annotation)
                yield (*above, *name.split()), one.name, kind, about[0]


def words_of(command: tuple[str, ...], name: str, about: ParameterInfo) -> list[str]:
    """Return the words of a command up to the path that it is to write."""
    is_option = isinstance(about, typer.models.OptionInfo)
    return [*command, *([f"--{name.replace('_', '-')}"] if is_option else [])]


FOUND = list(parameters())
FILES, FOLDERS = (
    [words_of(words, name, p) for words, name, _, p in FOUND if p.parser is parser]
    for parser in (options.file, options.folder)
)


def test_every_path_of_a_command_is_an_output_a_place_of_runs_or_only_read() -> None:
    read = set()
    for words, name, kind, about in FOUND:
        is_path = Path in (kind, *get_args(kind))
        if is_path and about.parser is None:
            read.add(f"{words[-1]} {name}")
        if not is_path:  # a path that is written is no text
            said = (about.help or "").lower()
            assert not said.startswith(("write", "output", "the file to", "folder to"))
    assert read == INPUTS
    parsers = {about.parser for *_, about in FOUND}
    assert parsers == {None, options._folder, options.file, options.folder}
    assert sorted(" ".join(words) for words in FILES) == [
        "benchmark --page", "claim --out", "export --opening", "figure --out",
        "gate --badge", "gate --junit", "gate --markdown", "gate --sarif",
        "gate --write-baseline", "key export", "lint --sarif", "plan", "split --out",
        "table-figure --out",
    ]  # fmt: skip
    assert sorted(" ".join(words) for words in FOLDERS) == [
        "active --output", "benchmark --out", "export --public", "new --folder",
        "pretrain aligned-clip --out", "pretrain projector --out",
        "pretrain surrogate-clip --out", "pretrain tiny-clip --out",
        "pretrain tiny-llava --out", "table --into",
        "table --out", "tradeoff --out",
    ]  # fmt: skip


def test_what_stands_above_the_runs_writes_by_one_function() -> None:
    found = {}
    for folder in ("cli", "report", "checks", "evaluation"):
        for path in (ROOT / "privaudit" / folder).rglob("*.py"):
            if names := written_by(path.read_text()):
                found[path.relative_to(ROOT / "privaudit").as_posix()] = names
    assert set(found) == set(OWN_FILES)


def written_by(text: str) -> set[str]:
    """Return the functions by which a module writes files, but for the one writer."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module == "privaudit.core.storage":
            names |= {alias.name for alias in node.names} & WRITES
        elif isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            opens = called in ("open", "fdopen")
            modes = [a.value for a in node.args if isinstance(a, ast.Constant)]
            if called in ("write_text", "write_bytes") and isinstance(
                node.func, ast.Attribute
            ):
                names.add(called)
            if opens and any(set(str(mode)) & set("wax+") for mode in modes[-1:]):
                names.add("open")
    return names


def test_a_module_that_writes_by_itself_is_found() -> None:
    for line in (
        "from privaudit.core.storage import write_json",
        "path.write_text('a')",
        "open(path, 'w')",
        "with path.open('ab') as file: ...",
    ):
        assert written_by(line), line
    assert not written_by("write_output(path, b''), path.open(), open(path, 'rb')")


@pytest.fixture
def bytes_of() -> Callable[[Path], dict[str, str]]:
    """Return the hash of each file below a folder, and by whatever names."""

    def hashes(folder: Path) -> dict[str, str]:
        return {
            str(path): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }

    return hashes


def bad_places(run: Path, cut: Path, elsewhere: Path) -> dict[str, Path]:
    """Return places where neither a file nor a folder of outputs may come to lie."""
    ledger = run / "ledger.npz"
    (elsewhere / "folder").symlink_to(run)
    (elsewhere / "audits").symlink_to(run / "audits")
    (elsewhere / "link.svg").symlink_to(ledger)
    (elsewhere / "hard.svg").hardlink_to(ledger)
    os.mkfifo(elsewhere / "pipe.svg")
    damaged = elsewhere / "damaged"
    (damaged / "transcript").mkdir(parents=True)
    (damaged / "transcript" / "manifest.jsonl").touch()
    begun = elsewhere / "recorded"
    Recorder(begun / "recording")
    return {
        "the ledger": ledger,
        "the header": run / "run.json",
        "a message": next((run / "transcript").glob("*.safetensors")),
        "an audit": run / "audits" / "one-run" / "report.html",
        "a new file of a run": run / "new.svg",
        "a new file of its audits": run / "audits" / "new.svg",
        "an unfinished run's": cut / "new.svg",
        "a run's that lost run.json": damaged / "new.svg",
        "a recording's": begun / "recording" / "new.svg",
        "up and down again": run / "audits" / ".." / "new.svg",
        "a folder that leads into a run": elsewhere / "folder" / "new.svg",
        "another that does": elsewhere / "audits" / "new.svg",
        "a link to the ledger": elsewhere / "link.svg",
        "a hard link to it": elsewhere / "hard.svg",
        "a pipe": elsewhere / "pipe.svg",
        "the key": Path(os.environ["PRIVAUDIT_KEYS"]) / "owner.key",
        "an account of cards": Path(os.environ["PRIVAUDIT_KEYS"])
        / "accounts"
        / "a.json",
    }


@pytest.fixture
def places(whole: Path, cut: Path, tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "elsewhere").mkdir()
    return bad_places(whole, cut, tmp_path / "elsewhere")


@pytest.mark.parametrize("words", [*FILES, *FOLDERS], ids=" ".join)
def test_a_command_refuses_before_it_computes(
    words: list[str],
    places: dict[str, Path],
    tmp_path: Path,
    cli: Cli,
    bytes_of: Callable[[Path], dict[str, str]],
) -> None:
    """Nothing else is given that the command would need: this comes first."""
    is_file = words in FILES
    places["the run itself"] = places["the ledger"].parent
    places["what is of another kind"] = tmp_path / "kind"
    (tmp_path / "kind").mkdir() if is_file else (tmp_path / "kind").touch()
    before = bytes_of(tmp_path)
    for what, place in places.items():
        said = cli.refused(*words, place)
        assert "was to be written, and it" in said, (what, said)
    assert bytes_of(tmp_path) == before
    good = tmp_path / "new"
    assert (options.file if is_file else options.folder)(str(good)) == good


def test_a_public_function_refuses_too(
    places: dict[str, Path], tmp_path: Path, bytes_of: Callable[[Path], dict[str, str]]
) -> None:
    """Python has no command line before it, and a place can change while one computes."""
    run = load_run(places["the ledger"].parent)
    save_audit(audit := Auditor(run).attack(shadows=0))
    files: list[Callable[[Path], object]] = [
        lambda at: write_output(at, b""),
        run.ledger.save,
        lambda at: write_report([audit], at),
        lambda at: write_summary(at, ""),
        lambda at: write_baseline(run, at),
        lambda at: write_plan(make_plan({}, {}), at),
        lambda at: write_figure(Figure(), at, "", ""),
    ]
    folders: list[Callable[[Path], object]] = [
        lambda at: export_public(run, at),
        lambda at: save_audit(audit, at),
        lambda at: write_tradeoff(Tradeoff.__new__(Tradeoff), at),
        lambda at: Recorder(at / "recording"),
        lambda at: train(folder=at, clients=2, rounds=1, epochs=1),
    ]
    before = bytes_of(tmp_path)
    for write in files:
        for what, place in places.items():
            with pytest.raises((StorageError, ConfigError)):
                pytest.fail(f"{what}: {write(place)}")
    for write in folders:
        for what in ("a new file of a run", "a folder that leads into a run"):
            with pytest.raises(StorageError, match="lies in the run"):
                pytest.fail(f"{what}: {write(places[what])}")
    assert bytes_of(tmp_path) == before


def test_a_report_does_not_replace_data_and_the_summary_of_a_step_is_no_exception(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coin that was tossed before training lies outside of any run."""
    (tmp_path / "ledger.npz").write_bytes(b"the only copy")
    with pytest.raises(StorageError, match="holds data, and a report would replace it"):
        write_output(tmp_path / "ledger.npz", b"{}")
    monkeypatch.setenv(STEP_SUMMARY, str(whole / "metrics.jsonl"))
    before = (whole / "metrics.jsonl").read_bytes()
    with pytest.raises(StorageError, match="lies in the run"):
        write_summary(whole / "metrics.jsonl", "a gate")
    assert (whole / "metrics.jsonl").read_bytes() == before
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv(STEP_SUMMARY, str(summary))
    write_summary(summary, "after")
    assert summary.read_text() == "before\nafter\n"


def test_honest_places_are_written_and_an_earlier_report_is_replaced(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """Also behind a link to a folder, beside the runs, and in what looks like a run."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "run.json").write_text("{}")  # of another tool
    monkeypatch.chdir(tmp_path)
    assert cli("attack", "whole", "--shadows", "0", "--quiet")[0] == 0
    gates = [f"--{name}={name}" for name in ("junit", "sarif", "markdown", "badge")]
    commands: list[tuple[str, ...]] = [
        ("lint", "whole", "--sarif", "out/lint.sarif"),
        ("gate", "whole", "--max-auroc", "0.99", *gates),
        ("gate", "whole", "--write-baseline", "runs/baseline.json"),
        ("key", "export", "out/public.key.txt"),
        ("split", "--records", "90", "--clients", "2", "--out", "out/ledger.npz"),
        ("export", "whole", "--public", "out/public"),
    ]
    for again in (False, True):
        for words in commands:
            fresh = ["--fresh"] * (again and words[0] == "split")
            code, _, said = cli(*words, *fresh)
            assert code in (0, 3), said  # 3: a gate on too few records
    for name in ("lint.sarif", "public.key.txt", "ledger.npz", "public/card.json"):
        assert (tmp_path / "disk" / name).stat().st_size > 0
    assert (tmp_path / "runs" / "baseline.json").exists()
    assert all((tmp_path / gate.partition("=")[2]).exists() for gate in gates)
