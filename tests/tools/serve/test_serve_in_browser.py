"""``privaudit serve`` in a real browser: two clicks, filters, a live run, a phone."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="the extra [serve] is not installed")

from privaudit.auditing.auditor import Auditor
from privaudit.auditing.stored_audit import save_audit
from privaudit.runs.run import load_run
from privaudit.runs.run_folder import lock_run
from tests.browser import Chromium, find_axe, find_chromium, started
from tests.conftest import common_cache
from tests.tools.serve.site import TOKEN, Site, serving

pytestmark = pytest.mark.slow  # trains, attacks, and starts a browser, once
PAGES = (
    "/",
    "/runs/cut",
    "/reports/whole/prompt-release",
    "/compare?audit=whole/prompt-release&audit=again/prompt-release",
    "/tradeoff",
)
SIZES = (390, 820, 1440)
BOXES = "document.querySelectorAll('input[name=audit]')"


@pytest.fixture(scope="module")
def runs(originals: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An audited run twice, one that stopped, and one whose name is markup."""
    runs = tmp_path_factory.mktemp("runs")
    shutil.copytree(originals / "whole", runs / "whole")
    shutil.copytree(originals / "cut", runs / "cut")
    with common_cache(tmp_path_factory):
        save_audit(
            Auditor(load_run(runs / "whole")).attack("prompt-release", shadows=0)
        )
    shutil.copytree(runs / "whole", runs / "again")
    hostile = runs / "<img src=x onerror=document.title='hacked'>"
    hostile.mkdir()
    (hostile / "run.json").write_text("<script>document.title='hacked'</script>")
    return runs


@pytest.fixture(scope="module")
def site(runs: Path) -> Iterator[Site]:
    with serving(runs) as site:
        yield site


@pytest.fixture(scope="module")
def screen(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """A browser that has entered."""
    with started(find_chromium(), tmp_path_factory.mktemp("profile")) as found:
        found.visit(f"{site.url}/?token={TOKEN}")
        found.wait("document.title.startsWith('Runs')")
        assert found.ask("location.href") == f"{site.url}/"  # the token is gone
        assert found.complaints == []
        yield found


def test_pages_open_without_a_complaint_and_fit_every_screen(
    screen: Chromium, site: Site
) -> None:
    for page in PAGES:
        screen.visit(site.url + page)
        assert screen.complaints == [], page
        assert screen.ask("document.querySelectorAll('nav a').length") == 2
        assert {one.startswith(f"{site.url}/") for one in screen.requests} == {True}
        for width in SIZES:
            screen.size(width, 844, mobile=width == SIZES[0])
            wide = "document.documentElement.scrollWidth <= innerWidth"
            assert screen.ask(wide), (page, width)
    assert "hacked" not in screen.ask("document.title")


def test_axe_finds_no_violation(screen: Chromium, site: Site) -> None:
    axe = find_axe()
    for page in PAGES:
        for width in SIZES:
            screen.size(width, 844, mobile=width == SIZES[0])
            screen.visit(site.url + page)
            assert screen.violations(axe) == [], (page, width)


def test_two_clicks_compare_two_runs(screen: Chromium, site: Site) -> None:
    screen.visit(site.url)
    assert screen.ask(f"{BOXES}.length") == 2
    screen.ask(f"{BOXES}[0].click()")
    assert "Tick another" in screen.ask(
        "document.querySelector('[role=status]').innerText"
    )
    screen.ask(f"{BOXES}[1].click()")
    screen.wait("document.title.includes(' and ') && document.readyState == 'complete'")
    assert screen.ask("document.querySelector('tbody td:nth-child(4)').innerText") == (
        "+0.000\n[0.000, 0.000]"
    ) or "0.000" in screen.ask("document.querySelector('tbody').innerText")
    assert screen.ask("document.querySelectorAll('tbody').length") == 2


def test_the_table_is_sorted_by_its_heads(screen: Chromium, site: Site) -> None:
    screen.visit(site.url)
    runs = "[...document.querySelectorAll('tbody tr')].map(r => r.cells[0].innerText)"
    before = screen.ask(runs)
    screen.ask("document.querySelector('thead th button').click()")
    assert screen.ask(runs) != before
    assert sorted(screen.ask(runs)) == sorted(before)
    assert len(before) == 4


def test_a_filter_takes_trainers_out_of_the_plane(screen: Chromium, site: Site) -> None:
    screen.visit(f"{site.url}/tradeoff")
    points = "document.querySelectorAll('figure svg:not(.narrow) .value').length"
    assert screen.ask(points) == 2
    assert screen.ask("document.querySelector('select').value") == "prompt-release"
    asked = f"{site.url}/tradeoff?scenario=prompt-release"
    screen.ask("document.querySelector('input[name=trainer]').click()")
    screen.wait(f"location.href.startsWith('{asked}')")


def test_a_report_is_framed_without_rights(screen: Chromium, site: Site) -> None:
    screen.visit(f"{site.url}/reports/whole/prompt-release")
    frame = "document.querySelector('iframe')"
    assert screen.ask(f"{frame}.getAttribute('sandbox')") == "allow-scripts"
    assert screen.ask(f"{frame}.contentDocument") is None  # of another origin
    assert screen.ask(f"{frame}.clientHeight > innerHeight / 2")
    screen.visit(f"{site.url}/reports/whole/prompt-release/page")
    assert screen.complaints == []
    assert screen.ask("document.querySelectorAll('[role=tab]').length") >= 2
    assert screen.ask("origin") == "null"
    blocked = "(() => { try { return document.cookie } catch { return 'refused' } })()"
    assert screen.ask(blocked) == "refused"


def test_scripts_do_not_see_the_cookie(screen: Chromium, site: Site) -> None:
    screen.visit(site.url)
    assert screen.ask("document.cookie") == ""


def test_a_page_of_another_port_reads_and_frames_nothing(
    screen: Chromium, site: Site, tmp_path: Path
) -> None:
    """It is of the same site, so that the browser sends the cookie along."""
    page = tmp_path / "evil.html"
    tag = (
        f'<script src="{site.url}/assets/report.js" onload="got = 1" onerror="got = 0">'
    )
    page.write_text(f"<script>got = -1</script>{tag}</script>")
    screen.open(page)
    screen.wait("got !== -1")
    assert screen.ask("got") == 0
    screen.visit(
        f"{site.url}/assets/serve.css"
    )  # a page of this origin, without policy
    assert screen.ask("fetch('/assets/report.js').then(a => a.status)") == 200


def test_a_run_that_trains_is_followed(
    screen: Chromium, site: Site, runs: Path
) -> None:
    with lock_run(runs / "cut"):  # as whoever trains it holds it
        screen.visit(f"{site.url}/runs/cut")
        assert screen.ask("document.querySelectorAll('[data-live]').length") == 1
        assert screen.ask("document.querySelector('progress').position") == (
            pytest.approx(2 / 3)
        )
        assert screen.ask("document.querySelectorAll('tbody tr').length") == 2
        screen.visit(site.url)
        assert (
            screen.ask("document.querySelector('.badge.live').innerText")
            == "▸ Training"
        )
    screen.wait(
        "document.querySelector('[data-live]') === null"
    )  # asked again, by itself
    assert screen.ask("document.body.innerText").count("stopped, round 2 of 3") == 1
