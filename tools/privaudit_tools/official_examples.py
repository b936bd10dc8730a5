"""Official examples of Flower, recorded and attacked: docs/official-examples.md.

    python -m privaudit_tools.official_examples flower.git --out PAGE

The newest commit of a clone is read. Each app is edited as a user edits it (two imports,
`name_partition` among the mods, `RecordingGrid`), the lines are counted in the difference,
and it runs in this process. Its data are drawn, records without a pattern, and of each
client's a coin chooses those that it trains on; a language model is random. Names,
versions and numbers enter the page, and nothing else of the apps.
"""

import argparse
import ast
import contextlib
import difflib
import importlib
import logging
import os
import random
import sys
import tempfile
import time
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch

from privaudit import Auditor, load_run, split_membership
from privaudit.core.errors import PrivauditError
from privaudit.core.storage import write_bytes
from privaudit.models.hugging_face import declare_missing_operators
from privaudit.recording.owner import use_owner
from privaudit.runs.ledger import Ledger
from privaudit_tools.lint_in_the_wild import nodes_here, unpacked, version_of


@dataclass(frozen=True)
class Drawn:
    """Records of one form, without a pattern.

    Attributes:
        columns: By name; of equal lengths.
        inputs: As the app's model takes them: pictures of -1 to 1.
        labels: Of the records.
    """

    columns: Mapping[str, Any]
    inputs: torch.Tensor
    labels: np.ndarray

    @classmethod
    def pictures(cls, count: int, column: str, *shape: int) -> "Drawn":
        """Draw pictures of ten classes."""
        from PIL import Image

        rng = np.random.default_rng(0)
        pixels = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
        labels = rng.integers(0, 10, count)
        shown = [Image.fromarray(one) for one in pixels]
        inputs = torch.from_numpy(pixels).float() / 127.5 - 1
        inputs = (
            inputs.permute(0, 3, 1, 2).contiguous()
            if len(shape) == 3
            else inputs[:, None]
        )
        return cls({column: shown, "label": labels.tolist()}, inputs, labels)

    @classmethod
    def table(
        cls, count: int, names: Sequence[str], label: str, classes: int, at: float = 0
    ) -> "Drawn":
        """Draw rows of normal numbers around one, in classes of numbers from 0."""
        rng = np.random.default_rng(0)
        values = at + rng.standard_normal((count, len(names)))
        labels = rng.integers(0, classes, count)
        columns = dict(zip(names, values.T.tolist(), strict=True))
        columns[label] = labels.tolist()
        return cls(columns, torch.from_numpy(values), labels)

    @classmethod
    def texts(cls, count: int) -> "Drawn":
        """Draw texts of twelve words of one letter, in two classes."""
        rng = np.random.default_rng(0)
        words = rng.integers(0, len(LETTERS), (count, 12))
        labels = rng.integers(0, 2, count)
        texts = [" ".join(LETTERS[n] for n in row) for row in words]
        inputs = torch.from_numpy(words) + len(SPECIAL)
        ends = torch.tensor([SPECIAL.index("[CLS]"), SPECIAL.index("[SEP]")])
        ends = ends.expand(count, 2)
        whole = torch.cat([ends[:, :1], inputs, ends[:, 1:]], dim=1)
        return cls({"text": texts, "label": labels.tolist()}, whole, labels)

    def at(self, positions: np.ndarray) -> Any:
        """Return some records as a Dataset."""
        from datasets import Dataset

        chosen = positions.tolist()
        return Dataset.from_dict(
            {name: [values[n] for n in chosen] for name, values in self.columns.items()}
        )


