"""The columns of audits, once: in the terminal, on a page, in the index and in serve.

A new column is one entry of :func:`_columns`, with a head for each table that it stands in.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from markupsafe import Markup

from privaudit.core.formatting import epsilon, p_value, percent
from privaudit.report.report_data import (
    ANOTHER,
    IN_TAIL,
    WEAK,
    Badge,
    Findings,
    ReportData,
    either_sign,
)
from privaudit.report.wording import TableCell, TableRows, certified, decision, heading
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.verdict import top_of

TableKind = Literal["run", "runs", "results", "overview", "index"]
"""The terminal, of one run and of several; a page's results and its overview of several
runs; the index, which serve shows too."""


@dataclass(frozen=True)
class ColumnCell:
    """What a column shows of a run.

    Attributes:
        number: With its interval; a text has none.
        note: Below it, in the overview and the index.
        drawn: The number to draw beside it; None for none.
        sort: What rows are sorted by, if not by the number.
    """

    number: TableCell
    note: str = ""
    badge: Badge | None = None
    drawn: Estimate | None = None
    attack: str = ""
    sort: int | None = None


@dataclass(frozen=True)
class Column:
    """One column of audits.

    Attributes:
        heads: By table, its head; on a page the second line is small. It stands nowhere
            else.
        cell: What it shows of a run.
        stack: In the terminal, columns of one run with the same stack share a column.
        chance: Where guessing is, on a number that is drawn.
    """

    heads: Mapping[TableKind, str]
    cell: Callable[[Findings], ColumnCell]
    stack: str = ""
    chance: float | None = None

    def head(self, table: TableKind) -> tuple[str, str]:
        """Return its name there, and what stands below that."""
        name, _, note = self.heads[table].partition("\n")
        return name, note


def columns(data: ReportData, table: TableKind) -> list[Column]:
    """Return the columns of a table, from left to right."""
    return [column for column in _columns(data) if table in column.heads]


def results(data: ReportData) -> tuple[list[str], TableRows]:
    """Return heads and rows of a page's results, which the terminal stacks."""
    shown = columns(data, "results")
    rows: TableRows = [
        (one.label, *(column.cell(one).number for column in shown)) for one in data.runs
    ]
    return [column.heads["results"] for column in shown], rows


def audit_row(one: Findings, link: str, table: TableKind = "index") -> dict[str, Any]:
    """Return what ``audit_cells.html.jinja`` shows of an audit, with a link to its report."""
    shown = columns(ReportData((one,)), table)
    return {
        "label": one.label,
        "run": one.audit.run.name,
        "link": link,
        "scenario": one.audit.scenario.name,
        "cells": [(column, column.cell(one)) for column in shown],
    }


def _columns(data: ReportData) -> list[Column]:
    """Return all columns, in the order that they have in each of their tables."""
    audits, first = data.audits, data.audits[:1]
    by = "".join(percent(audit.auroc.confidence) for audit in first)
    rates = [rate for audit in first for rate in audit.headline.tpr_at_fpr]
    is_mixed = len({audit.headline.attack for audit in audits}) > 1
    has_sizes = len({audit.auroc.n for audit in audits}) > 1
    return [
        Column({"overview": "Leak", "index": "Leak"}, _leak),
        *(_utility_columns(data, by) if data.metric else []),
        Column(
            {
                "run": f"AUROC [{by}]",
                "runs": f"AUROC\n[{by}]",
                "results": "AUROC\n0.5: guessing, 1: tells all",
                **_pages("AUROC\nnamed beforehand; 0.5: guessing, 1: tells all"),
            },
            _auroc,
            "auroc",
            chance=0.5,
        ),
        _text(
            {"run": "n members + others"}, lambda one: f"n = {_counts(one)}", "auroc"
        ),
        _text({"run": "verdict"}, _verdict, "auroc"),
        *(_tpr_column(rate, is_first=rate == rates[0]) for rate in rates),
        Column(
            {
                "run": f"Success rate [{by}]",
                "results": "Success rate\nright guesses; 0.5 by chance",
            },
            lambda one: _number(one.audit.headline.success),
            "guesses",
        ),
        Column(
            {"run": "advantage", "results": "Advan\xadtage\n0 by chance"},
            lambda one: _number(one.audit.headline.advantage, signed=True),
            "guesses",
        ),
        _text({"runs": "Attack"} if is_mixed else {}, lambda one: one.attack),
        _text({"runs": "Verdict"}, _verdict),
        _text({"runs": "n members\n+ others"} if has_sizes else {}, _counts),
        _text(
            {"runs": "ε claimed,\ncertified"},
            lambda one: f"{_claimed(one)}, {certified(one.audit)}",
        ),
        _text({"run": "ε claimed", "results": "ε claimed\nown formula"}, _claimed, "ε"),
        _text(
            {"run": "certified", "results": "ε certified\nproved here"},
            lambda one: certified(one.audit),
            "ε",
        ),
        Column(_pages("Promise\nε claimed, and certified here"), _promise),
        Column(
            {"overview": f"Utility\n{f'{data.metric}, own'.lstrip(', ')} classes"},
            _own_classes,
        ),
        Column(
            {"index": "Utility\nown classes"},
            lambda one: replace(_own_classes(one), note=ReportData((one,)).metric),
        ),
        Column(_pages("Strongest attack\nAUROC, picked afterwards"), _strongest),
        _text({"index": "Trainer"}, lambda one: one.audit.run.config.trainer),
        _text({"index": "Data"}, lambda one: one.audit.run.config.dataset),
        _text({"index": "Scenario"}, lambda one: one.audit.scenario.name),
    ]


