"""Official examples of Flower, recorded and attacked: a table in Markdown.

    python -m privaudit_tools.official_examples flower.git --out TABLE

The newest commit of a clone is read, and each app runs as it is, but for four lines more
(two imports, ``mods=[name_partition]``, ``with RecordingGrid``) and its data. These are
drawn, records without a pattern, and of each client's a coin chooses those that it
trains on. Names, versions and numbers enter the table, and nothing else of the apps.
"""

import argparse
import contextlib
import importlib
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from privaudit import Auditor, split_membership
from privaudit.core.storage import write_bytes
from privaudit.models.hugging_face import declare_missing_operators
from privaudit.recording.owner import use_owner
from privaudit.runs.ledger import Ledger
from privaudit_tools.lint_in_the_wild import run_flower, unpacked, version_of

LINES = 4  # of an app's own, but for its data


@dataclass(frozen=True)
class Drawn:
    """Records of one form, without a pattern.

    Attributes:
        columns: By name; of equal lengths.
        inputs: As the app's model takes them.
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
        cls, count: int, names: Sequence[str], label: str, classes: Any
    ) -> "Drawn":
        """Draw rows of normal numbers, in classes of these names."""
        rng = np.random.default_rng(0)
        values = rng.standard_normal((count, len(names)))
        labels = rng.integers(0, len(classes), count)
        columns = dict(zip(names, values.T.tolist(), strict=True))
        columns[label] = [classes[n] for n in labels]
        return cls(columns, torch.from_numpy(values), labels)

    def at(self, positions: np.ndarray) -> Any:
        """Return some records as a Dataset whose test part is nobody's."""
        from datasets import Dataset

        chosen = positions.tolist()
        return Dataset.from_dict(
            {name: [values[n] for n in chosen] for name, values in self.columns.items()}
        )


def classifier(module: str, name: str) -> Callable[[Mapping[str, Any], Any], Any]:
    """Return how an app's network is asked, by its state's names or their order."""

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
            answer: torch.Tensor = net(inputs.float())
        if answer.shape[-1] > 1:
            return answer
        return torch.cat([1 - answer, answer], dim=-1).clamp(min=1e-7).log()

    return query


def linear(tensors: Mapping[str, Any], inputs: torch.Tensor) -> torch.Tensor:
    """Return logits of a linear model: its coefficients, and its intercept."""
    weight, bias = (torch.as_tensor(one) for _, one in sorted(tensors.items()))
    return inputs.to(weight.dtype) @ weight.T + bias


IRIS = ("petal_length", "petal_width", "sepal_length", "sepal_width")