LETTERS = [a + b for a in "abcdefghijklmnop" for b in "aeiou"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
HUB = "hub-model"  # a folder, in which a random model lies as a hub has it


def random_bert(folder: Path) -> None:
    """Write a small random BERT and its tokeniser."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    folder.mkdir()
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join([*SPECIAL, *LETTERS]))
    tokens = {word: number for number, word in enumerate([*SPECIAL, *LETTERS])}
    BertTokenizer(vocab=tokens).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(tokens), hidden_size=64, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=128,
    )  # fmt: skip
    torch.manual_seed(0)
    BertForSequenceClassification(config).save_pretrained(folder)


def bert(tensors: Mapping[str, Any], inputs: torch.Tensor) -> torch.Tensor:
    """Return logits of the model that :func:`random_bert` began."""
    from transformers import AutoModelForSequenceClassification

    net = AutoModelForSequenceClassification.from_pretrained(HUB, num_labels=2).eval()
    net.load_state_dict({n: torch.as_tensor(t) for n, t in tensors.items()})
    with torch.no_grad():
        logits: torch.Tensor = net(input_ids=inputs).logits
    return logits


def classifier(
    module: str, name: str, mean: float = 0.5, std: float = 0.5
) -> Callable[[Mapping[str, Any], Any], Any]:
    """Return how an app's network is asked, by its state's names or their order.

    Inputs have the mean and spread by which the app normalises pictures of 0 to 1.
    """

    def query(tensors: Mapping[str, Any], inputs: torch.Tensor) -> torch.Tensor:
        net = getattr(importlib.import_module(module), name)().eval()
        own = net.state_dict()
        if not own.keys() <= tensors.keys():
            numbered = sorted(
                tensors, key=lambda one: int("".join(filter(str.isdigit, one)))
            )
            tensors = dict(zip(own, (tensors[n] for n in numbered), strict=True))
        net.load_state_dict({n: torch.as_tensor(tensors[n]) for n in own})
        with torch.no_grad():
            answer: torch.Tensor = net(((inputs.float() + 1) / 2 - mean) / std)
        if answer.shape[-1] > 1:
            return answer
        return torch.cat([1 - answer, answer], dim=-1).clamp(min=1e-7).log()

    return query


def linear(tensors: Mapping[str, Any], inputs: torch.Tensor) -> torch.Tensor:
    """Return logits of a linear model: its coefficients, and its intercept."""
    weight, bias = (torch.as_tensor(one) for _, one in sorted(tensors.items()))
    return inputs.to(weight.dtype) @ weight.T + bias


def boosted(tensors: Mapping[str, Any], inputs: torch.Tensor) -> torch.Tensor:
    """Return log-probabilities of trees of two classes, sent as bytes in one array."""
    xgboost = importlib.import_module("xgboost")
    (sent,) = tensors.values()
    booster = xgboost.Booster()
    booster.load_model(
        bytearray(torch.as_tensor(sent).to(torch.uint8).numpy().tobytes())
    )
    rows = xgboost.DMatrix(inputs.numpy().astype(np.float32))
    likely = torch.from_numpy(booster.predict(rows))
    return torch.stack([1 - likely, likely], dim=1).clamp(min=1e-7).log()


IRIS = ("petal_length", "petal_width", "sepal_length", "sepal_width")


@dataclass(frozen=True)
class App:
    """One official app, and what an audit of it asks.

    Attributes:
        path: In Flower's repository.
        draw: So many records of the form that it reads.
        query: From tensors and inputs to logits; None where no model is to be asked.
        settings: Of its run, in place of its own.
        scenario: The strongest that its messages allow.
        clients: How many it needs.
        each: Records of a client, in and out.
        empty: Modules, and names in some, that it imports and that do nothing here.
        is_shared: Whether every client has all records, in other columns.
    """

    path: str
    draw: Callable[[int], Drawn]
    query: Callable[[Mapping[str, Any], Any], Any] | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    scenario: str = "server-reconstruct"
    clients: int = 5
    each: int = 120
    empty: Sequence[str] = ()
    is_shared: bool = False


def _coloured(count: int) -> Drawn:
    return Drawn.pictures(count, "img", 32, 32, 3)


def _vectors(count: int) -> Drawn:
    drawn = Drawn.table(count, [f"x{n}" for n in range(8)], "label", 2)
    return replace(drawn, columns={**drawn.columns, "inputs": drawn.inputs.tolist()})


_LONG = {"local-epochs": 30, "learning-rate": 0.02}
_TITANIC = ("Age", "Fare", "Siblings/Spouses Aboard", "Parents/Children Aboard")
_VERTICAL = {"num-server-rounds": 2, "feature-splits": "2,3,2"}
_LOGS = ("wandb", "torch.utils.tensorboard", "torch.utils.tensorboard.writer")
APPS = (
    App(
        "examples/quickstart-sklearn",
        lambda count: Drawn.table(count, IRIS, "species", 3),
        linear,
    ),
    App(
        "examples/quickstart-pytorch", _coloured,
        classifier("pytorchexample.task", "Net"), _LONG,
    ),
    App(
        "examples/custom-mods", _coloured, classifier("custom_mods.task", "Net"), _LONG,
        clients=3, empty=(*_LOGS, "flwr.client.typing"),
    ),
    App(
        "examples/fl-tabular",
        lambda count: Drawn.table(count, [f"x{n}" for n in range(14)], "income", 2),
        classifier("fltabular.task", "IncomeClassifier", 0.5, 0.5),
        {"num-server-rounds": 20}, clients=3,
    ),
    App(
        "examples/opacus", _coloured, classifier("opacus_fl.task", "Net"),
        clients=3, each=80,
    ),
    App(
        "examples/quickstart-pandas",
        lambda count: Drawn.table(
            count, ["SepalLengthCm", "SepalWidthCm"], "label", 2, 6
        ), None,
    ),
    App(
        "examples/vertical-fl",
        lambda count: Drawn.table(count, _TITANIC, "Survived", 2), None, _VERTICAL,
        clients=3, is_shared=True,
    ),
    App(
        "examples/quickstart-xgboost",
        _vectors, boosted,
        {"fraction-train": 1.0, "params.nthread": 1},
    ),
    App(
        "examples/flower-secure-aggregation", _coloured,
        classifier("secaggexample.task", "Net"), {"is-demo": False, **_LONG},
        "server-aggregate", each=60,
    ),
    App(
        "examples/quickstart-huggingface", Drawn.texts, bert,
        {"model-name": HUB, "fraction-train": 1.0, "num-server-rounds": 10},
        clients=3, empty=("evaluate",),
    ),
    App(
        "examples/advanced-pytorch",
        lambda count: Drawn.pictures(count, "image", 28, 28),
        classifier("pytorch_example.task", "Net", 0.1307, 0.3081),
        {"num-server-rounds": 3, "fraction-train": 1.0, "local-epochs": 20},
        clients=3, each=80, empty=("wandb", "flwr.common.typing:UserConfig"),
    ),
    App(
        "examples/fl-dp-sa",
        lambda count: Drawn.pictures(count, "image", 28, 28),
        classifier("fl_dp_sa.task", "Net"),
        scenario="server-aggregate", clients=100, each=12,
    ),
)  # fmt: skip
NOT = {
    "examples/federated-vae": "its model has no classes: who asks it needs a `query` of "
    "reconstruction errors",
    "examples/quickstart-jax": "jax is not in this environment, nor are TensorFlow, "
    "MLX, MONAI, fastai and CatBoost, which the quickstarts of their names take",
    "examples/flowertune-llm": "its model is on a hub, and large",
}
"""Apps that are not run, and why."""


def edited(client: str, server: str, folder: Path, ledger: Path) -> tuple[str, str]:
    """Return the sources of a ClientApp and a ServerApp with the recorder in them."""
    edits = ast.parse(client)
    (made,) = (
        node
        for node in ast.walk(edits)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ClientApp"
    )
    mods = next((one.value for one in made.keywords if one.arg == "mods"), None)
    if mods is None:
        assert made.end_lineno is not None
        assert made.end_col_offset is not None
        more = ", " if made.args or made.keywords else ""
        place = made.end_lineno, made.end_col_offset - 1
        client = _inserted(client, *place, f"{more}mods=[name_partition]")
    else:
        place = mods.lineno, mods.col_offset + 1
        client = _inserted(client, *place, "name_partition, ")
    (main,) = (
        node
        for node in ast.parse(server).body
        if isinstance(node, ast.FunctionDef)
        and any("main" in ast.unparse(one) for one in node.decorator_list)
    )
    grid, begin = main.args.args[0].arg, main.body[0]
    if ast.get_docstring(main) is not None:
        begin = main.body[1]
    lines = server.splitlines(keepends=True)
    lines.insert(main.end_lineno or len(lines), f"\n    {grid}.close()\n")
    made_here = f'RecordingGrid({grid}, "{folder}", ledger="{ledger}")'
    lines.insert(begin.lineno - 1, f"    {grid} = {made_here}\n")
    return (
        _imported(client, "name_partition"),
        _imported("".join(lines), "RecordingGrid"),
    )


def _inserted(source: str, line: int, column: int, text: str) -> str:
    lines = source.splitlines(keepends=True)
    old = lines[line - 1]
    lines[line - 1] = old[:column] + text + old[column:]
    return "".join(lines)


def _imported(source: str, name: str) -> str:
    """Return a module that imports a name of the recorder behind its first import."""
    first = next(
        one for one in ast.parse(source).body
        if isinstance(one, ast.Import | ast.ImportFrom)
    )  # fmt: skip
    lines = source.splitlines(keepends=True)
    added = f"from privaudit.recording.flower import {name}\n"
    lines.insert(first.end_lineno or 1, added)
    return "".join(lines)


def changed_lines(before: str, after: str) -> int:
    """Return how many lines of code are new, or other than they were."""
    found = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0)
    added = [line[1:] for line in found if line[:1] == "+" and line[:3] != "+++"]
    return sum(bool(line.strip()) for line in added)


def stand_in(app: App, drawn: Drawn, coins: Ledger) -> None:
    """Put drawn records where an app would download its own: members, and tests."""
    import datasets
    import flwr_datasets

    tests = drawn.at(coins.tests)

    class Partition(datasets.Dataset):  # type: ignore[misc] # where it is not there
        """A client's members; what it splits off for tests are records of nobody's."""

        def train_test_split(self, *_: Any, **__: Any) -> Any:
            whole = datasets.Dataset(self.data, self.info)
            return datasets.DatasetDict({"train": whole, "test": tests})

    def load_partition(_: Any, partition: int, *__: Any, **___: Any) -> Any:
        if app.is_shared:
            return tests
        members = drawn.at(coins.members_of(int(partition)))
        return Partition(members.data, members.info)

    def load_dataset(*_: Any, split: str = "", **__: Any) -> Any:
        return tests if split else datasets.DatasetDict({"test": tests})

    made = {"__init__": lambda *_, **__: None, "load_partition": load_partition}
    flwr_datasets.FederatedDataset = type("Federated", (), made)
    datasets.load_dataset = load_dataset


@contextlib.contextmanager
def _empty(names: Sequence[str]) -> Iterator[None]:
    """Let modules, or names as MODULE:NAME, be there meanwhile, and do nothing."""
    made = dict[str, Any]()
    for name in names:
        module, _, inside = name.partition(":")
        if inside:
            setattr(importlib.import_module(module), inside, Any)
        else:
            made[name] = MagicMock(__spec__=ModuleSpec(name, None))
    sys.modules.update(made)
    try:
        yield
    finally:
        for name in made:
            del sys.modules[name]


@contextlib.contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
    """Run an app in a folder of its own: it may write its model there."""
    before = Path.cwd()
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        os.chdir(before)
        sys.path.remove(str(folder))


class Warned(logging.Handler):
    """What the recorder warns of, each once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.said[record.getMessage()] = None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Hear what is said meanwhile."""
        places = [logging.getLogger(n) for n in ("privaudit", "flwr.privaudit")]
        for one in places:
            one.addHandler(self)
        try:
            yield
        finally:
            for one in places:
                one.removeHandler(self)


def record(app: App, source: Path, folder: Path, coins: Ledger) -> int:
    """Run an app with the recorder in it, and return how many lines that changed."""
    from flwr.app import Context, RecordDict

    made = tomllib.loads((source / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    parts = made["components"]["clientapp"], made["components"]["serverapp"]
    names = [part.partition(":")[0] for part in parts]
    files = [source / f"{name.replace('.', '/')}.py" for name in names]
    ledger = folder.parent / "ledger.npz"
    coins.save(ledger)
    before = files[0].read_text(), files[1].read_text()
    after = edited(*before, folder, ledger)
    for file, text in zip(files, after, strict=True):
        file.write_text(text)
    client, server = (importlib.import_module(name).app for name in names)
    config = {**made["config"], **app.settings}
    nodes = nodes_here(client, len(coins.clients), config)
    server(nodes, Context(0, 1, {}, RecordDict(), config))
    return sum(map(changed_lines, before, after))


@dataclass(frozen=True)
class Row:
    """What came of an app.

    Attributes:
        lines: Of its code that were changed.
        seconds: Of one processor, for training and for the audit.
        found: The attack's AUROC and verdict, or why there is none.
        said: What the recorder warned of.
    """

    app: App
    lines: int
    seconds: tuple[float, float]
    found: str
    said: Sequence[str] = ()

    def __str__(self) -> str:
        settings = [f"`{n}={v}`" for n, v in self.app.settings.items()]
        empty = [f"`{name}` empty" for name in self.app.empty]
        cells = (
            self.app.path.removeprefix("examples/"),
            f"{self.lines}",
            ", ".join([*settings, *empty]),
            " + ".join(f"{one:.0f}" for one in self.seconds),
            self.found,
            "<br>".join(self.said),
        )
        return f"| {' | '.join(cells)} |"


def look(app: App, clone: Path, place: Path) -> Row:
    """Record and attack an app."""
    source, folder, warned = unpacked(clone, app.path, place), place / "run", Warned()
    count = app.clients * app.each * 10 // 7
    drawn = app.draw(count)
    coins = split_membership(count, app.clients, labels=drawn.labels, seed=1)
    stand_in(app, drawn, coins)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 # from which apps draw
    torch.manual_seed(0)
    began = trained = time.process_time()
    lines = 0
    with _in_folder(source), _empty(app.empty), warned.listening():
        if HUB in app.settings.values():
            random_bert(Path(HUB))
        try:
            lines = record(app, source, folder, coins)
            trained = time.process_time()
            found = _attacked(app, drawn, folder)
        except ImportError as error:  # of another version of Flower, or not installed
            found = f"not run: {error}"
    seconds = trained - began, time.process_time() - trained
    return Row(app, lines, seconds, found, [_short(one, place) for one in warned.said])


def _attacked(app: App, drawn: Drawn, folder: Path) -> str:
    """Return what an attack on the recorded run found, or why there is none."""

    def query(tensors: Mapping[str, Any], rows: np.ndarray) -> torch.Tensor:
        assert app.query is not None
        answer: torch.Tensor = app.query(tensors, drawn.inputs[rows])
        return answer

    if not (folder / "run.json").is_file():
        return "not attacked: no round was recorded"
    try:
        run = load_run(folder)
        with use_owner(SimpleNamespace(labels=drawn.labels, query=query)):
            audit = Auditor(run).attack(app.scenario, shadows=0)
    except PrivauditError as error:
        return f"not attacked: {_short(str(error), folder.parent)}"
    declared = run.privacy["certified"]["released"].get("declared")
    promise = "" if declared is None else f"; ε {declared:.3g} declared of the release"
    headline = audit.headline
    return f"`{app.scenario}`: {headline.auroc}, {headline.verdict.kind}{promise}"


def _short(said: str, place: Path) -> str:
    """Return a sentence for a cell, without paths of this machine."""
    return " ".join(said.replace(f"{place}/", "").replace("|", "/").split())


def page(rows: Sequence[str], version: str) -> str:
    """Return the page, in Markdown."""
    lines = [
        "# Official examples",
        "",
        f"Flower's, at {version}, attacked without shadow models; "
        "[NVFlare's](examples/nvflare/README.md) are elsewhere. Lines are changed code. "
        "Data are drawn without a pattern, and a language model is random. Seconds are of "
        "one processor, training + audit. ε differ from [lint in the wild](lint-in-the-wild"
        ".md)'s because its clients have other numbers of records. Made by `python -m "
        "privaudit_tools.official_examples`.",
        "",
        "| example | lines | settings | seconds | found | the recorder warns |",
        "|---|---|---|---|---|---|",
        *rows,
    ]
    lines += [
        f"| {path.removeprefix('examples/')} | | | | not run: {why} | |"
        for path, why in NOT.items()
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("flower", type=Path, help="A clone of Flower.")
    parser.add_argument("--out", type=Path, default=Path("official-examples.md"))
    parser.add_argument(
        "--rows",
        type=Path,
        help="A folder: what it has of this commit is not run again.",
    )
    asked = parser.parse_args()
    declare_missing_operators()
    import opacus  # noqa: F401 # watched from here on

    warnings.simplefilter("ignore")
    logging.getLogger("flwr").setLevel(logging.WARNING)
    rows, version = [], version_of(asked.flower)
    for app in APPS:
        kept = asked.rows and asked.rows / f"{Path(app.path).name} {version}"
        if kept and kept.exists():
            rows.append(kept.read_text())
            continue
        with tempfile.TemporaryDirectory() as place:
            rows.append(str(look(app, asked.flower.resolve(), Path(place))))
        print(rows[-1], flush=True)
        if kept:
            write_bytes(kept, rows[-1].encode())
    write_bytes(asked.out, page(rows, version).encode())


if __name__ == "__main__":
    main()
