"""A finished sweep read back from its sweep.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privaudit.core.arrays import DAMAGE
from privaudit.core.errors import ConfigError, MissingFileError, TranscriptError
from privaudit.core.parameters import from_plain
from privaudit.core.storage import read_json
from privaudit.evaluation.tradeoff.cells import SweepCell, SweepPoint
from privaudit.evaluation.tradeoff.result import Tradeoff, replicates_of
from privaudit.evaluation.tradeoff.selection_cost import SearchCost
from privaudit.statistics.dominance import Margins, find_front

SWEEP = "sweep.json"


def read_sweep(folder: Path) -> Tradeoff:
    """Return what :func:`privaudit.report.galleries.sweep.write_sweep` wrote, without scores.

    Raises:
        MissingFileError: There is no sweep.json.
        TranscriptError: It is damaged, or of another version.
    """
    said = read_json(folder / SWEEP)
    try:
        return _sweep(said)
    except (*DAMAGE, ConfigError, MissingFileError) as error:
        raise TranscriptError(
            f"{folder / SWEEP} does not hold a sweep ({error!r}): it was altered, or "
            "written by another version. Write it again with the same `privaudit "
            "tradeoff`: finished runs are kept."
        ) from None


def _sweep(said: Mapping[str, Any]) -> Tradeoff:
    points = from_plain(tuple[SweepPoint, ...], said["points"])
    cells = from_plain(tuple[SweepCell, ...], said["cells"])
    if not points or not cells:
        raise ValueError(f"{len(points)} points and {len(cells)} cells")
    replicates = [replicates_of(cell, points) for cell in cells]
    for cell, runs in zip(cells, replicates, strict=True):
        if set(runs) != set(cell.seeds):
            raise ValueError(f"{cell.name} has the seeds {cell.seeds}, its runs {runs}")
    margins, alpha = Margins(**said["margins"]), float(said["alpha"])
    return Tradeoff(
        points,
        cells,
        find_front(replicates, margins, alpha),
        from_plain(SearchCost | None, said["cost"]),
        from_plain(tuple[SweepPoint, ...], said["report_points"]),
        from_plain(tuple[SweepCell, ...], said["reported"]),
    )
