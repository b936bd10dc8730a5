"""The report: one HTML page that needs no network and no other file."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from privaudit.auditing.audit import Audit
from privaudit.auditing.named_attacks import description
from privaudit.auditing.parts.closeness import CLOSENESS
from privaudit.auditing.scenario import SHARES, SLICES
from privaudit.core.errors import ConfigError, UnknownNameError
from privaudit.core.storage import write_bytes
from privaudit.recording.origins.scores import ScoredRun
from privaudit.report import wording
from privaudit.report.advice import advise
from privaudit.report.attack_classes import classes_tried
from privaudit.report.columns import audit_row, columns, results
from privaudit.report.exposed_records import (
    exposed_captions,
    most_exposed,
    record_sections,
)
from privaudit.report.figures import row_figures
from privaudit.report.figures.curve_figures import (
    roc_alt,
    roc_plot,
    rounds_alt,
    rounds_plot,
)
from privaudit.report.figures.figure_style import both_widths, to_svg, write_figure
from privaudit.report.figures.tradeoff_figure import (
    tradeoff_alt,
    tradeoff_plot,
    tradeoff_svg,
)
from privaudit.report.first_screen import card, first_screen
from privaudit.report.page_template import render
from privaudit.report.report_data import (
    Findings,
    ReportData,
    class_sentence,
    same_columns,
)
from privaudit.report.settings import attack_settings, run_settings
from privaudit.report.tables.attack_tables import (
    attack_rows,
    class_rows,
    drawn_sentence,
    grid_tables,
    headline_rows,
    traffic_rows,
    written_rows,
)
from privaudit.report.tables.parts import (
    bound_rows,
    level_rows,
    most_exposed_of,
    part_tables,
    property_rows,
    record_sentences,
)
from privaudit.report.tables.table import headlines
from privaudit.report.wording import TableCell
from privaudit.runs.own_files import check_file, make_parent, write_output

_SVG = {"roc": to_svg, "closeness": to_svg}  # too large, or too wide, for a phone
Names = Sequence[Sequence[str]]  # of each audit's classes


def write_report(
    audits: Sequence[Audit],
    path: Path,
    *,
    show_records: bool = False,
    class_names: Names | None = None,
) -> None:
    """Write the report on one run, or on several under one scenario.

    Only its owner can read the file. It holds no record and no position of one, unless
    asked for.

    Args:
        audits: At least one, of one scenario.
        path: The HTML file: an audit's own report.html, or one outside of all runs.
        show_records: Show the most exposed records as pictures: then the page is as
            sensitive as the data.
        class_names: Of each audit, if its data set is not to be loaded for them.

    Raises:
        ConfigError: There is no audit, or they are of several scenarios.
        StorageError: The file cannot be written.
    """
    own = {
        one.run.path / "audits" / one.scenario.name / "report.html" for one in audits
    }
    if path not in own:
        make_parent(path)
        check_file(path)  # before it is rendered
    page = render_report(audits, show_records=show_records, class_names=class_names)
    (write_bytes if path in own else write_output)(path, page.encode())


def render_report(
    audits: Sequence[Audit],
    *,
    show_records: bool = False,
    class_names: Names | None = None,
) -> str:
    """Return the page of :func:`write_report`."""
    scenarios = sorted({audit.scenario.name for audit in audits})
    if len(scenarios) != 1:
        raise ConfigError(
            f"A report covers one scenario, and the audits have {len(scenarios)}"
            f"{': ' if scenarios else ''}{', '.join(scenarios)}. Write one report per "
            "scenario, with at least one audit."
        )
    data = ReportData.of(audits, class_names)
    return render(
        "report.html.jinja",
        scenario=audits[0].scenario,
        adversary=wording.adversary(audits[0].scenario.threat),
        attack_classes=classes_tried(scenarios[0]),
        labels=[one.label for one in data.runs],
        figures=_figures(data),
        shows_records=show_records,
        **_records(data if show_records else ReportData(())),
        **_findings(data),
        **_numbers(data),
    )


def _records(data: ReportData) -> dict[str, Any]:
    """Return pictures, captions and positions of the most exposed records."""
    exposed = [(one.label, most_exposed_of(one.audit)) for one in data.runs]
    return {
        "exposed": {
            one.label: most_exposed(one.audit)
            for one in data.runs
            if not wording.writes(one.audit)
        },
        "record_sections": record_sections(data),
        "captions": {
            one.label: exposed_captions(one.audit) for one in data.writers.runs
        },
        "named_records": {label: records for label, records in exposed if records},
    }


def _findings(data: ReportData) -> dict[str, Any]:
    """Return what is said in words, above the tables."""
    audits, advice = data.audits, advise(data)
    return {
        "screen": first_screen(data, advice),
        "advice": advice,
        "overview": columns(data, "overview"),
        "overview_rows": [
            audit_row(one, f"#run-{number}", "overview")
            for number, one in enumerate(data.worst_first, start=1)
        ],
        "cards": list(map(card, data.worst_first)),
        "undrawn": data.undrawn,
        "some_clients": any(
            len({len(result.clients) for result in audit.results.values()}) > 1
            for audit in audits
        ),
        "writers": data.writers.runs,
        "privacy": [
            (one.label, one.audit.run.privacy, one.audit.certificate)
            for one in data.runs
        ],
        "rebuilt": [
            _rebuilt(one)
            for one in data.runs
            if not isinstance(one.audit.run, ScoredRun)  # no model was rebuilt
        ],
        "by_chance": all(audit.run.sampling != "unknown" for audit in audits),
    }


def _numbers(data: ReportData) -> dict[str, Any]:
    """Return the tables."""
    shared, differing = run_settings(data)
    on_both = (one.both for one in data.runs if one.both)
    return {
        "attack_settings": attack_settings(data.audits),
        "attack_descriptions": {
            name: description(name) for audit in data.audits for name in audit.results
        },
        "shared_settings": shared,
        "differing_settings": differing,
        "confidence": data.audits[0].auroc.confidence,
        "attack": data.audits[0].headline.attack,
        "results": results(data),
        "attacks_named": headlines(data),
        "attacks": attack_rows(data),
        "classes": class_rows(data),
        "class_sentences": [
            (one.label, class_sentence(one.classes)) for one in data.runs
        ],
        "classes_drawn": drawn_sentence(data),
        "grid": grid_tables(data),
        "slices": SLICES,
        "shares": SHARES,
        "headlines": headline_rows(data),
        "server_attack": next((clients.attack for clients, _ in on_both), ""),
        "written": written_rows(data),
        "traffic": traffic_rows(data),
        "bounds": bound_rows(data),
        "parts": part_tables(data),
        "levels": level_rows(data),
        "properties": property_rows(data),
        "exposures": [
            (one.label, " ".join(sentences))
            for one in data.runs
            if (sentences := record_sentences(one.audit))
        ],
        "same_columns": [
            f"{one.label}: {sentence}"
            for one in data.runs
            for sentence in same_columns(one.audit)
        ],
    }


_Plot = Callable[[ReportData], Figure | None]
_FIGURES: Mapping[str, tuple[_Plot, Callable[[ReportData], str]]] = {
    "roc": (roc_plot, roc_alt),
    "clients": (row_figures.client_plot, row_figures.clients_alt),
    "classes": (row_figures.class_plot, row_figures.classes_alt),
    "server": (row_figures.server_plot, row_figures.server_alt),
    "closeness": (row_figures.closeness_plot, row_figures.closeness_alt),
    "attacks": (row_figures.attacks_plot, row_figures.attacks_alt),
    "rounds": (rounds_plot, rounds_alt),
    "exposure": (row_figures.exposure_plot, row_figures.exposure_alt),
    "properties": (row_figures.property_plot, row_figures.properties_alt),
    "epsilon": (row_figures.epsilon_plot, row_figures.epsilon_alt),
}
_OF_WRITERS = ("server", "closeness")
FIGURES = ("tradeoff", *_FIGURES)
"""Names of pictures that :func:`figure` draws."""


def figure(name: str, audits: Sequence[Audit]) -> Figure:
    """Return one picture of the report, a figure of matplotlib whose axes can be changed.

    Args:
        name: "roc", "clients", "classes", "attacks", "rounds" and others; see
            ``privaudit figure --help``.
        audits: Of one scenario.

    Raises:
        UnknownNameError: There is no such picture.
        ConfigError: There is nothing to draw of these audits.
    """
    return _drawn(name, audits)[0]


def write_audit_figure(name: str, audits: Sequence[Audit], path: Path) -> None:
    """Write a picture of the report as SVG, PDF or PNG, by the file's ending.

    Raises:
        UnknownNameError: There is no such picture.
        ConfigError: There is nothing to draw of these audits, or another ending.
        StorageError: The file cannot be written.
    """
    drawn, description = _drawn(name, audits)
    write_figure(drawn, path, name, description)


def _drawn(name: str, audits: Sequence[Audit]) -> tuple[Figure, str]:
    """Return a picture, and what it shows in words."""
    if name not in FIGURES:
        raise UnknownNameError("figure", name, FIGURES)
    plot, alt = {"tradeoff": (tradeoff_plot, tradeoff_alt), **_FIGURES}[name]
    data = _shown_in(name, ReportData.of(audits))
    drawn = plot(data) if data.runs else None
    if drawn is None:
        raise ConfigError(
            f"The figure {name} was requested, and there is nothing to draw of these "
            "audits. Audit with what it shows, or draw another: roc and clients are of "
            "every audit."
        )
    return drawn, alt(data)


def _shown_in(name: str, data: ReportData) -> ReportData:
    """Return the runs that a picture can show."""
    if name == "tradeoff":
        return data.useful
    return data.writers if name in _OF_WRITERS else data


def _figures(data: ReportData) -> dict[str, Markup]:
    """Return the pictures by name, those that there is something to draw of."""
    useful, figures = data.useful, dict[str, Markup]()
    if useful.runs:
        figures["tradeoff"] = Markup(tradeoff_svg(useful, "tradeoff"))
    for name, (plot, alt) in _FIGURES.items():
        drawn = _shown_in(name, data.drawn)
        figure = plot(drawn)
        if figure is not None:
            svg = _SVG.get(name, both_widths)(figure, name, alt(drawn))
            figures[name] = Markup(svg)  # drawn here: text is escaped
    return figures


def _rebuilt(one: Findings) -> dict[str, Any]:
    """Return how close an adversary's model of a client is to the client's."""
    fidelity = one.audit.part(CLOSENESS)
    close = fidelity.closeness
    pairs = close and (
        (close.cosine, close.cosine_null),
        (close.distance, close.distance_null),
        (close.agreement, close.agreement_null),
    )
    return {
        "label": one.label,
        "missing": "; ".join(fidelity.missing) or "nothing",
        "staleness": fidelity.staleness,
        "measured": [
            (TableCell.of(same_client), TableCell.of(others))
            for same_client, others in pairs or ()
        ],
    }
