"""The report: one HTML page that needs no network, no script and no other file."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from privaudit.audit import Audit
from privaudit.errors import ConfigError
from privaudit.report import wording
from privaudit.report.figure_style import to_svg
from privaudit.report.figures import client_plot, roc_plot, tradeoff_plot
from privaudit.report.gallery import galleries
from privaudit.report.labels import run_labels
from privaudit.report.page_template import asset, template
from privaudit.report.settings import attack_settings, run_settings
from privaudit.report.table import Cell, tradeoff_rows
from privaudit.storage import storage_errors, write_bytes


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
        summary=_summary(audits),
        cards=[_card(label, a) for label, a in zip(labels, audits, strict=True)],
        figures=_figures(audits),
        rows=tradeoff_rows(audits),
        attacks=_attack_rows(labels, audits),
        attack_settings=attack_settings(audits),
        privacy=[
            (label, audit.run.privacy, wording.certificate(audit))
            for label, audit in zip(labels, audits, strict=True)
        ],
        rebuilt=[_rebuilt(label, a) for label, a in zip(labels, audits, strict=True)],
        settings=run_settings(audits),
        labels=labels,
        exposed=galleries(audits, labels) if show_records else {},
    )


def _summary(audits: Sequence[Audit]) -> str:
    """Say in one sentence how many runs leak."""
    if len(audits) == 1:
        return ""
    kinds = Counter[str](audit.headline.verdict.kind for audit in audits)
    parts = {
        "leaks": "{} leak",
        "no evidence": "in {} no leak was found",
        "underpowered": "{} cannot be decided",
    }
    told = [text.format(kinds[kind]) for kind, text in parts.items() if kinds[kind]]
    return f"Of {len(audits)} runs, {', '.join(told)}."


def _card(label: str, audit: Audit) -> dict[str, Any]:
    """Return a run's verdict in plain words."""
    kind = audit.headline.verdict.kind
    return {
        "label": label,
        "kind": kind.replace(" ", "-"),
        "heading": wording.HEADINGS[kind],
        "finding": wording.finding(audit),
        "evidence": audit.headline.verdict.sentence,
        "attacked": wording.attacked(audit),
        "linking": wording.linking(audit),
        "use": wording.use(audit),
        "proof": wording.proof(audit),
    }


def _figures(audits: Sequence[Audit]) -> dict[str, Markup]:
    """Return the pictures by name."""
    plots = {
        "tradeoff": (tradeoff_plot, "Utility against leakage of each run"),
        "roc": (roc_plot, "ROC curves with logarithmic axes"),
        "clients": (client_plot, "AUROC of the attack for each client"),
    }
    return {
        name: Markup(to_svg(plot(audits), name, what))  # drawn here: text is paths
        for name, (plot, what) in plots.items()
    }


@dataclass(frozen=True)
class AttackRow:
    """One attack on one run."""

    run: str
    attack: str
    is_headline: bool
    clients: int
    auroc: Cell
    new_clients: Cell
    success: Cell
    success_plain: Cell
    advantage: Cell
    threshold: str


def _attack_rows(labels: Sequence[str], audits: Sequence[Audit]) -> list[AttackRow]:
    return [
        AttackRow(
            run=label,
            attack=leak.attack,
            is_headline=leak is audit.headline,
            clients=len(leak.clients),
            auroc=Cell.of(leak.auroc),
            new_clients=Cell.of(leak.auroc_new_clients),
            success=Cell.of(leak.success),
            success_plain=Cell.of(leak.success_plain),
            advantage=Cell.of(leak.advantage, signed=True),
            threshold=leak.threshold,
        )
        for label, audit in zip(labels, audits, strict=True)
        for leak in audit.leaks.values()
    ]


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
        "measured": [(Cell.of(own), Cell.of(others)) for own, others in pairs or ()],
    }
