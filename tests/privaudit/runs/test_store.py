"""Runs in an object store: memory:// is one in this process."""

import json
import pickle
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from privaudit import Auditor, load_run, train
from privaudit.auditing.audit_log import read_log
from privaudit.auditing.stored_audit import save_audit
from privaudit.cli.commands.attack import attack_all, report_page
from privaudit.cli.list import findings
from privaudit.cli.progress import choose_view
from privaudit.core.errors import (
    ConfigError,
    LimitError,
    MissingFileError,
    RunInUseError,
    StorageError,
    TranscriptError,
)
from privaudit.execution.jobs import Finished, Job
from privaudit.report.export import verify_card
from privaudit.runs import store as working_copy
from privaudit.runs.lease import take_lease
from privaudit.runs.run import Run, find_place, runs_folder
from privaudit.runs.run_folder import refresh
from privaudit.runs.store import RemoteFolder, RemoteLeases, refuse_secrets
from privaudit.statistics.evidence import Limits
from tests.conftest import Cli, refuse
from tests.places import common_folder

URL = "memory://bucket/runs"
SMALL: dict[str, Any] = {"seed": 0, "rounds": 2, "clients": 2, "epochs": 1, "shots": 8}


class DiedError(Exception):
    """The writer did."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the encoded pictures that all nodes have."""
    features = common_folder(tmp_path_factory) / "cache" / "features"
    features.mkdir(parents=True, exist_ok=True)
    return features


Node = Callable[[str], None]


@pytest.fixture
def on_node(monkeypatch: pytest.MonkeyPatch, shared: Path, tmp_path: Path) -> Node:
    """Go on as another machine, with a cache of its own but for encoded pictures."""

    def go(name: str) -> None:
        if not (tmp_path / name).exists():
            (tmp_path / name).mkdir()
            (tmp_path / name / "features").symlink_to(shared)
        monkeypatch.setenv("PRIVAUDIT_CACHE", str(tmp_path / name))

    return go


@pytest.fixture
def store(on_node: Node) -> Iterator[None]:
    """An empty store, and a first node."""
    MemoryFileSystem.store.clear()
    on_node("a")
    yield
    MemoryFileSystem.store.clear()


@pytest.fixture(scope="module")
def whole(shared: Path) -> Iterator[tuple[Run, dict[str, Any]]]:
    """A run that was trained in a store, and all that is there then."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVAUDIT_CACHE", str(shared.parent))
        MemoryFileSystem.store.clear()
        run = train("promptfl", folder=URL, name="one", **SMALL)
        yield run, dict(MemoryFileSystem.store)


@pytest.fixture
def finished(store: None, whole: tuple[Run, dict[str, Any]]) -> Run:
    """The run in the store, which this node has not read."""
    MemoryFileSystem.store.update(whole[1])
    return load_run(f"{URL}/one")


def stored(run: str) -> dict[str, bytes]:
    """Return what the store has of a run, by name."""
    fs = fsspec.filesystem("memory")
    return {
        path.removeprefix(f"/bucket/runs/{run}/"): fs.cat_file(path)
        for path in fs.find(f"/bucket/runs/{run}")
    }


def local(run: Run) -> dict[str, bytes]:
    """Return what a working copy has of the run's own files."""
    files = (path for path in run.path.rglob("*") if path.is_file())
    names = {path.relative_to(run.path).as_posix(): path for path in files}
    return {name: p.read_bytes() for name, p in names.items() if name[0] != "."}


def die_before(name: str, patch: pytest.MonkeyPatch, rounds: int = 0) -> None:
    """Let uploads of a file fail once so many have been made."""
    whole, seen = MemoryFileSystem.put_file, []

    def put_file(self: Any, here: str, there: str, **more: Any) -> None:
        if there.endswith(name):
            seen.append(there)
            if len(seen) > rounds:
                raise DiedError(name)
        whole(self, here, there, **more)

    patch.setattr(MemoryFileSystem, "put_file", put_file)


