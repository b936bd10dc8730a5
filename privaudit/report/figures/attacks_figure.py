"""Every attack's AUROC with its interval, side by side."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from privaudit.auditing.attack_result import AttackResult
from privaudit.auditing.audit import Audit
from privaudit.report.figures.row_figures import row_plot
from privaudit.report.labels import run_labels
from privaudit.report.tables.token_grid_table import outside_grid
from privaudit.report.wording import interval, point

Leaks = Mapping[str, AttackResult]


def attacks_plot(audits: Sequence[Audit]) -> Figure | None:
    """Draw a row for each attack with a dot for each run, the headline on top.

    The cells of MaxRényi's grid have a table of their own and are left out. None where
    there is one attack only: other pictures show it.
    """
    runs = [outside_grid(audit.results) for audit in audits]
    names = list(dict.fromkeys(name for results in runs for name in results))
    if len(names) < 2:
        return None
    series = [
        (label, {name: leak.auroc for name, leak in results.items()})
        for label, results in zip(run_labels(audits), runs, strict=True)
    ]
    return row_plot(
        series,
        names,
        "AUROC of the attack   (0.5: chance; right: leaks more)",
        names=[f"{name}\n{_counts(name, runs)}" for name in names],
        shaded=0,
        is_named=len(audits) > 1,
    )


def _counts(name: str, runs: Sequence[Leaks]) -> str:
    """Say on how many clients and records an attack was made, if alike in all runs."""
    sizes = {
        (len(results[name].clients), results[name].auroc.n)
        for results in runs
        if name in results
    }
    if len(sizes) > 1:
        return "n differs: see the table"
    ((clients, n),) = sizes
    return f"{clients} client{'s' * (clients > 1)}, n = {n[0]} + {n[1]}"


def on_some_clients(audits: Sequence[Audit]) -> bool:
    """Return whether an attack was made on fewer clients than another was."""
    return any(
        len({len(leak.clients) for leak in audit.results.values()}) > 1
        for audit in audits
    )


def attacks_alt(audits: Sequence[Audit]) -> str:
    """Say what :func:`attacks_plot` shows, for those who do not see it."""
    parts = [
        f"{label}, {name}: {point(leak.auroc)} {interval(leak.auroc)}"
        for label, audit in zip(run_labels(audits), audits, strict=True)
        for name, leak in outside_grid(audit.results).items()
    ]
    return f"AUROC of every attack. {'; '.join(parts)}."
