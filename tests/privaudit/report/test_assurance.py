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
from privaudit.report.index import IndexEntry, write_index
from privaudit.report.markdown import gate_markdown
from privaudit.report.page import render_report
from privaudit.report.tables.table import print_table
from tests.privaudit.made_audits import make_audit, make_claimed
from tests.privaudit.report.gate_results import made
from tests.privaudit.report.test_page import Page

GREEN = "no-evidence"
CASES = [
    ((None, None), "unproved", "nothing proved", "Nothing is claimed and nothing"),
    ((8.0, None), "unproved", "claim not proved", "proved is nothing"),
    ((8.0, 57.4), "unproved", "claim not proved", "proved is 57.4"),
    ((8.0, 7.95), GREEN, "", ""),
    ((None, 0.0), GREEN, "", ""),
    ((0.0, 0.0), GREEN, "", ""),
]


def quiet(epsilons: tuple[float | None, float | None]) -> Audit:
    return make_audit(shift=0.0, seed=2, candidates=700, epsilons=epsilons)


def index(audit: Audit, folder: Path) -> str:
    page = folder / "audits" / "report.html"
    return write_index(folder, [IndexEntry(audit, page)]).read_text()


@pytest.mark.parametrize(("epsilons", "kind", "short", "says"), CASES)
def test_green_is_for_a_proof_and_the_rest_is_followed_by_what_is_missing(
    tmp_path: Path,
    epsilons: tuple[float | None, float | None],
    kind: str,
    short: str,
    says: str,
) -> None:
    audit = quiet(epsilons)
    heading = f"No leak found, {short}" if short else "No leak found"
    found = card("run", audit)
    assert (found["kind"], found["heading"]) == (kind, heading)
    assert says in found["unproved"]
    assert bool(says) == bool(found["unproved"])
    row = index(audit, tmp_path)
    assert f'<span class="{kind}"><span class="badge">' in row
    assert heading in Page(row).words
    assert bool(short) == ("No leak found," in Page(row).words)
    buffer = io.StringIO()
    print_table([audit], Console(file=buffer, width=200))
    lines = [line for line in buffer.getvalue().splitlines() if "No leak found" in line]
    assert len(lines) == 1
    assert (short in buffer.getvalue()) if short else True


def test_a_refuted_claim_is_red_whatever_the_attack_says(tmp_path: Path) -> None:
    audit = make_claimed(3.0, claimed=1.0)
    found = audit.part(ONE_RUN)
    assert found is not None
    assert found.verdict.kind == "REFUTED"
    shown = card("run", audit)
    if audit.headline.verdict.kind != "leaks":
        assert (shown["kind"], "claim refuted" in shown["heading"]) == ("refuted", True)
    assert audit.assurance.kind == "refuted"


def test_no_colour_but_a_proofs_is_green() -> None:
    page = render_report([quiet((8.0, None))])
    assert '<article class="card unproved">' in page
    words = Page(page).words
    assert "No leak found, claim not proved" in words
    assert "No guarantee. The claimed epsilon of 8 is not proved" in words
    colours = dict(
        re.findall(r"\.([\w-]+) \.badge \{ background: var\(--(\w+)\)", page)
    )
    green = colours.pop(GREEN)
    assert green not in colours.values()
    assert colours["refuted"] == colours["leaks"]
    borders = dict(
        re.findall(r"\.card\.([\w-]+) \{ border-left-color: var\(--(\w+)", page)
    )
    assert borders.pop(GREEN) == green
    assert green not in borders.values()


def test_a_leak_stays_a_leak() -> None:
    found = card("run", make_audit(shift=1.0))
    assert (found["kind"], found["heading"]) == ("leaks", "Leaks")


def test_noise_of_the_seed_is_no_proof() -> None:
    certificate = {"epsilon": 7.9, "randomness": "system"}
    assert assure(8.0, certificate, refuted=False).kind == "proved"
    found = assure(8.0, {**certificate, "randomness": "seed"}, refuted=False)
    assert (found.kind, found.short) == ("unproved", "not private")
    assert assure(8.0, certificate, refuted=True).kind == "refuted"


def test_a_gate_that_passes_has_no_green_mark_where_nothing_is_proved() -> None:
    result = made(same=0.0)
    assert "✅" in gate_markdown(result)
    bare = replace(result, assurance=Assurance("unproved", "x", "Nothing is proved."))
    text = gate_markdown(bare)
    assert "✅" not in text
    assert "Nothing is proved" in text
    assert "❌ regression" in text
