r"""The gate as Markdown, for the page of a CI job.

Names come from folders and files, so they may hold anything: what Markdown or HTML
would take for more than text is escaped.
"""

import os
import re
from pathlib import Path

from privaudit.gate import GateResult
from privaudit.gating.checks import Check
from privaudit.report.wording import interval, point
from privaudit.storage import append_lines, write_bytes

_MARKS = {"pass": "✅ pass", "regression": "❌ regression"}
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
        "| check | now | before | line | change or value "
        f"[{confidence}] | n | outcome |",
        "|---|---|---|---|---|---|---|",
        *(_row(check) for check in result.checks),
        "",
        *(f"- {escape(check.sentence)}" for check in result.checks),
        "",
    ]
    return "\n".join(lines)


def _row(check: Check) -> str:
    asked, estimate = check.question, check.estimate
    signed = asked.before is not None
    cells = (
        asked.name,
        f"{asked.now:.3f}",
        "" if asked.before is None else f"{asked.before:.3f}",
        f"{asked.setting} {asked.limit:g}",
        f"{point(estimate, signed=signed)} {interval(estimate)}",
        " + ".join(map(str, estimate.n)),
        _MARKS.get(check.outcome, f"⚠️ {check.outcome}"),
    )
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
