"""A sweep over epsilon on disk: picture, table and numbers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from privaudit.core.formatting import as_csv, epsilon, markdown_table
from privaudit.core.storage import storage_errors, to_json
from privaudit.evaluation.metric import Metric
from privaudit.evaluation.tradeoff.cells import SweepCell, SweepPoint, other_metrics
from privaudit.evaluation.tradeoff.result import Tradeoff
from privaudit.federated.runs.folder.outputs import check_folder, write_output
from privaudit.report.figures.figure_style import to_png, to_svg
from privaudit.report.figures.sweep_figure import epsilon_curves
from privaudit.report.figures.sweep_plane import plane_alt, tradeoff_plane
from privaudit.report.page_template import render
from privaudit.report.wording import heading, interval, point
from privaudit.statistics.estimate import Estimate

__all__ = ["render_sweep", "write_sweep"]

_MEASURES = ("auroc", "tpr", "success", "local", "neighbour", "gain", "change")


def write_sweep(found: Tradeoff, path: Path) -> Path:
    """Write sweep.html, .md, .csv and .json with pictures, and return the page.

    plane.svg and .png show leak against use; where budgets were swept, sweep.svg and
    .png show both against epsilon.

    Raises:
        StorageError: The folder cannot be written.
    """
    with storage_errors(check_folder(path)):
        path.mkdir(parents=True, exist_ok=True)
    figures = _figures(found)
    pictures = _pictures(figures)
    for name, (figure, _) in figures.items():
        write_output(path / f"{name}.svg", pictures[name].encode())
        write_output(path / f"{name}.png", to_png(figure))
    content = {"remarks": _remarks(found), **found.to_dict()}
    write_output(path / "sweep.json", to_json(content))
    write_output(path / "sweep.csv", _as_csv(found).encode())
    write_output(path / "sweep.md", _as_markdown(found).encode())
    write_output(path / "sweep.html", _page(found, pictures).encode())
    return path / "sweep.html"


def render_sweep(found: Tradeoff) -> str:
    """Return the page of :func:`write_sweep`."""
    return _page(found, _pictures(_figures(found)))


def _figures(found: Tradeoff) -> dict[str, tuple[Figure, str]]:
    """Return each figure with what it shows, by the name of its file."""
    figures = {"plane": (tradeoff_plane(found), plane_alt(found))}
    if any(cell.epsilon is not None for cell in found.cells):
        curves = epsilon_curves(found.cells, found.points[0].metric)
        figures["sweep"] = curves, "Utility and leakage against epsilon"
    return figures


def _pictures(figures: Mapping[str, tuple[Figure, str]]) -> dict[str, Markup]:
    return {
        name: Markup(to_svg(figure, name, description))  # drawn here: text is paths
        for name, (figure, description) in figures.items()
    }


def _page(found: Tradeoff, figures: Mapping[str, Markup]) -> str:
    return render(
        "sweep.html.jinja",
        figures=figures,
        header=_header(found),
        rows=_rows(found),
        verdict=_verdict(found),
        reported=_reported(found),
        reported_header=_reported_header(found),
        remarks=_remarks(found),
    )


def _verdict(found: Tradeoff) -> str:
    """Say in a sentence what the sweep decided."""
    count, left = len(found.cells), found.not_dominated
    if count == 1:
        return "One setting was tried, so there is nothing to weigh it against."
    if len(left) == count:
        return (
            f"None of {count} settings is dominated on these seeds; this does not prove "
            "that they are equal."
        )
    names = _names([cell.name for cell in left])
    rest = count - len(left)
    return (
        f"{rest} of {count} settings are dominated: another leaks less or has more "
        f"utility, and is no worse otherwise. Not dominated: {names}."
    )


def _header(found: Tradeoff) -> tuple[str, ...]:
    use = heading(found.points[0].metric)
    return (
        "Mode",
        "ε",
        "Seeds",
        f"{use}, own classes",
        f"{use}, others' classes",
        "Gain over zero-shot",
        "Success rate of the attack",
        "AUROC of the attack",
        *(f"{heading(metric.title)} of the attack" for metric in _others(found)),
        "TPR at FPR 1 %",
        f"AUROC less {_reference(found.cells)}",
        "ε certified",
        "Standing",
    )


def _others(found: Tradeoff) -> list[Metric[Any]]:
    """Return the metrics that have no column of their own, as far as runs have them."""
    known = {code for cell in found.cells for code in cell.others}
    return [metric for metric in other_metrics() if metric.code in known]


def _reference(cells: Sequence[SweepCell]) -> str:
    """Say what the differences of a table are to."""
    to_none = {_has_own_reference(cell) for cell in cells if cell.reference}
    if to_none == {False}:
        return "the first row's"
    return "the reference's" if len(to_none) == 2 else "that without noise"


def _has_own_reference(cell: SweepCell) -> bool:
    return cell.reference == (cell.mode, None)


def _row(cell: SweepCell, others: Sequence[Metric[Any]]) -> list[str]:
    measured = (cell.local, cell.neighbour, cell.gain, cell.success, cell.auroc)
    return [
        cell.mode,
        epsilon(cell.epsilon),
        str(len(cell.seeds)),
        *(_number(estimate) for estimate in measured),
        *(
            _number(cell.others[m.code]) if m.code in cell.others else ""
            for m in others
        ),
        _rate(cell.tpr),
        _number(cell.change) if cell.change else "",
        epsilon(cell.certified),
    ]


def _rows(found: Tradeoff) -> list[list[str]]:
    others = _others(found)
    return [
        [*_row(cell, others), found.standing(place)]
        for place, cell in enumerate(found.cells)
    ]


def _reported(found: Tradeoff) -> list[list[str]]:
    """Return the rows on other seeds: alike, but nothing is compared there."""
    others = _others(found)
    return [
        [*_row(cell, others)[:-2], epsilon(cell.certified)] for cell in found.reported
    ]


def _rate(estimate: Estimate | None) -> str:
    """Return a rate of pooled records, or what is missing; n is not that of seeds."""
    if estimate is None:
        return ""
    if estimate.unresolved:
        return f"unresolved: {estimate.unresolved}"
    counts = " + ".join(str(count) for count in estimate.n)
    return f"{_number(estimate)}, n = {counts}"


def _number(estimate: Estimate | None) -> str:
    if estimate is None:
        return "all own"
    return f"{point(estimate)} {interval(estimate)}"


def _remarks(found: Tradeoff) -> list[str]:
    """Say what the numbers are, and what the lowest of them is not."""
    cells, attack = found.cells, found.points[0].attack
    lowest = min(cells, key=lambda cell: cell.success.value)
    return [
        "Means over seeds with 95 % Student's t intervals; a seed sets partition, "
        "membership, initialisation, batches and noise. TPR at FPR 1 % pools all "
        "seeds' records at one threshold, n members and non-members; its interval "
        "adds the sampling error of records to that of seeds.",
        *([f"AUROC, TPR and success rate are those of {attack}."] if attack else []),
        *_about_differences(cells),
        f"The lowest success rate, {_number(lowest.success)}, is that of "
        f"{lowest.mode} at ε {epsilon(lowest.epsilon)}. It is the lowest of "
        f"{len(cells)} cells, picked afterwards: the minimum of {len(cells)} noisy "
        "numbers is biased downwards, so confirm it on other seeds before quoting "
        "it.",
        "ε is what the method claims or was set to; ε certified is what is proved for "
        f"this adversary{_for_what(found.points)}. The runs' noise derives from their "
        "seeds (repeatable, not private): it is what they would have under secret "
        "keys.",
        *found.remarks(),
    ]


def _about_differences(cells: Sequence[SweepCell]) -> list[str]:
    own_modes = [c.mode for c in cells if c.reference and _has_own_reference(c)]
    rest = [c.mode for c in cells if c.reference and not _has_own_reference(c)]
    first = f"the first row, {cells[0].mode} at ε {epsilon(cells[0].epsilon)}"
    references = []
    if own_modes:
        references.append(f"of {_names(own_modes)} to the same mode without noise")
    if rest:
        references.append(f"of {_names(rest)} to {first}")
    if not references:
        return []
    return [
        f"Differences in AUROC are {'; '.join(references)}. They are paired by seed, "
        "with simultaneous 95 % intervals (Bonferroni)."
    ]


def _names(modes: Sequence[str]) -> str:
    return " and ".join(dict.fromkeys(modes))


def _for_what(points: Sequence[SweepPoint]) -> str:
    guarantees = dict.fromkeys(one.guarantee for one in points if one.guarantee)
    return f", for {' or '.join(guarantees)}" if guarantees else ""


def _as_markdown(found: Tradeoff) -> str:
    header = _header(found)
    text = markdown_table(header, _rows(found)) + "\n"
    if found.reported:
        others = markdown_table(_reported_header(found), _reported(found))
        text += f"\nOn other seeds:\n\n{others}\n"
    return text + "\n" + "".join(f"- {remark}\n" for remark in _remarks(found))


def _reported_header(found: Tradeoff) -> tuple[str, ...]:
    return (*_header(found)[:-3], "ε certified")


def _as_csv(found: Tradeoff) -> str:
    """Return a line for each cell: numbers as they are, empty where there is none."""
    rows = [
        {**_line(cell), "standing": found.standing(place), "chosen_on": "these seeds"}
        for place, cell in enumerate(found.cells)
    ]
    return as_csv(
        [*rows, *({**_line(c), "chosen_on": "other seeds"} for c in found.reported)]
    )


def _line(cell: SweepCell) -> dict[str, Any]:
    line: dict[str, Any] = {"mode": cell.mode, "epsilon": cell.epsilon}
    line["seeds"] = " ".join(map(str, cell.seeds))
    measured: dict[str, Estimate | None] = {n: getattr(cell, n) for n in _MEASURES}
    for name, estimate in (measured | dict(cell.others)).items():
        entries = estimate.to_dict() if estimate else {}
        for end, column in (("value", ""), ("low", "_low"), ("high", "_high")):
            line[name + column] = entries.get(end)
    return {**line, "certified": cell.certified}
