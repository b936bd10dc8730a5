"""What canaries of one run show about epsilon, in words and as a table."""

from markupsafe import Markup

from privaudit.auditing.audit import Audit
from privaudit.auditing.parts.one_run import ONE_RUN
from privaudit.core.formatting import percent, small
from privaudit.report.report_data import ReportData
from privaudit.report.wording import TableCell, TableRows

_WHOLE = Markup('<span class="whole">{}</span>')


def bound_rows(data: ReportData) -> TableRows:
    """Return every lower bound of each run, the one named beforehand first."""
    return [
        (
            one.label,
            TableCell(bound.method, note="named beforehand" * (bound is found.bound)),
            f"{bound.value:.2f}",
            f"{bound.ceiling:.2f}",
            percent(bound.confidence),
            _WHOLE.format(small(bound.delta)),
            _WHOLE.format(f"{bound.n[0]} + {bound.n[1]}"),
            "any" if bound.can_refute else "of the assumed form; refutes nothing",
        )
        for one in data.runs
        if (found := one.audit.part(ONE_RUN))
        for bound in (found.bound, *found.others)
    ]


def claim_kind(audit: Audit) -> str:
    """Return the verdict on the claimed epsilon; nothing where that was not asked."""
    one_run = audit.part(ONE_RUN)
    return one_run.verdict.kind if one_run else ""


def one_run_sentences(audit: Audit) -> list[str]:
    """Return the verdict on the claim, and what the canaries were."""
    one_run = audit.part(ONE_RUN)
    if one_run is None:
        return []
    return [
        one_run.verdict.sentence,
        f"Canaries: {one_run.canaries}. Scored by: {one_run.scored_by}.",
    ]
