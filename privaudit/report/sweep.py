"""A sweep over epsilon on disk: picture, table and numbers."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from markupsafe import Markup

from privaudit.report.figure_style import to_png, to_svg
from privaudit.report.page_template import asset, template
from privaudit.report.sweep_figure import epsilon_curves
from privaudit.report.sweep_points import SweepCell, SweepPoint, aggregate
from privaudit.report.wording import epsilon, interval, point
from privaudit.statistics.estimate import Estimate
from privaudit.storage import storage_errors, write_bytes, write_json

__all__ = ["SweepPoint", "write_sweep"]

_MEASURES = ("success", "auroc", "local", "neighbour", "gain", "change")


def write_sweep(
    points: Sequence[SweepPoint], path: Path, *, against_first: bool = False
) -> Path:
    """Write sweep.svg, .png, .json, .md and .html, and return the page.

    Args:
        points: One for each run.
        path: The folder to write to; it is created if need be.
        against_first: Whether all differences are to the first row.

    Raises:
        ConfigError: There is no point, or a seed occurs twice in a cell.
        StorageError: The folder cannot be written.
    """
    cells = aggregate(points, against_first=against_first)
    with storage_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    figure = epsilon_curves(cells)
    svg = to_svg(figure, "sweep", "Accuracy and attack success against epsilon")
    write_bytes(path / "sweep.svg", svg.encode())
    write_bytes(path / "sweep.png", to_png(figure))
    write_json(path / "sweep.json", _as_json(points, cells))
    write_bytes(path / "sweep.md", _as_markdown(points, cells).encode())
    page = template("sweep.html.jinja").render(
        css=Markup(asset("report.css")),
        figure=Markup(svg),
        header=_header(cells),
        rows=[_row(cell) for cell in cells],
        remarks=_remarks(points, cells),
    )
    write_bytes(path / "sweep.html", page.encode())
    return path / "sweep.html"


def _header(cells: Sequence[SweepCell]) -> tuple[str, ...]:
    return (
        "Mode",
        "ε",
        "Seeds",
        "Accuracy, own classes",
        "Accuracy, others' classes",
        "Gain over zero-shot",
        "Success rate of the attack",
        "AUROC of the attack",
        f"AUROC less {_reference(cells)}",
        "ε certified",
    )


def _reference(cells: Sequence[SweepCell]) -> str:
    """Say what the differences of a table are to."""
    to_none = {_has_own_reference(cell) for cell in cells if cell.reference}
    if to_none == {False}:
        return "the first row's"
    return "the reference's" if len(to_none) == 2 else "that without noise"


def _has_own_reference(cell: SweepCell) -> bool:
    return cell.reference == (cell.mode, None)


def _row(cell: SweepCell) -> list[str]:
    measured = (cell.local, cell.neighbour, cell.gain, cell.success, cell.auroc)
    return [
        cell.mode,
        epsilon(cell.epsilon),
        str(len(cell.seeds)),
        *(_number(estimate) for estimate in measured),
        _number(cell.change) if cell.change else "",
        epsilon(cell.certified),
    ]


def _number(estimate: Estimate | None) -> str:
    if estimate is None:
        return "all own"
    return f"{point(estimate)} {interval(estimate)}"


def _remarks(points: Sequence[SweepPoint], cells: Sequence[SweepCell]) -> list[str]:
    """Say what the numbers are, and what the lowest of them is not."""
    lowest = min(cells, key=lambda cell: cell.success.value)
    return [
        "Means over seeds with 95 % Student's intervals; a seed moves partition, "
        "membership, start, batches and noise.",
        *_about_differences(cells),
        f"The lowest success rate, {_number(lowest.success)}, is that of "
        f"{lowest.mode} at ε {epsilon(lowest.epsilon)}. It is the lowest of "
        f"{len(cells)} cells, found after looking: the lowest of {len(cells)} noisy "
        "numbers lies too low on average, so confirm it on other seeds before quoting "
        "it.",
        "ε stands for what the method claims or was asked for; ε certified is what is "
        f"proved for this adversary{_for_what(points)}.",
    ]


def _about_differences(cells: Sequence[SweepCell]) -> list[str]:
    own = [c.mode for c in cells if c.reference and _has_own_reference(c)]
    rest = [c.mode for c in cells if c.reference and not _has_own_reference(c)]
    first = f"the first row, {cells[0].mode} at ε {epsilon(cells[0].epsilon)}"
    references = []
    if own:
        references.append(f"of {_names(own)} to the same mode without noise")
    if rest:
        references.append(f"of {_names(rest)} to {first}")
    if not references:
        return []
    return [
        f"Differences in AUROC are {'; '.join(references)}. They are paired by seed; "
        "their intervals hold all together at 95 % (Bonferroni)."
    ]


def _names(modes: Sequence[str]) -> str:
    return " and ".join(dict.fromkeys(modes))


def _for_what(points: Sequence[SweepPoint]) -> str:
    guarantees = dict.fromkeys(found.guarantee for found in points if found.guarantee)
    return f", for {' or '.join(guarantees)}" if guarantees else ""


def _as_json(
    points: Sequence[SweepPoint], cells: Sequence[SweepCell]
) -> dict[str, Any]:
    return {
        "remarks": _remarks(points, cells),
        "cells": [_plain(cell) for cell in cells],
        "points": [_plain(found) for found in points],
    }


def _plain(entry: SweepPoint | SweepCell) -> dict[str, Any]:
    """Return the fields as JSON knows them, NaN as None."""
    estimates = {
        name: getattr(entry, name) for name in _MEASURES if hasattr(entry, name)
    }
    return asdict(entry) | {
        name: estimate and estimate.to_dict() for name, estimate in estimates.items()
    }


def _as_markdown(points: Sequence[SweepPoint], cells: Sequence[SweepCell]) -> str:
    header = _header(cells)
    rows = [header, ["---"] * len(header), *(_row(cell) for cell in cells)]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    remarks = "".join(f"- {remark}\n" for remark in _remarks(points, cells))
    return f"{table}\n{remarks}"