def _pages(head: str) -> dict[TableKind, str]:
    return {"overview": head, "index": head}


def _text(
    heads: Mapping[TableKind, str], text: Callable[[Findings], str], stack: str = ""
) -> Column:
    return Column(heads, lambda one: ColumnCell(TableCell(text(one))), stack)


def _number(
    estimate: Estimate | None, missing: str = "-", *, signed: bool = False
) -> ColumnCell:
    if estimate is None:
        return ColumnCell(TableCell(missing))
    return ColumnCell(TableCell.of(estimate, signed=signed))


def _utility_columns(data: ReportData, by: str) -> list[Column]:
    """Return utility on own and on others' classes, and beyond the untrained model."""
    what, start = heading(data.metric), data.untrained

    def others(one: Findings) -> ColumnCell:
        utility = one.audit.utility
        return _number(utility.neighbour, "all own") if utility else _number(None)

    def gain(one: Findings) -> ColumnCell:
        utility = one.audit.utility
        return _number(utility.gain if utility else None, signed=True)

    own: dict[TableKind, str] = {
        "run": f"{what} [{by}]\nown classes",
        "runs": f"{what}\n[{by}]",
        "results": f"{what}, own classes",
    }
    return [
        Column(own, _own_classes, "utility"),
        Column(
            {"run": "others'", "results": f"{what}, others' classes"}, others, "utility"
        ),
        Column(
            {"run": f"over {start}", "results": f"Gain over {start}"}, gain, "utility"
        ),
    ]


def _tpr_column(rate: float, *, is_first: bool) -> Column:
    text = percent(rate)
    return Column(
        {
            "run": f"TPR at FPR\n{text}" if is_first else text,
            "results": f"TPR at FPR {text}\nmembers found, at so many false alarms",
        },
        lambda one: _number(one.audit.headline.tpr_at_fpr.get(rate)),
        "tpr",
    )


def _leak(one: Findings) -> ColumnCell:
    verdict, note = one.audit.verdict, ""
    if verdict.test and one.leak == IN_TAIL:
        note = top_of(verdict.test)
    elif verdict.further and one.leak != ANOTHER:
        note = f"{verdict.further} more like it decide"
    return ColumnCell(TableCell(one.leak.text), note, one.leak, sort=one.leak_rank)


def _auroc(one: Findings) -> ColumnCell:
    counts = f"n = {_counts(one)}"
    note = Markup("{}, <code>{}</code>").format(counts, one.attack)
    auroc = one.audit.auroc
    return ColumnCell(replace(TableCell.of(auroc), note=counts), note, drawn=auroc)


def _counts(one: Findings) -> str:
    return TableCell.of(one.audit.auroc).counts


def _verdict(one: Findings) -> str:
    weak = ", weak attack" * (one.leak == WEAK)
    return f"{decision(one.audit)}{weak}".replace(", ", "\n")


def _claimed(one: Findings) -> str:
    return epsilon(one.audit.claimed_epsilon)


def _promise(one: Findings) -> ColumnCell:
    proved = certified(one.audit)
    by = "" if proved.startswith("declared") else "certified "
    return ColumnCell(
        TableCell(one.promise.text),
        note=f"claimed {_claimed(one)}, {by}{proved}",
        badge=one.promise,
        sort=one.promise_rank,
    )


def _own_classes(one: Findings) -> ColumnCell:
    local = one.audit.utility.local if one.audit.utility else None
    return replace(_number(local), drawn=local)


def _strongest(one: Findings) -> ColumnCell:
    attack, p = one.strongest
    turned = ", sign turned" * (attack.auroc.value < 0.5)
    by_chance = one.audit.run.sampling != "unknown"  # else no p-value is of membership
    tested = f", p {p_value(p)}" * by_chance
    return ColumnCell(
        TableCell.of(either_sign(attack.auroc)),
        note=f"best of {len(one.audit.results)}{turned}{tested}",
        attack=attack.attack,
    )
