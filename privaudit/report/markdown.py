r"""The gate as Markdown, for the page of a CI job.

Names come from folders and files, so they may hold anything: what Markdown or HTML
would take for more than text is escaped.
"""

import os
import re
from dataclasses import replace
from pathlib import Path

from privaudit.checks.gate.checks import GateCheck
from privaudit.checks.gate.gate import GateResult
from privaudit.checks.gate.guarantees import GuaranteeCheck
from privaudit.core.storage import append_lines, write_bytes
from privaudit.report.tables.gate_rows import gate_row

_MARKS = {"pass": "✅ pass", "regression": "❌ regression", "unproved": "pass"}
_SIGNS = re.compile(r"([\\`*_{}\[\]()#+\-.!|~>$@:=^])")
_SPACES = re.compile(r"[\s\x00-\x1f\x7f\u200e\u200f\u202a-\u202e\u2066-\u2069]+")
STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


def gate_markdown(result: GateResult) -> str:
    """Return a gate's result: one line, a table, and a sentence for each check."""
    confidence = f"{100 * (1 - result.settings.alpha):g} %"
    lines = [
        "### privaudit gate",
        "",
        f"**{escape(result.sentence)}**",
        "",
        *([escape(said), ""] if (said := result.assurance.sentence) else []),
        "| check | now | before | line | change or value "
        f"[{confidence}] | n | outcome |",
        "|---|---|---|---|---|---|---|",
        *(_row(check, result.assurance.kind) for check in result.checks),
        "",
        *(f"- {escape(check.sentence)}" for check in result.checks),
        "",
    ]
    return "\n".join(lines)


def _row(check: GateCheck | GuaranteeCheck, assurance: str) -> str:
    row = gate_row(check)
    if row.outcome == "pass" and assurance != "proved":
        row = replace(row, outcome="unproved")  # no green where nothing is proved
    outcome = _MARKS.get(row.outcome, f"⚠️ {row.outcome}")
    cells = (row.name, row.now, row.before, row.line, row.found, row.counts, outcome)
    return f"| {' | '.join(map(escape, cells))} |"


def escape(text: str) -> str:
    r"""Return a text that Markdown shows as it is, on one line.

    Example:
        >>> escape("a|b <script>")
        'a\\|b &lt;script&gt;'
    """
    plain = _SPACES.sub(" ", text).strip().replace("&", "&amp;").replace("<", "&lt;")
    escaped = _SIGNS.sub(r"\\\1", plain)
    return escaped.replace(r"\>", "&gt;")


def write_summary(path: Path, text: str) -> None:
    """Write Markdown; GitHub's own summary of a step is added to, not replaced.

    Raises:
        StorageError: The folder cannot be written.
    """
    summary = os.environ.get(STEP_SUMMARY)
    if summary and Path(summary) == path:
        append_lines(path, [text])
    else:
        write_bytes(path, text.encode())