def test_a_run_goes_to_its_store_and_is_read_and_attacked_on_another_node(
    whole: tuple[Run, dict[str, Any]],
    finished: Run,
    on_node: Node,
    cli: Cli,
    tmp_path: Path,
) -> None:
    assert finished.place == f"{URL}/one"
    there = stored("one")
    assert {**there, **local(whole[0])} == there
    assert sorted(set(there) - set(local(whole[0]))) == [".lease-0001"]
    assert not list(
        finished.path.rglob("*.safetensors")
    )  # they come when they are read
    save_audit(Auditor(finished).attack("prompt-release", clients=1, shadows=0))
    assert len(finished.transcript) == len(whole[0].transcript)
    assert "audits/prompt-release/scores.npz" in stored("one")
    on_node("c")
    assert cli("lint", f"{URL}/one")[0] in (0, 1)
    assert cli("report", "--runs", URL)[0] == 0  # the latest
    out = tmp_path / "out"
    assert cli("export", f"{URL}/one", "--public", f"file://{out}")[0] == 0
    assert cli("verify", out, f"{URL}/one")[0] == 0
    on_node("d")
    code, said, _ = cli("verify", f"file://{out}", "--runs", URL)
    assert (code, f"{URL}/one: " in said) == (0, True)
    for words in (("verify", f"{URL}/one"), ("export", "--public", f"{URL}/out")):
        refuse(cli, "lies in a store", *words, "--runs", URL)
    on_node("c")
    copied = load_run("one", folder=URL)
    assert "audits/prompt-release/scores.npz" in copied.files
    assert len(read_log(copied)) == 1
    assert local(copied)["audits/prompt-release/report.html"]  # is of this node
    assert "audits/prompt-release/report.html" not in stored("one")


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("lost", ["run.json", "round-0001.safetensors"])
def test_a_writer_that_dies_leaves_its_last_round_and_another_node_goes_on(
    lost: str,
    whole: tuple[Run, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    on_node: Node,
) -> None:
    with monkeypatch.context() as patch:
        die_before(lost, patch, rounds=2 if lost == "run.json" else 0)
        with pytest.raises(StorageError, match=r"DiedError.*--resume"):
            train("promptfl", folder=URL, name="one", **SMALL)
    header = json.loads(stored("one")["run.json"])
    assert header["progress"]["rounds"] == 1
    on_node("b")
    assert load_run(f"{URL}/one").header["progress"]["rounds"] == 1
    with pytest.raises(ConfigError, match="stopped after 1 of 2"):
        train("promptfl", folder=URL, name="one", **SMALL)
    run = train("promptfl", folder=URL, name="one", resume=True, **SMALL)
    for name in ("manifest.jsonl", "round-0000.safetensors", "round-0001.safetensors"):
        mine = (whole[0].path / "transcript" / name).read_bytes()
        assert stored("one")[f"transcript/{name}"] == mine
    kept = [n for n in stored("one") if n.startswith("kept/after-")]
    assert kept == ["kept/after-0002.safetensors"]
    assert {**stored("one"), **local(run)} == stored("one")


def test_who_lost_a_lease_uploads_no_run_json(
    finished: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stored("one")["run.json"]
    leases = RemoteLeases(RemoteFolder(finished.place))
    uploaded = RemoteFolder.upload

    def lose(self: RemoteFolder, name: str, path: Path) -> None:
        number, _ = leases.newest()
        leases.make(number + 1, b"another took it")
        uploaded(self, name, path)

    monkeypatch.setattr(RemoteFolder, "upload", lose)
    with pytest.raises(RunInUseError, match=f"{URL}/one was taken over"):
        finished.add({"audits/mine/audit.json": b"{}"})
    assert stored("one")["run.json"] == before


def test_audits_of_two_nodes_are_both_listed_and_of_a_run_trained_anew_none(
    finished: Run, on_node: Node
) -> None:
    on_node("b")
    load_run(f"{URL}/one").add({"audits/b/audit.json": b"{}"})
    on_node("a")
    finished.add({"audits/a/audit.json": b"{}"})
    on_node("b")
    files = load_run(f"{URL}/one").files
    assert {"audits/a/audit.json", "audits/b/audit.json"} <= set(files)
    train("promptfl", folder=URL, name="one", fresh=True, **{**SMALL, "seed": 1})
    assert not [name for name in stored("one") if name.startswith("audits")]
    on_node("a")
    with pytest.raises(ConfigError, match="was trained again"):
        finished.add({"audits/a/audit.json": b"{}"})


@pytest.mark.usefixtures("store")
def test_one_node_has_the_lease_of_a_store() -> None:
    first = RemoteLeases(RemoteFolder(f"{URL}/one"))
    lease = take_lease(first)
    with pytest.raises(RunInUseError, match=f"training {URL}/one: process"):
        take_lease(RemoteLeases(RemoteFolder(f"{URL}/one")))
    lease.check()
    lease.end()
    second = take_lease(RemoteLeases(RemoteFolder(f"{URL}/one")))
    first.renew(1, b"an owner that wakes writes its own object again")
    second.check()
    with pytest.raises(RunInUseError):
        lease.check()
    second.end()


@pytest.mark.usefixtures("store")
def test_without_conditional_writes_the_last_of_two_writers_is_the_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = MemoryFileSystem.pipe_file
    others = [b"another's, written meanwhile"]

    def pipe_file(self: Any, path: str, value: bytes, mode: str = "overwrite") -> None:
        if mode == "create":
            raise NotImplementedError(mode)
        whole(self, path, value)
        if others:
            whole(self, path, others.pop())

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", pipe_file)
    monkeypatch.setattr("privaudit.runs.store._SETTLES", 0.0)
    leases = RemoteLeases(RemoteFolder(f"{URL}/one"))
    assert not leases.make(1, b"mine")
    assert leases.make(2, b"mine")


def test_two_readers_of_a_working_copy_keep_each_others_files(
    finished: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (f"transcript/round-000{n}.safetensors" for n in (0, 1))
    stalled, went_on, path = threading.Event(), threading.Event(), finished.path
    _, whole = finished.header, RemoteFolder.read

    def read(store: RemoteFolder, name: str, size: int) -> Iterator[bytes]:
        if name == second:  # behind its look at what is here
            stalled.set()
            went_on.wait(0.5)
        return whole(store, name, size)

    monkeypatch.setattr(RemoteFolder, "read", read)
    other = threading.Thread(target=lambda: working_copy.fetch(path, second))
    other.start()
    assert stalled.wait(60)
    working_copy.fetch(path, first)
    went_on.set()
    other.join()
    refresh(path)
    assert (path / first).exists()
    assert (path / second).exists()


def test_what_a_store_holds_is_foreign(
    finished: Run, on_node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fs, run = fsspec.filesystem("memory"), "/bucket/runs/one"
    for name in ("audits/../../../escaped/audit.json", "evil.py", ".hidden"):
        fs.pipe_file(f"{run}/{name}", b"{}")
    on_node("b")
    read = load_run(f"{URL}/one")
    names = {path.name for path in tmp_path.joinpath("b", "runs").rglob("*")}
    assert not names & {"evil.py", ".hidden", "escaped", "audit.json"}
    fs.pipe_file(f"{run}/transcript/round-0000.safetensors", b"another")
    with pytest.raises(TranscriptError, match="Round 0"):
        _ = finished.transcript
    folder = read.path / "transcript"
    (folder / "manifest.jsonl").unlink()
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="is a link"):
        _ = load_run(f"{URL}/one").transcript
    assert not (tmp_path / "manifest.jsonl").exists()
    on_node("c")
    monkeypatch.setenv("PRIVAUDIT_MAX_TEXT", "100")
    with pytest.raises(LimitError, match=r"memory://bucket/runs/one/run\.json has"):
        load_run(f"{URL}/one")
    assert not list(tmp_path.joinpath("c", "runs").rglob("run.json"))


def test_without_a_home_runs_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {})
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert str(list(findings())).count("no home") == 2
    assert working_copy.url_of(Path("runs")) is None
    with pytest.raises(ConfigError, match=r"no home.* Set PRIVAUDIT_CACHE"):
        working_copy.copy_of(URL)


@pytest.mark.usefixtures("store")
def test_a_place_that_is_none_is_one_line(cli: Cli, tmp_path: Path) -> None:
    none, begin = "is no place for runs", ("train", "--seed", 0, "--runs")
    refuse(cli, none, "lint", "nothing://here/run")
    refuse(
        cli, f"'nothing://here' {none}", "gate", "nothing://here", "--max-auroc", "0.99"
    )
    refuse(cli, "memory://here/runs/NAME", "lint", "memory://here")
    refuse(cli, "Name one", "lint", "run", "--runs", "simplecache::memory://here")
    refuse(cli, "not installed: Install adlfs to", *begin, "abfs://container/runs")
    refuse(cli, "https:// can only be read", *begin, "https://host/runs")
    assert not list(tmp_path.joinpath("a", "runs").glob("*/*"))  # nor working copies
    assert working_copy.url_of(tmp_path / "a" / "runs") is None


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("text", ["foo:bar", "s3:/bucket/runs", "S3://bucket/runs"])
def test_what_begins_as_a_url_is_no_folder(
    text: str, cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (("train", "--runs", text), ("lint", f"{text}/one")):
        refuse(cli, "begins as a URL does, and is none", *words)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert runs_folder("C:/runs") == Path("C:/runs")
    assert runs_folder(f"./{text}") == Path(text)


@pytest.mark.usefixtures("store")
def test_a_run_that_is_not_there_is_named_by_its_url() -> None:
    said = f"{URL}/none holds no run: There is no run.json in {URL}/none. "
    with pytest.raises(MissingFileError, match=said):
        _ = load_run(f"{URL}/none").header
    with pytest.raises(MissingFileError, match=f"There is no run in {URL}. "):
        load_run(folder=URL)


@pytest.mark.usefixtures("store")
def test_a_command_trains_nothing_into_its_own_memory(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (("train", "--runs", URL), ("tradeoff", "--runs", URL)):
        refuse(cli, "would be lost when it ends", *words)
    monkeypatch.setenv("PRIVAUDIT_RUNS", URL)
    assert "would be lost when it ends" in cli("train", "--seed", 0)[2]
    assert not MemoryFileSystem.store


def test_the_status_of_a_store_is_what_lies_there(
    finished: Run, cli: Cli, on_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_node("b")  # which has no copy of it
    assert cli("status", URL) == (0, "1 runs: 1 done\n", "")
    monkeypatch.setenv("PRIVAUDIT_RUNS", URL)
    store = RemoteFolder(f"{URL}/one")
    header = json.loads(store.start_of("run.json", 2**20))
    header["progress"]["rounds"] = 1
    store.write("run.json", json.dumps(header).encode())
    assert "  one: stopped, round 1 of 2" in cli("status")[1]
    lease = take_lease(RemoteLeases(store))
    assert "  one: running, round 1 of 2, process" in cli("status")[1]
    lease.end()
    store.write("run.json", b"{")
    assert "  one: damaged: one/run.json is not whole JSON" in cli("status")[1]
    empty = "memory://bucket/none"
    assert cli("status", empty) == (0, f"There is no run in {empty}.\n", "")


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:hidden@bucket/runs",
        "s3://key:hid/den@bucket/runs",
        "s3://key:hidden@bucket",
        "simplecache::sftp://me:hidden@host:22/runs",
    ],
)
def test_a_password_in_a_url_is_refused_and_not_repeated(
    url: str, store: None, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (
        ("train", "--runs", url),
        ("lint", url),
        ("lint", "a", "--runs", url),
    ):
        code, out, err = cli(*words)
        assert (code, out) == (2, "")
        assert "has a password in it" in " ".join(err.replace("│", "").split())
        assert "hid" not in err
    monkeypatch.setenv("PRIVAUDIT_RUNS", url)
    with pytest.raises(ConfigError, match="AWS_SECRET_ACCESS_KEY or a file"):
        runs_folder()
    assert not list(tmp_path.rglob("runs/*/.url"))


@pytest.mark.parametrize(
    "url", ["abfs://container@account/a", "sftp://me@host:22/a", "sftp://h:22/a@b"]
)
def test_a_url_without_a_password_is_not_refused(url: str) -> None:
    refuse_secrets(url)  # their packages need not be installed


def test_a_file_url_is_a_path(tmp_path: Path) -> None:
    assert runs_folder(f"file://{tmp_path}") == tmp_path
    (tmp_path / "one").mkdir()
    assert find_place(f"file://{tmp_path}/one") == tmp_path / "one"
    with pytest.raises(MissingFileError, match="privaudit export RUN --public DIR"):
        verify_card(f"file://{tmp_path}/one")


@dataclass(frozen=True)
class AnotherMachine:
    """Does jobs on a node that has nothing of this one's cache, as a cluster would."""

    on_node: Node
    cache: Path

    def run(
        self, jobs: Sequence[Job[Any]], *, watcher: object = None, begun: object = None
    ) -> Generator[Finished[Any]]:
        for job in jobs:
            content = pickle.dumps(job)
            assert str(self.cache).encode() not in content
            aside = self.cache.rename(self.cache.with_name("unreachable"))
            self.on_node("b")
            there = pickle.loads(content)
            result = pickle.dumps(there.perform(*there.arguments, watcher=None))
            aside.rename(self.cache)
            self.on_node("a")
            yield Finished(job, pickle.loads(result))


@pytest.mark.parametrize("shadows", [0, 5])
def test_a_run_of_a_store_is_attacked_on_another_machine(
    finished: Run, on_node: Node, tmp_path: Path, shadows: int
) -> None:
    """It is sent by its URL: the driver's cache is not there."""
    ask = {
        "attacks": [],
        "clients": "all",
        "shadows": shadows,
        "budget": None,
        "seed": 0,
    }
    machine = AnotherMachine(on_node, tmp_path / "a")
    (audit,) = attack_all(
        [finished],
        {"server-reconstruct": ask},
        machine,
        choose_view(quiet=True),
        False,
        Limits(),
    )
    assert audit.run.path == finished.path
    page = report_page(finished.path, "server-reconstruct")
    assert page.is_file()
    again = Auditor(finished).attack(shadows=shadows, is_logged=False)
    assert audit.headline.auroc.value == again.headline.auroc.value
    assert "audits/server-reconstruct/audit.json" in stored("one")
