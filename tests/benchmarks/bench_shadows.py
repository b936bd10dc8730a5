"""Shadow models of one digits client: stacked, against one after the other.

Run by ``make bench``. Both train the same 64 shadows on the target's candidates, by
replay of a PromptFL run, and ask them about all records; what they say agrees.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from privaudit import Auditor, train
from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.scenario import find_scenario
from privaudit.auditing.shadow_models.signal_table import ShadowTable
from privaudit.auditing.shadow_models.training import shadow_tables
from tests.benchmarks.measuring import machine, spread, timed

SHADOWS, PASSES = 64, 3


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Adversary, Target]:
    folder: Path = tmp_path_factory.mktemp("runs")
    run = train("promptfl", folder=folder, seed=3, measured_rounds=1)
    plan = find_scenario("server-reconstruct", SHADOWS).for_task("classification")
    adversary, targets = Auditor(run).prepare(plan)
    return replace(adversary, store=None), targets[0]


def test_shadows_stacked_against_one_by_one(
    attacked: tuple[Adversary, Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    adversary, target = attacked
    tables: dict[int, ShadowTable] = {}

    def tabled(at_once: int) -> ShadowTable:
        monkeypatch.setattr(
            "privaudit.auditing.shadow_models.training.REPLAY_CHUNK", at_once
        )
        (table,) = shadow_tables(replace(adversary), [target], SHADOWS, "candidates")
        return table

    tabled(SHADOWS)  # the first pass sets up memory
    seconds: dict[int, list[float]] = {SHADOWS: [], 1: []}
    for _ in range(PASSES):
        for at_once, times in seconds.items():
            found = timed(partial(tabled, at_once))
            times.append(found.seconds)
            tables[at_once] = found.result
    ratios = [
        one / many for one, many in zip(seconds[1], seconds[SHADOWS], strict=True)
    ]
    told = [table.candidates.signals.confidence for table in tables.values()]
    torch.testing.assert_close(told[0], told[1], rtol=1e-2, atol=1e-2)
    print(f"\n{machine()}\n{SHADOWS} shadows, {len(target.candidates)} candidates")
    print(f"stacked: {spread(seconds[SHADOWS])} s; one by one: {spread(seconds[1])} s")
    print(f"times as fast: {spread(ratios)}")
