"""The examples' own modules, imported as their users import them."""

import sys
from importlib import import_module
from types import ModuleType

import numpy as np
import pytest

from privaudit.datasets.split import PUBLIC, TEST, UNUSED
from privaudit.runs.ledger import Coin, Ledger
from tests.places import ROOT

EXAMPLES = ROOT / "docs" / "examples"


def import_example(
    folder: str, *names: str, monkeypatch: pytest.MonkeyPatch
) -> list[ModuleType]:
    """Import modules of one example anew, as Python does beside its script."""
    monkeypatch.syspath_prepend(EXAMPLES / folder)
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    return [import_module(name) for name in names]


def toss(
    records: int, clients: int, each: int, public: int, tests: int, seed: int = 0
) -> Ledger:
    """Return a ledger of that many candidates, public and test records."""
    rng = np.random.default_rng(seed)
    owner = np.full(records, UNUSED)
    places = rng.permutation(records)
    kinds = np.repeat(
        [*range(clients), PUBLIC, TEST], [each] * clients + [public, tests]
    )
    owner[places[: len(kinds)]] = kinds
    return Ledger(
        owner, (rng.random(records) < 0.5) & (owner >= 0), coin=Coin("seed", seed)
    )
