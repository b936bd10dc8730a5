"""The DP examples of Flower, NVFlare and Opacus, recorded and linted: docs/lint-in-the-wild.md.

    python -m privaudit_tools.lint_in_the_wild flower.git NVFlare.git opacus.git --out PAGE

The three are clones, bare or not, of which the newest commit is read. Sources of examples
are unpacked elsewhere and run there as they are, but for the recorder, `name_partition`
and their data: these are drawn here, since what a guarantee rests on is no data. Names,
versions and numbers enter the page, and nothing else of them.
"""

import argparse
import contextlib
import importlib
import io
import itertools
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from privaudit.checks.lint import lint
from privaudit.core.formatting import epsilon
from privaudit.core.storage import write_bytes
from privaudit.datasets.split import PUBLIC, TEST
from privaudit.models.hugging_face import declare_missing_operators
from privaudit.recording.opacus import engines_in_use
from privaudit.recording.preflight import look_at
from privaudit.recording.recorder import Recorder
from privaudit.runs.ledger import Coin, Ledger
from privaudit.runs.run import Run

RECORDS = 120  # of each client
CLIENTS = 4


@dataclass(frozen=True)
class Example:
    """One official example.

    Attributes:
        project: "flower", "NVFlare" or "opacus".
        path: In its repository: a folder, or a file.
        run: Trains it and records it in a folder; None where it does not run here.
        why: It does not run here.
    """

    project: str
    path: str
    run: Callable[[Path, Path], Run] | None = None
    why: str = ""


@dataclass(frozen=True)
class Found:
    """A row of the page."""

    example: Example
    claimed: str
    declared: str
    findings: Sequence[str]
    seconds: float | None


def ledger(clients: int) -> Ledger:
    """Return coins of eight candidates a client."""
    owner = np.array([*np.repeat(np.arange(clients), 8), *[PUBLIC] * 10, TEST])
    coins = (np.arange(len(owner)) % 2 == 0) & (owner >= 0)
    return Ledger(owner, coins, coin=Coin("seed", 0))


