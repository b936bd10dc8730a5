"""The report: one HTML page that needs no network, no script and no other file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from privaudit.audit import Audit
from privaudit.errors import ConfigError
from privaudit.report import wording
from privaudit.report.attack_table import attack_rows
from privaudit.report.attacks_figure import attacks_alt, attacks_plot, on_some_clients
from privaudit.report.caption_gallery import exposed_captions
from privaudit.report.cards import card, summary
from privaudit.report.epsilon_figure import epsilon_alt, epsilon_plot
from privaudit.report.figure_style import to_svg
from privaudit.report.figures import (
    client_plot,
    roc_plot,
    tradeoff_plot,
    undrawn,
)
from privaudit.report.gallery import galleries
from privaudit.report.labels import run_labels
from privaudit.report.one_run_table import bound_rows
from privaudit.report.page_template import asset, template
from privaudit.report.pair_figure import closeness_plot, server_plot
from privaudit.report.rounds_figure import rounds_alt, rounds_plot
from privaudit.report.settings import attack_settings, run_settings
from privaudit.report.table import Cell, tradeoff_rows
from privaudit.report.token_grid_table import grid_tables, headline_rows
from privaudit.report.written_table import traffic_rows, written_table
from privaudit.storage import storage_errors, write_bytes
from privaudit.token_grid import SHARES, SLICES


def write_report(
    audits: Sequence[Audit], path: Path, *, show_records: bool = False
) -> None:
    """Write the report on one run, or on several under one scenario.

    Only its owner can read the file. It holds no record and no position of one, unless
    asked for.

    Args:
        audits: At least one, of one scenario.
        path: The HTML file.
        show_records: Show the most exposed records as pictures: then the page is as
            sensitive as the data.

    Raises:
        ConfigError: There is no audit, or they are of several scenarios.
        StorageError: The file cannot be written.
    """
    page = render_report(audits, show_records=show_records)
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, page.encode())


def render_report(audits: Sequence[Audit], *, show_records: bool = False) -> str:
    """Return the page of :func:`write_report`."""
    scenarios = sorted({audit.scenario.name for audit in audits})
    if len(scenarios) != 1:
        raise ConfigError(
            f"A report is about one scenario, and there are {len(scenarios)}"
            f"{': ' if scenarios else ''}{', '.join(scenarios)}. Write one report for "
            "each, of at least one audit."
        )
    labels = run_labels(audits)
    return template("report.html.jinja").render(
        css=Markup(asset("report.css")),  # our own file: nothing to escape
        scenario=audits[0].scenario,
        adversary=wording.adversary(audits[0].scenario.threat),
        summary=summary(audits),
        cards=[card(label, a) for label, a in zip(labels, audits, strict=True)],
        figures=_figures(audits),
        undrawn=undrawn(audits),
        some_clients=on_some_clients(audits),
        rows=tradeoff_rows(audits),
        metric=wording.metric(audits),
        untrained=wording.untrained(audits),
        writers=[audit for audit in audits if wording.writes(audit)],
        attacks=attack_rows(audits, labels),
        bounds=bound_rows(audits, labels),
        grid=grid_tables(audits, labels),
        slices=SLICES,
        shares=SHARES,
        headlines=headline_rows(audits, labels),
        written=written_table(audits, labels),
        traffic=traffic_rows(audits, labels),
        attack_settings=attack_settings(audits),
        privacy=[
            (label, audit.run.privacy, wording.certificate(audit))
            for label, audit in zip(labels, audits, strict=True)
        ],
        rebuilt=[_rebuilt(label, a) for label, a in zip(labels, audits, strict=True)],
        settings=run_settings(audits),
        labels=labels,
        shows_records=show_records,
        exposed=galleries(audits, labels) if show_records else {},
        captions=_captions(audits, labels) if show_records else {},
    )


def _figures(audits: Sequence[Audit]) -> dict[str, Markup]:
    """Return the pictures by name."""
    plots = {
        "tradeoff": (tradeoff_plot, "Utility against leakage of each run"),
        "roc": (roc_plot, "ROC curves with logarithmic axes"),
        "clients": (client_plot, "AUROC of the attack for each client"),
    }
    writers = [audit for audit in audits if wording.writes(audit)]
    pairs = {
        "server": (server_plot(writers), "AUROC on clients' and on the server's model"),
        "closeness": (closeness_plot(writers), "How close rebuilt models are"),
        "attacks": (attacks_plot(audits), attacks_alt(audits)),
        "rounds": (rounds_plot(audits), rounds_alt(audits)),
        "epsilon": (epsilon_plot(audits), epsilon_alt(audits)),
    }
    drawn = {name: (plot(audits), what) for name, (plot, what) in plots.items()}
    return {
        name: Markup(to_svg(figure, name, what))  # drawn here: text is paths
        for name, (figure, what) in {**drawn, **pairs}.items()
        if figure is not None
    }


def _captions(audits: Sequence[Audit], labels: Sequence[str]) -> dict[str, Markup]:
    """Return the most and least exposed captions by run, where models write."""
    return {
        label: exposed_captions(audit)
        for label, audit in zip(labels, audits, strict=True)
        if wording.writes(audit)
    }


def _rebuilt(label: str, audit: Audit) -> dict[str, Any]:
    """Return how close an adversary's model of a client is to the client's."""
    close = audit.closeness
    pairs = close and (
        (close.cosine, close.cosine_null),
        (close.distance, close.distance_null),
        (close.agreement, close.agreement_null),
    )
    return {
        "label": label,
        "missing": "; ".join(audit.missing) or "nothing",
        "staleness": audit.staleness,
        "measured": [(Cell.of(own), Cell.of(others)) for own, others in pairs or ()],
    }