@dataclass(frozen=True)
class App:
    """One official app, and what an audit of it asks.

    Attributes:
        path: In Flower's repository.
        draw: So many records of the form that it reads.
        query: From tensors and inputs to logits.
        settings: Of its run, in place of its own.
        scenario: The strongest that its messages allow.
        clients: How many it needs.
        each: Records of a client, in and out.
    """

    path: str
    draw: Callable[[int], Drawn]
    query: Callable[[Mapping[str, Any], Any], Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    scenario: str = "server-reconstruct"
    clients: int = 5
    each: int = 120


def _coloured(count: int) -> Drawn:
    return Drawn.pictures(count, "img", 32, 32, 3)


APPS = (
    App(
        "examples/quickstart-pytorch", _coloured,
        classifier("pytorchexample.task", "Net"),
        {"local-epochs": 40, "learning-rate": 0.02},
    ),
    App(
        "examples/quickstart-sklearn",
        lambda count: Drawn.table(count, IRIS, "species", (0, 1, 2)),
        linear,
    ),
    App(
        "examples/fl-tabular",
        lambda count: Drawn.table(
            count, [f"x{n}" for n in range(14)], "income", ("<=50K", ">50K")
        ),
        classifier("fltabular.task", "IncomeClassifier"),
        {"num-server-rounds": 20},
    ),
    App("examples/opacus", _coloured, classifier("opacus_fl.task", "Net")),
    App(
        "examples/flower-secure-aggregation", _coloured,
        classifier("secaggexample.task", "Net"),
        {"is-demo": False, "local-epochs": 40, "learning-rate": 0.02},
        "server-aggregate",
    ),
    App(
        "examples/fl-dp-sa",
        lambda count: Drawn.pictures(count, "image", 28, 28),
        classifier("fl_dp_sa.task", "Net"),
        scenario="server-aggregate", clients=100, each=12,
    ),
)  # fmt: skip
NOT = {
    "examples/federated-vae": "its model has no classes; who asks it needs a `query` of "
    "reconstruction errors",
    "examples/quickstart-xgboost": "trees in bytes are no arrays: left out in round 1",
    "examples/federated-analytics": "nothing is trained: query messages",
    "examples/flowertune-llm": "its model is on a hub, and large",
}
"""Apps that are not audited, and why."""


def stand_in(drawn: Drawn, coins: Ledger) -> None:
    """Put drawn records where an app would download its own: members, and tests."""
    import datasets
    import flwr_datasets

    tests = drawn.at(coins.tests)

    class Partition(datasets.Dataset):  # type: ignore[misc] # where it is not there
        """A client's members; what it splits off for tests are records of nobody's."""

        def train_test_split(self, *_: Any, **__: Any) -> Any:
            whole = datasets.Dataset(self.data, self.info)
            return datasets.DatasetDict({"train": whole, "test": tests})

    def load_partition(_: Any, partition: int, *__: Any) -> Any:
        members = drawn.at(coins.members_of(int(partition)))
        return Partition(members.data, members.info)

    made = {"__init__": lambda *_, **__: None, "load_partition": load_partition}
    flwr_datasets.FederatedDataset = type("Federated", (), made)
    datasets.load_dataset = lambda *_, **__: tests


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


def row(app: App, clone: Path, place: Path) -> str:
    """Record and attack an app, and return its row."""
    source = unpacked(clone, app.path, place)
    count = app.clients * app.each * 10 // 7
    drawn = app.draw(count)
    coins = split_membership(count, app.clients, labels=drawn.labels, seed=1)
    stand_in(drawn, coins)
    owner = SimpleNamespace(
        labels=drawn.labels,
        query=lambda tensors, rows: app.query(tensors, drawn.inputs[rows]),
    )
    torch.manual_seed(0)
    began = time.perf_counter()
    with _in_folder(source):
        recorded = run_flower(source, place / "run", coins, app.settings)
        trained = time.perf_counter() - began
        with use_owner(owner):
            audit = Auditor(recorded).attack(app.scenario, shadows=0)
    declared = recorded.privacy["certified"]["released"].get("declared")
    promise = "" if declared is None else f"; ε {declared:.3g} declared of the release"
    changed = ", ".join(f"`{name}={value}`" for name, value in app.settings.items())
    cells = (
        app.path.removeprefix("examples/"),
        f"{LINES}{f'; {changed}' if changed else ''}",
        f"{trained:.0f} + {time.perf_counter() - began - trained:.0f}",
        f"`{app.scenario}`: {audit.headline.auroc}, {audit.headline.verdict.kind}{promise}",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("flower", type=Path, help="A clone of Flower.")
    parser.add_argument("--out", type=Path, default=Path("official-examples.md"))
    parser.add_argument("--only", default="", help="A part of an app's path.")
    asked = parser.parse_args()
    declare_missing_operators()
    warnings.simplefilter("ignore")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    lines = [
        f"Flower at {version_of(asked.flower)}:",
        "",
        "| example | lines, settings | seconds | found |",
        "|---|---|---|---|",
    ]
    for app in APPS:
        if asked.only in app.path:
            with tempfile.TemporaryDirectory() as place:
                lines.append(row(app, asked.flower, Path(place)))
            print(lines[-1], flush=True)
    lines += [
        f"| {path.removeprefix('examples/')} | | | {why} |" for path, why in NOT.items()
    ]
    write_bytes(asked.out, ("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    main()
