import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

import tests.simulated_device  # noqa: F401  # before autograd counts devices
from privaudit.core.seeds import Seeds
from privaudit.datasets.records import PictureTokens
from privaudit.federation.trainer import Cohort, Records, Task
from privaudit.models.interfaces import Classifier
from privaudit.statistics.progress import Watcher
from tests.places import common_folder
from tests.toy_federation import Play, Shards, play_toy
from tests.toy_tower import toy_tower

CLASSES, DIM, TOKENS, WIDTH, PARTS = 4, 12, 3, 5, 6


@dataclass(frozen=True)
class ToyPrompts:
    """A linear text tower: quick, differentiable, and easy to check by hand."""

    weight: Tensor
    bias: Tensor
    context_tokens: int = TOKENS
    width: int = WIDTH

    def __call__(self, contexts: Tensor) -> Tensor:
        features = contexts.flatten(1) @ self.weight + self.bias
        return normalize(features.view(len(contexts), CLASSES, DIM), dim=-1)


@dataclass(frozen=True)
class Cli:
    """The command line in this process: its exit code, and what it printed."""

    call: Callable[..., tuple[int, str, str]]

    def __call__(self, *words: object) -> tuple[int, str, str]:
        return self.call(*words)

    def done(self, *words: object) -> str:
        """Return what a command printed that ended well."""
        code, out, err = self.call(*words)
        assert code == 0, err
        return out

    def refused(self, *words: object) -> str:
        """Return the one line of an error, which is all that a command printed."""
        code, out, err = self.call(*words)
        assert (code, out, err.count("\n")) == (2, "", 1), (out, err)
        assert err.startswith("privaudit: ")
        return err


def toy_records(count: int, seed: int = 0) -> Records:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    centres = torch.randn(CLASSES, DIM, generator=torch.Generator().manual_seed(99))
    noise = torch.randn(count, DIM, generator=generator)
    parts = torch.randn(count, PARTS, DIM, generator=generator)
    tokens = normalize(centres[labels].unsqueeze(1) + 2 * parts, dim=-1)
    features = normalize(centres[labels] + 1.5 * noise, dim=-1)
    contents = features.view(torch.uint8)
    return Records(features, labels, PictureTokens.of(tokens), contents=contents)


def with_noise(records: Records, seed: int) -> Records:
    """Draw labels at random: only memory can know them."""
    generator = torch.Generator().manual_seed(1000 + seed)
    labels = torch.randint(0, CLASSES, records.labels.shape, generator=generator)
    return Records(records.features, labels)


def noisy_candidates(clients: Iterable[str], count: int, seed: int) -> Shards:
    """Draw so many records of each client, whose labels only memory can know."""
    return {
        client: with_noise(toy_records(count, seed + number), number)
        for number, client in enumerate(clients)
    }


@pytest.fixture
def play(task: Task, shards: Shards) -> Play:
    """Train the toy federation: a trainer, and what differs from usual."""
    return partial(play_toy, task=task, shards=shards)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def task() -> Task:
    """Three clients, four classes, and a text tower of one linear layer."""
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(TOKENS * WIDTH, CLASSES * DIM, generator=generator) * 3
    bias = torch.randn(CLASSES * DIM, generator=generator)
    prompts = ToyPrompts(weight, bias)
    zero_shot = prompts(torch.zeros(1, TOKENS, WIDTH))[0]
    return Task(
        backbone=Classifier(prompts, 10.0, zero_shot, partial(toy_tower, DIM, CLASSES)),
        public=toy_records(80, seed=1),
        candidates={"client-0": 24, "client-1": 18, "client-2": 30},
        rounds=3,
    )


@pytest.fixture
def shards(task: Task) -> dict[str, Records]:
    return {
        client: toy_records(count // 2, seed=10 + number)
        for number, (client, count) in enumerate(task.candidates.items())
    }


@pytest.fixture
def cohort(shards: Shards) -> Cohort:
    """All three clients, who train together."""
    return Cohort.of(list(shards), list(shards.values()))


def train_and_stop(rounds: int, /, *trainer: str, **options: Any) -> None:
    """Begin to train a run, called "cut" unless named, and interrupt it."""
    from privaudit import train

    with pytest.raises(KeyboardInterrupt):
        train(*trainer, watcher=stop_after(rounds), **{"name": "cut"} | options)


def stop_after(rounds: int) -> Watcher:
    """Return a watcher that interrupts a training after so many rounds."""

    def watcher(event: Any) -> None:
        if event.done == rounds:
            raise KeyboardInterrupt

    return watcher


@pytest.fixture
def fewer_permutations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Permute 999 times, not 9,999: the test of membership is exact with any number."""
    monkeypatch.setattr("privaudit.statistics.membership_test.DRAWS", 999)


@pytest.fixture
def seeds() -> Seeds:
    return Seeds(0)


@contextmanager
def common_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let fixtures that outlive a test encode pictures once for the whole session."""
    with pytest.MonkeyPatch.context() as patch:
        cache = common_folder(tmp_path_factory) / "cache"
        patch.setenv("PRIVAUDIT_CACHE", str(cache))
        yield


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run the command line; return its exit code and what it printed."""
    from privaudit.cli import main

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["privaudit", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main.run()
        printed = capsys.readouterr()
        code = end.value.code
        return (code if isinstance(code, int) else 0), printed.out, printed.err

    return Cli(call)


def refused(cli: Cli, *words: object) -> str:
    """Return what a command says that exits with code 2."""
    code, _, error = cli(*words)
    assert code == 2
    return error


def refuse(cli: Cli, says: str, *words: object) -> None:
    """Check that a command ends with 2, and what it says."""
    code, _, said = cli(*words)
    assert (code, says in said) == (2, True), said


@pytest.fixture
def few_scenes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Draw few scenes, and forget them afterwards: data sets are kept by name."""
    from privaudit.datasets import sources
    from privaudit.datasets.scenes import records as scenes

    monkeypatch.setattr(scenes, "RECORDS", 240)
    monkeypatch.setattr(scenes, "FAR_RECORDS", 40)
    sources._load.cache_clear()
    yield
    sources._load.cache_clear()


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished and one interrupted run, to be copied by each test."""
    from privaudit import train

    folder = tmp_path_factory.mktemp("originals")
    with common_cache(tmp_path_factory):
        train(folder=folder, name="whole", rounds=2, epochs=1, seed=0)
        train_and_stop(2, folder=folder, rounds=3, epochs=1, seed=0)
    return folder


@pytest.fixture
def whole(originals: Path) -> Path:
    runs = Path(os.environ["PRIVAUDIT_RUNS"])
    return shutil.copytree(originals / "whole", runs / "whole")


@pytest.fixture
def cut(originals: Path) -> Path:
    runs = Path(os.environ["PRIVAUDIT_RUNS"])
    return shutil.copytree(originals / "cut", runs / "cut")
