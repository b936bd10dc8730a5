"""The index: one row for each audit of several runs, with a link to its report."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privaudit.auditing.attack_result import AttackResult
from privaudit.auditing.audit import Audit
from privaudit.core import formatting
from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.core.storage import read_bytes, write_bytes
from privaudit.federated.runs.runs import Run
from privaudit.report import wording
from privaudit.report.cards import counted
from privaudit.report.labels import run_labels
from privaudit.report.page_template import MADE_BY, render
from privaudit.report.tables.one_run_table import claim_kind
from privaudit.report.tables.other_attacks import others_sentence
from privaudit.report.tables.table import TableCell
from privaudit.statistics.comparisons import holm, p_above_chance

INDEX = "index.html"
_ORDER = ("leaks", "reversed", "underpowered", "sampling unknown", "no evidence")
Titled = Sequence[tuple[str, Path]]


@dataclass(frozen=True)
class IndexEntry:
    """An audit, and where its report lies."""

    audit: Audit
    page: Path


def check_place(folder: Path) -> None:
    """Refuse to write over somebody else's page.

    Raises:
        ConfigError: There is an index that privaudit did not write.
    """
    try:
        there = read_bytes(folder / INDEX)
    except MissingFileError:
        return
    if MADE_BY.encode() not in there:
        raise ConfigError(
            f"The index of the reports goes to {folder / INDEX}, but a page that "
            "privaudit did not write is there. Move that page, or choose another folder."
        )


def write_index(
    folder: Path,
    entries: Sequence[IndexEntry],
    unaudited: Sequence[Run] = (),
    together: Titled = (),
    sweeps: Titled = (),
) -> Path:
    """Write index.html, and return it.

    What is said to leak comes first, then what cannot be decided, each by AUROC.

    Args:
        folder: Links are relative to it.
        entries: May be empty, if there are sweeps.
        unaudited: Runs that nobody attacked.
        together: Further pages on some of the runs, with their titles.
        sweeps: Pages of sweeps, with their titles.

    Raises:
        StorageError: The folder cannot be written.
    """
    labels = _labels(entries)
    ordered = sorted(entries, key=_rank)
    page = render(
        "index.html.jinja",
        summary=_summary(entries),
        rows=[_row(one, labels[one.audit.run.path], folder) for one in ordered],
        unaudited=[(run.name, _why(run)) for run in unaudited],
        together=_linked(together, folder),
        sweeps=_linked(sweeps, folder),
    )
    write_bytes(folder / INDEX, page.encode())
    return folder / INDEX


def _labels(entries: Sequence[IndexEntry]) -> dict[Path, str]:
    """Return each run's label, which is the same in all its audits."""
    runs = {entry.audit.run.path: entry.audit for entry in entries}
    return dict(zip(runs, run_labels(list(runs.values())), strict=True))


def _rank(entry: IndexEntry) -> tuple[int, int, float, str]:
    audit = entry.audit
    place = _ORDER.index(audit.headline.verdict.kind)
    quiet = not others_sentence(audit)
    return place, quiet, -audit.auroc.value, audit.run.name


def _row(entry: IndexEntry, label: str, folder: Path) -> dict[str, Any]:
    audit = entry.audit
    strongest, p = _strongest(audit)
    by_coin = audit.run.sampling == "coin"  # else no p-value is of membership
    verdict = audit.headline.verdict.kind
    heading, kind = wording.decision(audit)
    return {
        "label": label,
        "run": audit.run.name,
        "link": _relative(entry.page, folder),
        "trainer": audit.run.config.trainer,
        "data": audit.run.config.dataset,
        "scenario": audit.scenario.name,
        "metric": audit.utility.metric if audit.utility else "",
        "use": TableCell.of(audit.utility.local) if audit.utility else TableCell("-"),
        "attack": audit.headline.attack,
        "auroc": TableCell.of(audit.auroc),
        "strongest": strongest.attack,
        "strongest_auroc": TableCell.of(strongest.auroc),
        "tried": len(audit.results),
        "p": formatting.p_value(p) if by_coin else "",
        "rank": str(len(_ORDER) - _ORDER.index(verdict)),
        "kind": kind.replace(" ", "-"),
        "verdict": heading,
        "another": verdict != "leaks" and bool(others_sentence(audit)),
        "claim": claim_kind(audit),
    }


def _strongest(audit: Audit) -> tuple[AttackResult, float]:
    """Return the attack with the largest AUROC, and its p-value among so many."""
    results = list(audit.results.values())
    adjusted = holm([p_above_chance(leak.auroc) for leak in results])
    place = max(range(len(results)), key=lambda n: results[n].auroc.value)
    return results[place], float(adjusted[place])


def _summary(entries: Sequence[IndexEntry]) -> str:
    kinds = Counter[str](one.audit.headline.verdict.kind for one in entries)
    runs = len({one.audit.run.path for one in entries})
    if not entries:
        return ""
    audits = f"{len(entries)} audit{'s' * (len(entries) > 1)}"
    return f"Of {audits} of {runs} run{'s' * (runs > 1)}, {counted(kinds)}."


def _why(run: Run) -> str:
    if not run.is_complete:
        done = run.header["progress"]["rounds"]
        return f"stopped after {done} of {run.config.rounds} rounds"
    return "never attacked"


def _linked(pages: Titled, folder: Path) -> list[tuple[str, str]]:
    return [(title, _relative(page, folder)) for title, page in pages]


def _relative(page: Path, folder: Path) -> str:
    """Return a link that works from a file, and after all was moved together."""
    return Path(os.path.relpath(page.resolve(), folder.resolve())).as_posix()
