r"""The gate as Markdown, for the page of a CI job.

Names come from folders and files, so they may hold anything: what Markdown or HTML
would take for more than text is escaped.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from privaudit.checks.gate.checks import AnyCheck
from privaudit.checks.gate.gate import GateResult
from privaudit.checks.gate.guarantees import GuaranteeCheck
from privaudit.core.storage import append_lines
from privaudit.federated.runs.folder.outputs import check_file, write_output
from privaudit.report.gate_codes import coded, line_of, summary

_MARKS = {"pass": "✅ pass", "regression": "❌ regression", "unproved": "pass"}
_SIGNS = re.compile(
    r"""(?x)
    (?P<plain>                           # reads as it is, so that the text does too
      \[[+-]?\d[\d.]*,[ ][+-]?\d[\d.]*\](?![(\[:])   # an interval, and no link
      | (?<=[^\W_])[-_](?=[^\W_])        # within a word
      | (?<![-+])[-+](?=\d)              # a number's sign
      | (?<=\d[ ])[+](?=[ ]\d) | (?<=\w[ ])=(?=[ ]\w)
      | (?<=\d)\.(?=\d) | (?<=[^\W_]|[)\]])\.(?=\s|$) | (?<=\w):(?=\s|$)
    )
    | [\\`*_{}\[\]\#+\-.|~>$@:=^]
    """
)
_ITEM = re.compile(r"^(\d+)([.)])(?=\s|$)")  # what begins a numbered list
_SPACES = re.compile(r"[\s\x00-\x1f\x7f\u200e\u200f\u202a-\u202e\u2066-\u2069]+")
STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
NUMBERS = "Codes only, as this may be public: the numbers are in the run's report."


def gate_markdown(result: GateResult) -> str:
    """Return a gate's result in codes: one line, a table, a sentence for each check.

    What did not pass comes first. Columns stand below each other, so that it reads as
    text, too.
    """
    heads = ("check", "line", "stated", "outcome")
    rows = [_row(check, result.assurance.kind) for check in result.checks]
    checks = sorted(result.checks, key=lambda check: check.outcome == "pass")
    lines = [
        f"### privaudit gate: {result.outcome}",
        "",
        f"**{escape(summary(result))}**",
        "",
        *([escape(said), ""] if (said := result.assurance.sentence) else []),
        *_table([heads, *rows]),
        "",
        *(f"- {escape(coded(check))}" for check in checks),
        "",
        NUMBERS,
        "",
    ]
    return "\n".join(lines)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines of a table, the first row as its head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    head, *body = [f"| {' | '.join(map(str.ljust, row, widths))} |" for row in rows]
    return [head, f"|{'|'.join('-' * (width + 2) for width in widths)}|", *body]


def _row(check: AnyCheck, assurance: str) -> tuple[str, ...]:
    outcome = str(check.outcome)
    if outcome == "pass" and assurance != "proved":
        outcome = "unproved"  # no green where nothing is proved
    stated = ""
    if isinstance(check, GuaranteeCheck):
        stated = f"{check.before.short} to {check.now.short}"
    mark = _MARKS.get(outcome, f"⚠️ {outcome}")
    return tuple(map(escape, (check.name, line_of(check), stated, mark)))


def escape(text: str) -> str:
    r"""Return a text that Markdown shows as it is, on one line.

    Example:
        >>> escape("a|b <script>")
        'a\\|b &lt;script&gt;'
    """
    plain = _SPACES.sub(" ", text).strip().replace("&", "&amp;").replace("<", "&lt;")
    escaped = _SIGNS.sub(lambda m: m[0] if m["plain"] else f"\\{m[0]}", plain)
    return _ITEM.sub(r"\1\\\2", escaped).replace(r"\>", "&gt;")


def write_summary(path: Path, text: str) -> None:
    """Write Markdown; GitHub's own summary of a step is added to, not replaced.

    Raises:
        StorageError: The folder cannot be written.
    """
    summary = os.environ.get(STEP_SUMMARY)
    if summary and Path(summary) == path:
        check_file(path)
        append_lines(path, [text])
    else:
        write_output(path, text.encode())
