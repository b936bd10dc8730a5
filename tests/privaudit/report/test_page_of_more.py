"""Pages with what single scenarios add: other attacks, rounds, epsilon from below."""

import io
import re
from dataclasses import replace
from html import unescape

from rich.console import Console

from privaudit.auditing.audit import Audit
from privaudit.report.decision.badges import Findings
from privaudit.report.page import render_report
from privaudit.report.tables.one_run_table import one_run_sentences
from privaudit.report.tables.parts import round_sentences, source_sentences
from privaudit.report.tables.table import print_table
from privaudit.statistics.verdict import judge_leak
from tests.privaudit.made_audits import make_audit, make_claimed, make_watched


def words(html: str) -> str:
    """Return the text of a page, without the signs that are escaped."""
    apart = r"<style>.*?</style>|<script>.*?</script>|<svg.*?</svg>"
    html = re.sub(r"</?a\b[^>]*>", "", html)
    text = re.sub(f"{apart}|<[^>]*>", " ", html, flags=re.DOTALL)
    return " ".join(unescape(text).split())


def printed(audit: Audit) -> str:
    buffer = io.StringIO()
    print_table([audit], Console(file=buffer, width=100))
    return " ".join(buffer.getvalue().split())


def quiet_but_for_lira() -> Audit:
    audit = make_audit(shift=0.0, seed=2, candidates=700)
    loud = make_audit(shift=1.0, candidates=700).headline
    audit = replace(
        audit, results={**audit.results, "lira": replace(loud, attack="lira")}
    )
    assert judge_leak(audit.auroc).kind == "no evidence"
    return audit


def test_no_leak_found_is_not_all_that_is_said_where_another_attack_shows_one() -> None:
    audit = quiet_but_for_lira()
    sentence = Findings(audit).others
    assert sentence.startswith("strongest of the 2 other attacks, lira 0.")
    assert f"promptfl: {sentence}" in printed(audit)
    page = words(render_report([audit]))
    assert "▲ Another attack shows a leak ∅ No promise made" in page
    assert sentence[1:] in page
    assert page.index(sentence[1:]) < page.index("Figures")
    assert "picked as the strongest" in page


def test_the_summary_of_several_runs_counts_them_too() -> None:
    quiet = quiet_but_for_lira()
    page = words(render_report([quiet, make_audit("coop", shift=1.0)]))
    assert (
        "Of 2 runs, 1 leak, no leak found in 1. In 1 of the others, another attack "
        "shows a leak." in page
    )


def test_where_no_other_attack_shows_a_leak_none_is_mentioned() -> None:
    audit = make_audit(shift=0.0, seed=2)
    assert Findings(audit).others == ""
    assert "other attack" not in printed(audit)
    assert "Another attack shows" not in render_report([audit])


def test_rounds_and_sources_stand_on_the_page_and_in_the_terminal() -> None:
    audit = make_watched()
    html = render_report([audit])
    for sentence in (*round_sentences(audit), *source_sentences(audit)):
        assert sentence in printed(audit)
        assert sentence[1:] in words(html)
    assert 'aria-label="AUROC by round with intervals. promptfl' in html
    assert "Leakage by round, source inference" in html


def test_a_claim_is_judged_on_the_page_and_in_the_terminal() -> None:
    audit = make_claimed(2.0, claimed=0.4)
    html = render_report([audit])
    verdict, canaries = one_run_sentences(audit)
    assert f"dp-fpl: {verdict}" in printed(audit)
    assert verdict in words(html)
    assert canaries in words(html)
    assert "✕ Promise refuted" in words(html)
    assert "Lower bounds on ε from one run" in html
    assert html.index("Epsilon from one run") < html.index("Utility against leakage")


def test_the_summary_counts_claims() -> None:
    page = words(render_report([make_claimed(2.0, claimed=0.4), make_claimed(seed=3)]))
    assert "Claims on ε: 1 REFUTED, 1 UNDERPOWERED." in page


def test_pages_without_such_questions_have_no_such_parts() -> None:
    html = render_report([make_audit()])
    for part in ("Lower bound on ε", "By round.", "Lower bounds on ε", "ε claim:"):
        assert part not in html