def run_flower(source: Path, folder: Path) -> Run:
    """Run an app in this process: its ServerApp, and its ClientApp behind a mod."""
    from flwr.app import Context, RecordDict
    from flwr.clientapp import ClientApp

    from privaudit.recording.flower import RecordingGrid, name_partition

    app = tomllib.loads((source / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    made = ClientApp.__init__

    def named(self: Any, *given: Any, mods: Sequence[Any] = (), **more: Any) -> None:
        made(self, *given, mods=[name_partition, *mods], **more)

    ClientApp.__init__ = named
    try:
        client, server = (
            importlib.import_module(app["components"][part].partition(":")[0]).app
            for part in ("clientapp", "serverapp")
        )
    finally:
        ClientApp.__init__ = made
    drawn = app["config"].get("num-sampled-clients")  # a fifth of its nodes
    clients = CLIENTS if drawn is None else 5 * int(drawn)
    config = app["config"]
    nodes = nodes_here(client, clients, config)
    with RecordingGrid(nodes, folder, ledger=ledger(clients)) as grid:
        server(grid, Context(0, 1, {}, RecordDict(), config))
    recorded = grid._recorder.run
    assert recorded is not None
    return recorded


def nodes_here(client: Any, count: int, config: Mapping[str, Any]) -> Any:
    """Return a Grid of nodes in this process."""
    from flwr.app import Context, RecordDict
    from flwr.serverapp import Grid
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 0, 1, 0
    places = {n + 2: {"partition-id": n, "num-partitions": count} for n in range(count)}
    contexts = {
        n: Context(0, n, place, RecordDict(), dict(config))
        for n, place in places.items()
    }

    class InProcess(Grid):  # type: ignore[misc] # of flwr, where that is there
        waiting: dict[str, Any] = {}  # noqa: RUF012 # one grid a class
        numbers = itertools.count()

        def set_run(self, run: object) -> None:
            raise NotImplementedError

        @property
        def run(self) -> Any:
            return SimpleNamespace(run_id=0)

        def create_message(self, *_: object, **__: object) -> Any:
            raise NotImplementedError

        def get_node_ids(self) -> list[int]:
            return list(contexts)

        def push_messages(self, messages: Iterable[Any]) -> list[str]:
            names = []
            for message in messages:
                names.append(str(next(self.numbers)))
                message.metadata.__dict__["_message_id"] = names[-1]
                self.waiting[names[-1]] = deepcopy(message)
            return names

        def pull_messages(self, message_ids: Iterable[str]) -> list[Any]:
            asked = [self.waiting.pop(name) for name in message_ids]
            return [client(m, contexts[m.metadata.dst_node_id]) for m in asked]

        def send_and_receive(
            self, messages: Iterable[Any], *, timeout: float | None = None
        ) -> list[Any]:
            return self.pull_messages(self.push_messages(messages))

    return InProcess()


def run_nvflare_client(source: Path, folder: Path) -> Run:
    """Run a client script of NVFlare's client API, client by client and in one round.

    ``flare.receive`` gives it the model, and ``flare.send`` takes what it trained.
    """
    rounds, clients = 3, 2
    model = importlib.import_module("model").TabularMLP(29, [64, 32], 2)
    start = {n: t.clone() for n, t in model.state_dict().items()}
    sent = dict[tuple[int, int], tuple[Mapping[str, Any], Any]]()
    watch = engines_in_use()
    assert watch is not None
    for number in range(clients):
        state = SimpleNamespace(round=0)

        def send(
            answer: Any, number: int = number, state: SimpleNamespace = state
        ) -> None:
            sent[state.round, number] = (answer.params, watch.take())
            state.round += 1

        flare = ModuleType("nvflare.client")
        vars(flare).update(
            init=lambda: None,
            system_info=lambda number=number: {"site_name": f"site-{number + 1}"},
            is_running=lambda state=state: state.round < rounds,
            receive=lambda state=state: SimpleNamespace(
                params=start, current_round=state.round, total_rounds=rounds
            ),
            send=send,
            FLModel=lambda **fields: SimpleNamespace(**fields),
        )
        tracking = ModuleType("nvflare.client.tracking")
        vars(tracking)["SummaryWriter"] = lambda: SimpleNamespace(
            add_scalar=lambda **_: None
        )
        kinds = ModuleType("nvflare.app_common.abstract.fl_model")
        vars(kinds)["ParamsType"] = SimpleNamespace(DIFF="DIFF", FULL="FULL")
        parent = ModuleType("nvflare")
        vars(parent)["client"] = flare
        sys.modules.update({
            "nvflare": parent, "nvflare.client": flare,
            "nvflare.client.tracking": tracking,
            "nvflare.app_common": ModuleType("nvflare.app_common"),
            "nvflare.app_common.abstract": ModuleType("nvflare.app_common.abstract"),
            "nvflare.app_common.abstract.fl_model": kinds,
        })  # fmt: skip
        sys.modules.pop("client", None)
        with _arguments("client.py"):
            importlib.import_module("client").main()
    with Recorder(folder, ledger=ledger(clients), uploads="differences") as recorder:
        for (index, number), (tensors, note) in sorted(sent.items()):
            client = f"client-{number}"
            recorder.broadcast(index, client, start)
            recorder.update(index, client, tensors)
            recorder.engine(index, client, note)
    assert recorder.run is not None
    return recorder.run


def run_script(*words: str) -> Callable[[Path, Path], Run]:
    """Return how a script of Opacus is run: a training of one party, in one round."""

    def run(source: Path, folder: Path) -> Run:
        with _arguments(source.name, *words):
            importlib.import_module(source.stem).main()
        watch = engines_in_use()
        note = None if watch is None else watch.take()
        assert note is not None
        with Recorder(folder, ledger=ledger(1)) as recorder:
            recorder.broadcast(0, "client-0", {"w": torch.zeros(1)})
            recorder.update(0, "client-0", {"w": torch.ones(1)})
            recorder.engine(0, "client-0", note)
        assert recorder.run is not None
        return recorder.run

    return run


@contextlib.contextmanager
def _arguments(*words: str) -> Iterator[None]:
    before = sys.argv
    sys.argv = list(words)
    try:
        yield
    finally:
        sys.argv = before


class Pictures(torch.utils.data.Dataset[Any]):
    """Noise with drawn classes, in the form of torchvision's data sets."""

    def __init__(self, *_: object, **__: object) -> None:
        self.shape = (1, 28, 28)

    def __len__(self) -> int:
        return 4 * RECORDS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return torch.full(self.shape, index / len(self)), index % 10


class ColourPictures(Pictures):
    """The same in three colours, 32 pixels wide."""

    def __init__(self, *_: object, **__: object) -> None:
        self.shape = (3, 32, 32)


def stand_in() -> None:
    """Put drawn data where examples would download theirs."""
    declare_missing_operators()
    import flwr_datasets
    import sklearn.datasets
    import torchvision  # type: ignore[import-untyped]
    from datasets import Dataset
    from PIL import Image

    rng = np.random.default_rng(0)

    class Federated:
        def __init__(self, dataset: str, **_: object) -> None:
            is_colour = "cifar" in dataset
            self.column = "img" if is_colour else "image"
            self.shape = (32, 32, 3) if is_colour else (28, 28)

        def load_partition(self, *_: object) -> Any:
            drawn = rng.integers(0, 256, (RECORDS, *self.shape), dtype=np.uint8)
            labels = rng.integers(0, 10, RECORDS).tolist()
            pictures = [Image.fromarray(one) for one in drawn]
            return Dataset.from_dict({self.column: pictures, "label": labels})

    def openml(*_: object, **__: object) -> Any:
        table = rng.standard_normal((8 * RECORDS, 29))
        classes = rng.integers(0, 2, len(table))
        return SimpleNamespace(
            data=SimpleNamespace(values=table), target=SimpleNamespace(values=classes)
        )

    flwr_datasets.FederatedDataset = Federated
    sklearn.datasets.fetch_openml = openml
    torchvision.datasets.MNIST = Pictures
    torchvision.datasets.CIFAR10 = ColourPictures


_HUB = "its data are on a hub, and its model is large"
EXAMPLES = (
    Example("flower", "examples/opacus", run_flower),
    Example("flower", "examples/fl-dp-sa", run_flower),
    Example("NVFlare", "examples/hello-world/hello-dp", run_nvflare_client),
    Example(
        "NVFlare",
        "examples/advanced/job_api/pt/fedavg_script_runner_dp_filter_cifar10.py",
        why="its data are downloaded; its filter's mechanism is recorded",
    ),
    Example(
        "NVFlare",
        "examples/tutorials/self-paced-training/part-3_security_and_privacy/"
        "chapter-5_Privacy_In_Federated_Learning/05.2_differential_privacy",
        why="its data are downloaded; its filter's mechanism is recorded",
    ),
    Example("NVFlare", "research/fsi-fraud-detection", why="its data are made by a job"),
    Example("NVFlare", "research/brats18", why="its data are on request"),
    Example("opacus", "examples/mnist.py", run_script("--device", "cpu", "-n", "2")),
    Example(
        "opacus",
        "examples/cifar10.py",
        why="its options are for a GPU",
    ),
    Example("opacus", "examples/char-lstm-classification.py", why=_HUB),
    Example("opacus", "examples/imdb.py", why=_HUB),
    Example("opacus", "examples/dcgan.py", why="its options are for a GPU"),
    Example("opacus", "examples/mnist_lightning.py", why="it takes pytorch-lightning"),
)  # fmt: skip


def unpacked(clone: Path, path: str, folder: Path) -> Path:
    """Return an example, unpacked from a clone's newest commit."""
    command = ["git", "-C", str(clone), "archive", "HEAD", path]
    content = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(folder, filter="data")
    return folder / path


def version_of(clone: Path) -> str:
    """Return the newest commit of a clone, and its day."""
    command = ["git", "-C", str(clone), "log", "-1", "--format=%h of %cs"]
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def look(example: Example, source: Path, folder: Path) -> Found:
    """Run an example where it runs here, and lint it; read its source in any case."""
    top = source if source.is_dir() else source.parent
    read = [
        f"`{sight.where}`: {sight.meaning}"
        for sight in look_at(top)
        if sight.is_fault and (source.is_dir() or sight.where.startswith(source.name))
    ]
    if example.run is None:
        return Found(example, "", "", read, None)
    sys.path.insert(0, str(top))
    began = time.perf_counter()
    try:
        run = example.run(source, folder)
    finally:
        sys.path.remove(str(top))
    seconds = time.perf_counter() - began
    claimed, certified = run.privacy["claimed"], run.privacy["certified"]
    listed = {view: proof.get("declared") for view, proof in certified.items()}
    found = [f"{f.rule}: {f.sentence}" for f in lint(run) if f.severity == "error"]
    return Found(
        example,
        "none" if claimed["epsilon"] is None else _at(claimed["epsilon"], claimed),
        "; ".join(f"{view} {epsilon(value)}" for view, value in listed.items()),
        [*found, *read],
        seconds,
    )


def _at(value: float, claimed: Mapping[str, Any]) -> str:
    return f"{value:.3g} at δ = {claimed['delta']:g}"


def page(found: Sequence[Found], versions: Mapping[str, str]) -> str:
    """Return the page, in Markdown."""
    said = ", ".join(f"{name} at {version}" for name, version in versions.items())
    lines = [
        "# Lint in the wild",
        "",
        "The DP examples of three projects, run as they are but for the recorder, "
        "`name_partition` and drawn data. Claimed is what an example prints of its last "
        "round; declared is what its mechanisms compose to over all; found is by "
        "[`lint`](lint.md), or in the source.",
        "",
        f"{said}. Made by `python -m privaudit_tools.lint_in_the_wild`.",
        "",
        "| example | claimed | declared | found | seconds |",
        "|---|---|---|---|---|",
    ]
    for one in found:
        reason = f"not run: {one.example.why}"
        row = (
            f"{one.example.project}: {one.example.path}",
            one.claimed or reason,
            one.declared or "",
            "<br>".join(one.findings) or "nothing",
            "" if one.seconds is None else f"{one.seconds:.0f}",
        )
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    for project in ("flower", "nvflare", "opacus"):
        parser.add_argument(project, type=Path, help=f"A clone of {project}.")
    parser.add_argument("--out", type=Path, default=Path("lint-in-the-wild.md"))
    asked = parser.parse_args()
    clones = {"flower": asked.flower, "NVFlare": asked.nvflare, "opacus": asked.opacus}
    import opacus  # noqa: F401 # watched from here on

    engines_in_use()
    stand_in()
    warnings.simplefilter("ignore")
    found = []
    with tempfile.TemporaryDirectory() as place:
        for number, example in enumerate(EXAMPLES):
            folder = Path(place) / str(number)
            source = unpacked(clones[example.project], example.path, folder)
            found.append(look(example, source, folder / "run"))
            print(example.path, found[-1].claimed, found[-1].declared, flush=True)
    versions = {name: version_of(clone) for name, clone in clones.items()}
    write_bytes(asked.out, page(found, versions).encode())


if __name__ == "__main__":
    main()
