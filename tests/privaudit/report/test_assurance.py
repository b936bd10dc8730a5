"""An attack that finds nothing is not good news where nothing is proved."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from privaudit.auditing.assurance import Assurance, assure
from privaudit.auditing.audit import Audit
from privaudit.auditing.parts.one_run import ONE_RUN
from privaudit.report.cards import card
from privaudit.report.decision.badges import (
    KEPT,
    NO_PROMISE,
    NOT_PROVED,
    REFUTED,
    Badge,
    Findings,
)
from privaudit.report.index import IndexEntry, write_index
from privaudit.report.markdown import gate_markdown
from privaudit.report.page import render_report
from privaudit.report.tables.table import print_table
from tests.privaudit.made_audits import make_audit, make_claimed
from tests.privaudit.report.gate_results import made
from tests.privaudit.report.test_page import Page

CASES = [
    ((None, None), "nothing proved", NO_PROMISE, "Nothing is claimed and nothing"),
    ((8.0, None), "claim not proved", NOT_PROVED, "proved is nothing"),
    ((8.0, 57.4), "claim not proved", NOT_PROVED, "proved is 57.4"),
    ((8.0, 7.95), "", KEPT, ""),
    ((None, 0.0), "", NO_PROMISE, ""),
    ((0.0, 0.0), "", KEPT, ""),
]


def quiet(epsilons: tuple[float | None, float | None]) -> Audit:
    return make_audit(shift=0.0, seed=2, candidates=700, epsilons=epsilons)


def index(audit: Audit, folder: Path) -> str:
    page = folder / "audits" / "report.html"
    return write_index(folder, [IndexEntry(audit, page)]).read_text()


@pytest.mark.parametrize(("epsilons", "short", "promise", "says"), CASES)
def test_green_is_for_a_proof_and_the_rest_is_followed_by_what_is_missing(
    tmp_path: Path,
    epsilons: tuple[float | None, float | None],
    short: str,
    promise: Badge,
    says: str,
) -> None:
    audit = quiet(epsilons)
    found = card(Findings(audit))
    leak = found["leak"]
    assert (leak.text, leak.kind) == ("No leak found", "neutral" if short else "good")
    assert found["promise"] == promise
    assert says in found["unproved"]
    assert bool(says) == bool(found["unproved"])
    row = index(audit, tmp_path)
    assert f"{leak.sign} No leak found" in Page(row).words
    assert f"{promise.sign} {promise.text}" in Page(row).words
    assert ('<span class="badge good">' in row) == (not short)
    buffer = io.StringIO()
    print_table([audit], Console(file=buffer, width=200))
    lines = [line for line in buffer.getvalue().splitlines() if "No leak found" in line]
    assert len(lines) == 1
    assert (short in buffer.getvalue()) if short else True


def test_a_refuted_claim_is_an_alarm_whatever_the_attack_says() -> None:
    audit = make_claimed(3.0, claimed=1.0)
    found = audit.part(ONE_RUN)
    assert found is not None
    assert found.verdict.kind == "REFUTED"
    shown = card(Findings(audit))
    assert shown["promise"] == REFUTED
    assert shown["leak"].kind != "good"
    assert audit.assurance.kind == "refuted"


def test_no_badge_but_a_proofs_is_green_and_none_is_colour_alone() -> None:
    page = render_report([quiet((8.0, None))])
    words = Page(page).words
    assert "○ No leak found ? Promise not proved" in words
    assert "No guarantee. The claimed epsilon of 8 is not proved" in words
    assert '<span class="badge good">' not in page
    colours = dict(
        re.findall(r"\.badge\.(\w+) \{ border(?:-color)?: .*?var\(--(\w+)\)", page)
    )
    assert colours == {"alarm": "alarm", "good": "good", "open": "open"}


def test_a_leak_stays_a_leak() -> None:
    assert card(Findings(make_audit(shift=1.0)))["leak"] == Badge("Leaks", "alarm", "▲")


def test_noise_of_the_seed_is_no_proof() -> None:
    certificate = {"epsilon": 7.9, "randomness": "system"}
    assert assure(8.0, certificate, refuted=False).kind == "proved"
    found = assure(8.0, {**certificate, "randomness": "seed"}, refuted=False)
    assert (found.kind, found.short) == ("unproved", "not private")
    assert assure(8.0, certificate, refuted=True).kind == "refuted"


def test_a_gate_that_passes_has_no_green_mark_where_nothing_is_proved() -> None:
    result = made(same=0.0)
    assert "✅" in gate_markdown(result)
    bare = replace(result, assurance=Assurance("unproved", "nothing proved", "x 8.25"))
    text = gate_markdown(bare)
    assert "✅" not in text
    assert "Nothing proved." in text
    assert "❌ regression" in text
