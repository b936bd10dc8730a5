import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privaudit.core.errors import MissingFileError, TranscriptError
from privaudit.evaluation.tradeoff.cells import SweepPoint, aggregate
from privaudit.evaluation.tradeoff.result import Tradeoff, judge_sweep
from privaudit.evaluation.tradeoff.selection_cost import Composed, SearchCost
from privaudit.evaluation.tradeoff.stored_sweep import read_sweep
from privaudit.report.galleries.sweep import write_sweep
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
    cells = [("dp-fpl", None), ("dp-fpl", 8.0), ("promptfl", None)]
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
