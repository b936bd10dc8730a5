"""Results of a sweep: stored and read back, and their price in epsilon."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privaudit.core.errors import MissingFileError, TranscriptError
from privaudit.evaluation.tradeoff.result import (
    Composed,
    SearchCost,
    Spent,
    SweepPoint,
    Tradeoff,
    aggregate,
    compose,
    describe,
    judge_sweep,
    read_sweep,
    search_cost,
)
from privaudit.privacy.accountant import gaussian_epsilon
from privaudit.privacy.certificate import certify
from privaudit.privacy.events import MechanismEvent
from privaudit.report.sweep import write_sweep
from privaudit.statistics.estimate import Estimate


def point(mode: str, epsilon: float | None, seed: int) -> SweepPoint:
    shift = 0.01 * seed + (0.2 if epsilon is None else 0.0)
    value = Estimate(0.5 + shift, 0.45 + shift, 0.55 + shift, (50, 50), "method")
    return SweepPoint(
        mode, epsilon, seed, value, value, value, None, value, certified=epsilon,
        guarantee="of a record", attack="lira", metric="accuracy",
    )  # fmt: skip


@pytest.fixture(scope="module")
def found() -> Tradeoff:
    cells = [("dp-fpl", None), ("dp-fpl", 0.0), ("dp-fpl", 8.0), ("promptfl", None)]
    made = judge_sweep([point(m, e, s) for m, e in cells for s in (1, 2, 3)])
    fresh = [point("dp-fpl", 8.0, seed) for seed in (4, 5)]
    composed = Composed(3, 8.0, 24.0, 20.0, 1e-5)
    return replace(
        made,
        cost=SearchCost(3, 9, 6, None, composed),
        report_points=tuple(fresh),
        reported=tuple(aggregate(fresh)),
    )


@pytest.fixture(scope="module")
def written(found: Tradeoff, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    write_sweep(found, folder)
    return folder


def test_a_sweep_comes_back_whole(found: Tradeoff, written: Path) -> None:
    assert read_sweep(written) == found


def test_all_files_are_the_same_when_written_again(
    written: Path, tmp_path: Path
) -> None:
    before = {path.name: path.read_bytes() for path in written.iterdir()}
    write_sweep(read_sweep(written), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "change",
    [
        lambda said: said.pop("points"),
        lambda said: said.update(points=[]),
        lambda said: said["points"][0].pop("certified"),
        lambda said: said["cells"][0].pop("auroc"),
        lambda said: said["cells"][0].update(seeds=[1, 2]),
        lambda said: said["margins"].update(odd=1),
        lambda said: said["cost"].update(all_seeds=3),
    ],
)
def test_damage_says_what_to_do(
    change: Callable[[dict[str, Any]], object], written: Path, tmp_path: Path
) -> None:
    said = json.loads((written / "sweep.json").read_text())
    change(said)
    (tmp_path / "sweep.json").write_text(json.dumps(said))
    with pytest.raises(
        TranscriptError, match=r"does not hold a sweep .* Write it again"
    ):
        read_sweep(tmp_path)


def test_an_empty_folder_holds_no_sweep(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError):
        read_sweep(tmp_path)


NOISE, ROUNDS, DELTA = 20.0, 4, 1e-5

EVENT = MechanismEvent(
    release="upload",
    kind="gaussian",
    noise_multiplier=NOISE,
    sensitivity=1.0,
    clip_norm=1.0,
    sampling_rate=1.0,
    sampling="fixed-batch",
    noise_at="client",
    parties=3,
    steps=1,
    per_record=True,
)


def spent(seed: int, rounds: int = ROUNDS) -> Spent:
    events = ((EVENT,),) * rounds
    proved = certify(events, "released", DELTA)
    return Spent(seed, "released", proved.epsilon, DELTA, events)


BARE = Spent(1, "released", None, DELTA, ())
NOTHING = Spent(1, "released", 0.0, DELTA, ())


def test_runs_of_one_mechanism_cost_what_one_longer_run_costs() -> None:
    """Closed form: mu = sqrt(runs * rounds) / noise."""
    found = compose([spent(1), spent(2), spent(3)])
    assert found is not None
    expected = gaussian_epsilon((3 * ROUNDS) ** 0.5 / NOISE, DELTA)
    assert found.epsilon == pytest.approx(expected)
    assert found.largest < found.epsilon < found.summed
    assert found.summed == pytest.approx(3 * found.largest)


def test_one_run_costs_its_own_epsilon() -> None:
    found = compose([spent(1)])
    assert found is not None
    assert found.epsilon == found.largest == found.summed


def test_what_has_no_proof_is_counted_and_what_leaks_nothing_is_free() -> None:
    cost = search_cost(3, [spent(1), BARE, NOTHING, spent(2), replace(BARE, seed=2)])
    assert (cost.cells, cost.runs, cost.unprotected) == (3, 5, 2)
    assert cost.one_seed is not None
    assert cost.all_seeds is not None
    assert (cost.one_seed.runs, cost.all_seeds.runs) == (1, 2)
    assert cost.all_seeds.epsilon > cost.one_seed.epsilon


def test_sentences_say_that_it_is_not_the_epsilon_of_the_cell_picked() -> None:
    cost = search_cost(2, [spent(1), spent(1, rounds=2), replace(BARE, seed=2)])
    text = " ".join(describe(cost))
    assert "2 of the 2 cells have a proved ε" in text
    assert "not the ε of the cell that is picked" in text
    assert "no ε covers a choice by them" in text
    assert "Liu and Talwar 2019" in text
    assert "Papernot and Steinke 2022" in text
    assert "1 of the 3 runs carry no proof" in text


def test_a_search_without_private_runs_says_nothing_of_epsilon() -> None:
    assert describe(search_cost(2, [BARE, NOTHING])) == []
