"""Splits of libraries as they are, done again; what rests on them, and what does not."""

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.model_selection import train_test_split
from torch.utils.data import TensorDataset, random_split

from privaudit import Auditor, Ledger, split_membership
from privaudit.auditing.parts.one_run import refuse_unbounded
from privaudit.core.errors import AttackError, ConfigError
from privaudit.recording.random_split import RandomSplit
from privaudit.runs.ledger import Coin

COUNT = 400
TRAIN, TEST = train_test_split(np.arange(COUNT), test_size=0.3, random_state=42)


def of_hugging_face(count: int, seed: int) -> np.ndarray:
    """Return who is trained on: as datasets 4.0 draws it, a fifth for the test first."""
    tested = np.random.default_rng(seed).permutation(count)[: count // 5]
    return ~np.isin(np.arange(count), tested)


def test_splits_of_libraries_are_taken_as_they_are(tmp_path: Path) -> None:
    records = TensorDataset(torch.arange(COUNT))
    drawn = torch.Generator().manual_seed(3)
    parts = random_split(records, [0.6, 0.2, 0.2], generator=drawn)
    table = SimpleNamespace(column=lambda _: SimpleNamespace(to_pylist=TRAIN.tolist))
    hugging_face = SimpleNamespace(_indices=table)  # as Dataset.train_test_split has it
    cases: list[tuple[Any, str]] = [
        (TRAIN, "sklearn:42"),
        (hugging_face, "sklearn:42"),
        (parts[0], "torch:3"),
        (parts[1], "torch:3"),  # whichever was trained on
        (of_hugging_face(COUNT, 7), "datasets:7"),
    ]
    for members, said in cases:
        ledger = split_membership(COUNT, members=members, sampling=said)
        library, _, seed = said.partition(":")
        assert ledger.coin == Coin(library, int(seed))  # type: ignore[arg-type]
        assert (ledger.sampling, ledger.tossed) == ("split", False)
        ledger.save(tmp_path / "ledger.npz")
        assert Ledger.load(tmp_path / "ledger.npz").coin == ledger.coin
        other = said.replace(seed, "8")
        with pytest.raises(ConfigError, match="its parts are not these members"):
            split_membership(COUNT, members=members, sampling=other)


def test_each_client_may_have_split_its_own() -> None:
    owners = np.repeat([0, 1, 2], [100, 150, 150])
    members = np.concatenate([of_hugging_face(n, 42) for n in (100, 150, 150)])
    ledger = split_membership(owners=owners, members=members, sampling="datasets:42")
    assert ledger.sampling == "split"
    members[[0, 99]] = ~members[[0, 99]]
    with pytest.raises(ConfigError, match="not these members"):
        split_membership(owners=owners, members=members, sampling="datasets:42")


def test_scores_of_a_split_have_a_verdict_and_no_bound_on_epsilon(
    rng: np.random.Generator,
) -> None:
    scores = rng.normal(size=COUNT) + 2 * np.isin(np.arange(COUNT), TRAIN)
    pair, records = (scores[TRAIN], scores[TEST]), np.r_[TRAIN, TEST]
    audit = Auditor.from_scores(*pair, records=records, sampling="sklearn:42")
    assert (audit.verdict.kind, audit.run.sampling) == ("leaks", "split")
    run: Any = SimpleNamespace(ledger=audit.run.truth, sampling="split", name="mine")
    with pytest.raises(AttackError, match="independent coin for each record"):
        inspect.unwrap(refuse_unbounded)(run, "one-run")
    few = scores[TRAIN[:90]], scores[TEST[:90]]
    named = np.r_[TRAIN[:90], TEST[:90]]
    for said in ("sklearn:42:400", "split", "population"):
        found = Auditor.from_scores(*few, records=named, sampling=said)
        assert found.verdict.kind == "leaks"
    for names in (named, [f"record {n}" for n in named]):
        with pytest.raises(ConfigError, match="sklearn:42:RECORDS"):
            Auditor.from_scores(*few, records=names, sampling="sklearn:42")


@pytest.mark.usefixtures("fewer_permutations")
def test_a_split_that_tells_nothing_is_called_a_leak_no_more_often_than_coins() -> None:
    """2.5 % of 400 audits, of 28 + 12 in each of three clients; four standard errors."""
    rng, clients, leaks = np.random.default_rng(0), np.repeat([0, 1, 2], 40), 0
    hard = rng.normal(size=120)  # some records are easy whoever trains on them
    for _ in range(400):
        rank = rng.permuted(np.tile(np.arange(40), (3, 1)), axis=1).ravel()
        order = np.argsort(rank >= 28, kind="stable")
        scores = (hard + 0.3 * rng.normal(size=120))[order]
        audit = Auditor.from_scores(
            scores[:84], scores[84:], clients=clients[order], sampling="split"
        )
        leaks += audit.verdict.kind == "leaks"
    assert leaks <= 400 * 0.025 + 4 * np.sqrt(400 * 0.025 * 0.975)


@pytest.mark.parametrize(
    ("library", "order"),
    [
        ("sklearn", [0, 1, 5, 2, 4, 3]),
        ("torch", [0, 3, 2, 4, 1, 5]),
        ("datasets", [3, 2, 5, 4, 1, 0]),
    ],
)
def test_orders_are_the_libraries_own(library: Any, order: list[int]) -> None:
    """Of scikit-learn 1.7, torch 2.8 and, by the source of datasets 4.0, numpy 2.3."""
    for part in range(1, 6):
        is_member = np.isin(np.arange(6), order[:part])
        RandomSplit(library, 42).check(is_member)
    with pytest.raises(ConfigError, match="not these members"):
        RandomSplit(library, 42).check(np.isin(np.arange(6), order[::5]))
