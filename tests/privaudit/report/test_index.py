import re
from dataclasses import replace
from pathlib import Path

import pytest

from privaudit.auditing.audit import Audit
from privaudit.core.errors import ConfigError
from privaudit.report.index import IndexEntry, check_place, write_index
from tests.privaudit.made_audits import make_audit, make_claimed
from tests.privaudit.report.test_page import Page


def written(audits: list[Audit], folder: Path) -> str:
    entries = [
        IndexEntry(audit, folder / audit.run.name / "audits" / "s" / "report.html")
        for audit in audits
    ]
    return write_index(folder, entries).read_text()


@pytest.fixture
def audits() -> list[Audit]:
    return [
        make_audit("zero-shot", shift=0.0, seed=2, candidates=700),
        make_audit("promptfl", shift=0.6),
        make_audit("coop", shift=0.1, candidates=30),
        make_audit("dp-fpl", shift=0.9, epsilon=8.0),
    ]


def test_leaks_come_first_then_what_is_open_each_by_auroc(
    audits: list[Audit], tmp_path: Path
) -> None:
    html = written(audits, tmp_path)
    names = re.findall(r'<th scope="row" data-sort="([^"]*)"', html)
    assert names == ["dp-fpl", "promptfl", "coop", "zero-shot"]
    summary = "Of 4 audits of 4 runs, 2 leak, no leak found in 1, 1 undecided."
    assert summary in Page(html).words


def test_a_row_has_its_numbers_and_a_relative_link(
    audits: list[Audit], tmp_path: Path
) -> None:
    html, audit = written(audits, tmp_path), audits[1]
    text = Page(html).words
    for number in (audit.auroc, audit.measured_utility.local):
        assert f"{number.value:.3f}[{number.low:.3f}, {number.high:.3f}]" in text
    assert f"n = {audit.auroc.n[0]} + {audit.auroc.n[1]}" in text
    assert f'href="{audit.run.name}/audits/s/report.html"' in html
    assert "best of 2, p &lt; 0.001" in html


def test_the_strongest_is_picked_and_says_of_how_many(tmp_path: Path) -> None:
    quiet, loud = make_audit(shift=0.0, seed=2, candidates=700), make_audit(shift=1.0)
    audit = replace(quiet, results={**quiet.results, "lira": loud.headline})
    text = Page(written([audit], tmp_path)).words
    assert "▲ Another attack shows a leak" in text
    assert "best of 3, p < 0.001" in text


def test_claims_stand_beside_verdicts_and_what_is_not_refuted_is_not_green(
    tmp_path: Path,
) -> None:
    html = written([make_claimed(0.1, claimed=1.0)], tmp_path)
    assert '<span class="badge open">' in html
    assert '<span class="badge good">' not in html
    assert "? Promise not proved" in Page(html).words


def test_names_are_escaped(tmp_path: Path) -> None:
    sly = '"><img src=x onerror=alert(1)>'
    page = Page(written([make_audit(sly, rate=sly, attacks=(sly,))], tmp_path))
    assert "img" not in page.tags


def test_a_page_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    check_place(tmp_path)
    written([make_audit()], tmp_path)
    check_place(tmp_path)
    (tmp_path / "index.html").write_text("<html>my home page</html>")
    with pytest.raises(ConfigError, match="did not write"):
        check_place(tmp_path)


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    written([make_audit()], tmp_path)
    assert (tmp_path / "index.html").stat().st_mode & 0o777 == 0o600
