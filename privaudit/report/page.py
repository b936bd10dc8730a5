"""The report: one HTML page that needs no network and no other file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from privaudit.auditing.audit import Audit
from privaudit.auditing.default_attacks import SHARES, SLICES
from privaudit.auditing.parts.closeness import CLOSENESS
from privaudit.core.errors import ConfigError
from privaudit.core.storage import write_bytes
from privaudit.federated.runs.folder.outputs import (
    check_file,
    make_parent,
    write_output,
)
from privaudit.recording.origins.scores import ScoredRun
from privaudit.report import wording
from privaudit.report.cards import card
from privaudit.report.decision.advice import advise
from privaudit.report.decision.badges import audit_rank
from privaudit.report.decision.first_screen import first_screen
from privaudit.report.decision.rows import audit_row
from privaudit.report.figures.attacks_figure import (
    attacks_alt,
    attacks_plot,
    on_some_clients,
)
from privaudit.report.figures.epsilon_figure import epsilon_alt, epsilon_plot
from privaudit.report.figures.figure_style import both_widths, to_svg
from privaudit.report.figures.figures import drawn_runs, tradeoff_svg, undrawn
from privaudit.report.figures.pair_figure import (
    closeness_alt,
    closeness_plot,
    server_alt,
    server_plot,
)
from privaudit.report.figures.roc_figure import roc_alt, roc_plot
from privaudit.report.figures.rounds_figure import rounds_alt, rounds_plot
from privaudit.report.figures.row_figures import (
    class_plot,
    classes_alt,
    client_plot,
    clients_alt,
    exposure_alt,
    exposure_plot,
    properties_alt,
    property_plot,
)
from privaudit.report.galleries.captions import exposed_captions
from privaudit.report.galleries.pictures import galleries, read_pictures
from privaudit.report.labels import NamedAudits
from privaudit.report.page_template import render
from privaudit.report.settings import attack_descriptions, attack_settings, run_settings
from privaudit.report.tables.attack_table import attack_rows
from privaudit.report.tables.class_table import class_tables, classes_of, drawn_sentence
from privaudit.report.tables.leak_by_class import ClassLeak
from privaudit.report.tables.one_run_table import bound_rows
from privaudit.report.tables.other_attacks import same_columns
from privaudit.report.tables.parts import part_tables
from privaudit.report.tables.record_table import (
    NamedRecord,
    most_exposed_of,
    record_tables,
)
from privaudit.report.tables.table import TableCell, headlines, tradeoff_rows
from privaudit.report.tables.token_grid_table import grid_tables, headline_rows
from privaudit.report.tables.written_table import traffic_rows, written_table

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
    audits = NamedAudits(audits)
    labels, classes = audits.labels, classes_of(audits, class_names)
    drawn = drawn_runs(audits)
    return render(
        "report.html.jinja",
        scenario=audits[0].scenario,
        adversary=wording.adversary(audits[0].scenario.threat),
        labels=labels,
        figures=_plane(audits)
        | _figures(audits.only(drawn), [classes[place] for place in drawn]),
        classes=class_tables(classes, labels) if _have_classes(classes) else [],
        classes_drawn=drawn_sentence(classes),
        shows_records=show_records,
        exposed=galleries(audits, labels) if show_records else {},
        read=read_pictures(audits, labels) if show_records else {},
        captions=_captions(audits, labels) if show_records else {},
        named_records=_named_records(audits, labels) if show_records else {},
        **_findings(audits, labels),
        **_numbers(audits, labels),
    )


def _findings(audits: Sequence[Audit], labels: Sequence[str]) -> dict[str, Any]:
    """Return what is said in words, above the tables."""
    pairs = list(zip(labels, audits, strict=True))
    worst_first = sorted(pairs, key=lambda pair: audit_rank(pair[1]))
    advice = advise(audits, labels)
    return {
        "screen": first_screen(audits, labels, advice),
        "advice": advice,
        "overview": [
            audit_row(audit, label, f"#run-{place}")
            for place, (label, audit) in enumerate(worst_first, start=1)
        ],
        "cards": [card(label, audit) for label, audit in worst_first],
        "undrawn": undrawn(audits),
        "some_clients": on_some_clients(audits),
        "metric": wording.metric(audits),
        "untrained": wording.untrained(audits),
        "writers": [audit for audit in audits if wording.writes(audit)],
        "privacy": [
            (label, audit.run.privacy, audit.certificate) for label, audit in pairs
        ],
        "rebuilt": [_rebuilt(label, a) for label, a in pairs if not _is_given(a)],
        "by_coin": all(audit.run.sampling == "coin" for audit in audits),
    }


def _numbers(audits: Sequence[Audit], labels: Sequence[str]) -> dict[str, Any]:
    """Return the tables."""
    return {
        "rows": tradeoff_rows(audits),
        "attacks_named": headlines(audits),
        "attacks": attack_rows(audits, labels),
        "bounds": bound_rows(audits, labels),
        "parts": part_tables(audits, labels),
        "grid": grid_tables(audits, labels),
        "record_tables": record_tables(audits),
        "same_columns": [
            f"{label}: {sentence}"
            for label, audit in zip(labels, audits, strict=True)
            for sentence in same_columns(audit)
        ],
        "slices": SLICES,
        "shares": SHARES,
        "headlines": headline_rows(audits, labels),
        "written": written_table(audits, labels),
        "traffic": traffic_rows(audits, labels),
        "attack_settings": attack_settings(audits),
        "attack_descriptions": attack_descriptions(audits),
        "settings": run_settings(audits),
    }


def _figures(
    audits: Sequence[Audit], classes: Sequence[Sequence[ClassLeak]]
) -> dict[str, Markup]:
    """Return the pictures by name, those that there is something to draw of.

    Args:
        audits: Those that pictures have room for.
        classes: Of each.
    """
    writers = [audit for audit in audits if wording.writes(audit)]
    drawn = {
        "roc": (roc_plot(audits), roc_alt(audits)),
        "clients": (
            client_plot(audits) if _have_clients(audits) else None,
            clients_alt(audits),
        ),
        "classes": (
            class_plot(audits, classes) if _have_classes(classes) else None,
            classes_alt(audits, classes),
        ),
        "server": (server_plot(writers), server_alt(writers)),
        "closeness": (closeness_plot(writers), closeness_alt(writers)),
        "attacks": (attacks_plot(audits), attacks_alt(audits)),
        "rounds": (rounds_plot(audits), rounds_alt(audits)),
        "exposure": (exposure_plot(audits), exposure_alt(audits)),
        "properties": (property_plot(audits), properties_alt(audits)),
        "epsilon": (epsilon_plot(audits), epsilon_alt(audits)),
    }
    return {
        name: Markup(_SVG.get(name, both_widths)(figure, name, what))  # text is paths
        for name, (figure, what) in drawn.items()
        if figure is not None
    }


def _plane(audits: NamedAudits) -> dict[str, Markup]:
    """Return the trade-off of all runs whose utility is known."""
    useful = audits.only([p for p, one in enumerate(audits) if one.utility is not None])
    return {"tradeoff": Markup(tradeoff_svg(useful, "tradeoff"))} if useful else {}


def _captions(audits: Sequence[Audit], labels: Sequence[str]) -> dict[str, Markup]:
    """Return the most and least exposed captions by run, where models write."""
    return {
        label: exposed_captions(audit)
        for label, audit in zip(labels, audits, strict=True)
        if wording.writes(audit)
    }


def _named_records(
    audits: Sequence[Audit], labels: Sequence[str]
) -> dict[str, list[NamedRecord]]:
    """Return the records that lose most, by run, where any are known."""
    found = zip(labels, map(most_exposed_of, audits), strict=True)
    return {label: records for label, records in found if records}


def _is_given(audit: Audit) -> bool:
    """Say whether an audit is of scores alone, so that no model was rebuilt."""
    return isinstance(audit.run, ScoredRun)


def _have_clients(audits: Sequence[Audit]) -> bool:
    """Say whether any record is known to be another client's than others are."""
    return any(len(audit.headline.clients) > 1 for audit in audits)


def _have_classes(classes: Sequence[Sequence[ClassLeak]]) -> bool:
    return any(len(leaks) > 1 for leaks in classes)


def _rebuilt(label: str, audit: Audit) -> dict[str, Any]:
    """Return how close an adversary's model of a client is to the client's."""
    fidelity = audit.part(CLOSENESS)
    close = fidelity.closeness
    pairs = close and (
        (close.cosine, close.cosine_null),
        (close.distance, close.distance_null),
        (close.agreement, close.agreement_null),
    )
    return {
        "label": label,
        "missing": "; ".join(fidelity.missing) or "nothing",
        "staleness": fidelity.staleness,
        "measured": [
            (TableCell.of(same_client), TableCell.of(others))
            for same_client, others in pairs or ()
        ],
    }
