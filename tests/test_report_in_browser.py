"""The report in a real browser: nothing asked for, tabs, values, phone, dark, paper."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from privaudit.auditing.auditor import Auditor
from privaudit.auditing.stored_audit import save_audit
from privaudit.evaluation.tradeoff.result import SweepPoint, judge_sweep
from privaudit.report.index import rewrite_reports
from privaudit.report.page import write_report
from privaudit.report.sweep import write_sweep
from privaudit.runs.run import load_run
from tests.browser import Chromium, find_axe, find_chromium, started
from tests.conftest import common_cache
from tests.privaudit.made_audits import make_claimed, make_watched, make_writer
from tests.privaudit.report.test_first_screen import QUESTIONS

pytestmark = pytest.mark.slow  # trains, attacks, and starts a browser, once
END, RIGHT, ESCAPE = ("End", 35), ("ArrowRight", 39), ("Escape", 27)
PAGES = ("index", "report", "together", "made", "sweep")
SIZES = ((390, 844), (820, 1180), (1440, 900))
TABS = ["Rounds", "Attacks", "Clients", "Classes", "Records", "ROC"]
NAMES_OF_TABS = "[...document.querySelectorAll('[role=tab]')].map(t => t.textContent)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with started(find_chromium(), tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def pages(originals: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An index over a run that was attacked in two ways, and over a sweep."""
    runs = tmp_path_factory.mktemp("with spaces & signs")
    shutil.copytree(originals / "whole", runs / "whole")
    with common_cache(tmp_path_factory):
        auditor = Auditor(load_run(runs / "whole"))
        watched = auditor.attack("update-watch", shadows=0)
        save_audit(watched)
        save_audit(auditor.attack("prompt-release", shadows=0))
    shutil.copytree(runs / "whole", runs / "again")
    point = SweepPoint.of(watched, "promptfl", None)
    write_sweep(judge_sweep([point]), runs / "tradeoff")
    write_report([make_watched(), make_writer(), make_claimed()], runs / "made.html")
    return {
        "index": rewrite_reports([str(runs)]),
        "report": runs / "whole" / "audits" / "update-watch" / "report.html",
        "together": runs / "report-update-watch.html",
        "made": runs / "made.html",
        "sweep": runs / "tradeoff" / "sweep.html",
    }


@pytest.fixture
def screen(browser: Chromium) -> Chromium:
    """The browser as on a desk, by day."""
    browser.size(1100, 900)
    browser.media()
    return browser


@pytest.fixture
def report(screen: Chromium, pages: dict[str, Path]) -> Chromium:
    """The browser with a run's report open."""
    screen.open(pages["report"])
    return screen


def middle(browser: Chromium, element: str) -> tuple[float, float]:
    """Return where an element's middle is in the window, after scrolling to it."""
    browser.ask(f"{element}.scrollIntoView({{block: 'center'}})")
    browser.ask(  # scrolling is reported in the next frame
        "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )
    place: dict[str, Any] = browser.ask(
        f"(() => {{ const at = {element}.getClientRects()[0];"  # of a link its first line
        "return {x: at.x + at.width / 2, y: at.y + at.height / 2}; })()"
    )
    return place["x"], place["y"]


def open_panels(browser: Chromium) -> list[str]:
    found = "[...document.querySelectorAll('.panel')]"
    shown: list[str] = browser.ask(
        f"{found}.filter(p => p.getClientRects().length).map(p => p.dataset.tab)"
    )
    return shown


@pytest.mark.parametrize("name", PAGES)
def test_pages_open_from_a_file_without_a_request_or_a_complaint(
    name: str, screen: Chromium, pages: dict[str, Path]
) -> None:
    screen.open(pages[name])
    assert screen.requests == [pages[name].as_uri()]
    assert screen.complaints == []
    assert screen.ask("document.querySelectorAll('h1').length") == 1


def test_the_page_may_not_ask_for_anything_even_if_it_tried(report: Chromium) -> None:
    """That the test before would notice: an outside picture is refused and reported."""
    report.ask(
        "document.body.append(Object.assign(new Image, {src: 'http://[::1]/a'}))"
    )
    report.wait("document.querySelector('body > img').complete")
    assert any(
        "Content Security Policy" in complaint for complaint in report.complaints
    )


def test_tabs_switch_by_pointer_and_by_keyboard(report: Chromium) -> None:
    assert report.ask(NAMES_OF_TABS) == TABS
    assert open_panels(report) == ["Rounds"]
    report.click(*middle(report, "document.querySelectorAll('[role=tab]')[2]"))
    assert open_panels(report) == ["Clients"]
    report.press(*RIGHT)
    assert open_panels(report) == ["Classes"]
    report.press(*END)
    assert open_panels(report) == ["ROC"]
    report.press(*RIGHT)  # round to the first
    assert open_panels(report) == ["Rounds"]
    chosen = "document.querySelectorAll('[role=tab][aria-selected=true]')"
    assert report.ask(f"{chosen}.length") == 1
    assert report.ask("document.activeElement.textContent") == "Rounds"
    controlled = f"document.getElementById({chosen}[0].getAttribute('aria-controls'))"
    assert report.ask(f"{controlled}.dataset.tab") == "Rounds"


def test_a_link_into_a_closed_panel_opens_it(
    screen: Chromium, pages: dict[str, Path]
) -> None:
    screen.open(pages["index"])  # else only the fragment would change
    screen.open(pages["report"], "#panel-classes")
    assert open_panels(screen) == ["Classes"]


def test_values_show_under_the_pointer_and_go_with_it(report: Chromium) -> None:
    value = "document.querySelector('figure svg .value')"
    report.move_to(*middle(report, value))
    report.wait("!document.querySelector('.tip').hidden")
    assert report.ask(f"getComputedStyle({value}.querySelector('use')).fillOpacity > 0")
    tip = report.ask("document.querySelector('.tip').textContent")
    assert re.search(r"AUROC 0\.\d+ \[0\.\d+, 0\.\d+\], n = \d+ \+ \d+", tip)
    assert tip == report.ask(f"{value}.getAttribute('aria-label')")
    report.move_to(1, 1)
    report.wait("document.querySelector('.tip').hidden")


def test_values_are_reached_by_keyboard(report: Chromium) -> None:
    values = "document.querySelectorAll('.panel:not(.off) svg:not(.narrow) .value')"
    count = report.ask(f"{values}.length")
    assert count >= 2
    stops = f"[...{values}].filter(v => v.getAttribute('tabindex') === '0').length"
    assert report.ask(stops) == 1
    report.ask(f"{values}[0].focus()")
    first = report.ask("document.querySelector('.tip').textContent")
    report.press(*RIGHT)
    second = report.ask("document.querySelector('.tip').textContent")
    assert (first != second, report.ask(stops)) == (True, 1)
    assert second == report.ask(f"{values}[1].getAttribute('aria-label')")
    report.press(*ESCAPE)
    assert report.ask("document.querySelector('.tip').hidden")


def test_terms_lead_to_the_glossary(report: Chromium) -> None:
    missing = report.ask(
        "[...document.querySelectorAll('a.term')].map(a => a.hash.slice(1))"
        ".filter(id => !document.querySelector(`#glossary dt[id='${id}']`))"
    )
    assert missing == []
    report.click(*middle(report, "document.querySelector('a.term')"))
    report.wait("document.querySelector('dt:target') !== null")


def test_the_index_is_sorted_by_its_heads_and_leads_to_reports(
    screen: Chromium, pages: dict[str, Path]
) -> None:
    screen.open(pages["index"])
    order = (
        "[...document.querySelectorAll('tbody tr')].map(r => +r.cells[2].dataset.sort)"
    )
    x, y = middle(screen, "document.querySelectorAll('th button')[2]")
    screen.click(x, y)
    assert screen.ask(order) == sorted(screen.ask(order), reverse=True)
    screen.click(x, y)
    assert screen.ask(order) == sorted(screen.ask(order))
    assert screen.ask("document.querySelectorAll('[aria-sort=ascending]').length") == 1
    screen.click(*middle(screen, "document.querySelector('tbody a[href*=watch]')"))
    screen.wait("document.title.startsWith('Privacy audit: ')")


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("name", PAGES)
def test_no_page_is_wider_than_any_screen(
    name: str, width: int, height: int, screen: Chromium, pages: dict[str, Path]
) -> None:
    screen.size(width, height, mobile=width == SIZES[0][0])
    screen.open(pages[name])
    assert screen.ask("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("name", ["report", "together"])
def test_five_questions_are_answered_on_the_first_screen(
    name: str, width: int, height: int, screen: Chromium, pages: dict[str, Path]
) -> None:
    screen.size(width, height, mobile=width == SIZES[0][0])
    screen.open(pages[name])
    visible = (
        "[...document.querySelectorAll('.answers > div')].filter(d => "
        "d.getBoundingClientRect().bottom <= innerHeight && d.innerText.length > 30)"
        ".map(d => d.querySelector('dt').textContent)"
    )
    assert screen.ask(visible) == QUESTIONS
    badges = "[...document.querySelectorAll('.answers .badge')].map(b => b.innerText)"
    leak, promise = screen.ask(badges)
    assert leak[0] in "▲?○"
    assert promise == "∅ No promise made"
    facts = screen.ask("document.querySelector('.facts').innerText")
    for part in ("Run", "Data", "Model", "Audited", "digits"):
        assert part in facts
    assert re.search(r"\d{4}-\d\d-\d\d", facts)


def test_what_does_not_fit_a_phone_says_that_it_scrolls(
    screen: Chromium, pages: dict[str, Path]
) -> None:
    screen.size(390, 844, mobile=True)
    screen.open(pages["together"])
    silent = (
        "[...document.querySelectorAll('figure, .scroll')].filter(one => "
        "one.scrollWidth > one.clientWidth + 1 && "
        "one.previousElementSibling.className !== 'sideways').length"
    )
    assert screen.ask(silent) == 0
    for tab in range(len(TABS)):  # what a tab shows says so, too
        screen.ask(f"document.querySelectorAll('[role=tab]')[{tab}].click()")
        screen.wait(f"{silent} === 0")
    assert screen.ask("document.querySelectorAll('.sideways').length") > 1


def test_a_phone_shows_every_point_without_scrolling_but_for_the_roc_curve(
    screen: Chromium, pages: dict[str, Path]
) -> None:
    screen.size(390, 844, mobile=True)
    screen.open(pages["together"])
    seen = (
        "[...document.querySelectorAll('figure .value')].map(v => "
        "v.getBoundingClientRect()).filter(at => at.width)"
        ".map(at => at.left >= 0 && at.right <= innerWidth)"
    )
    for tab, name in enumerate(screen.ask(NAMES_OF_TABS)):
        screen.ask(f"document.querySelectorAll('[role=tab]')[{tab}].click()")
        shown = screen.ask(seen)
        assert len(shown) > 2
        assert all(shown) or name == "ROC", name
    for width, narrow in ((390, True), (820, False)):
        screen.size(width, 844)
        drawn = (
            "[...document.querySelectorAll('figure svg')].filter(s => s.clientWidth)"
        )
        kinds = screen.ask(f"{drawn}.map(s => s.classList.contains('narrow'))")
        assert kinds[0] is narrow


def test_a_row_of_the_table_leads_to_its_finding_and_opens_it(
    screen: Chromium, pages: dict[str, Path]
) -> None:
    screen.size(1440, 900)
    screen.open(pages["together"])
    closed = "document.querySelectorAll('details.card:not([open])').length"
    assert screen.ask(closed) == 2
    first = "document.querySelector('.together tbody a').getBoundingClientRect()"
    assert screen.ask(f"{first}.bottom <= innerHeight")  # seen without scrolling
    screen.ask("document.querySelector('.together tbody a').click()")
    screen.wait(f"{closed} === 1")
    assert screen.ask("document.querySelector('#run-1').open")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_no_violation(
    name: str, dark: bool, screen: Chromium, pages: dict[str, Path]
) -> None:
    axe = find_axe()
    for width, height in SIZES:
        screen.size(width, height, mobile=width == SIZES[0][0])
        screen.media(dark=dark)
        screen.open(pages[name])
        assert screen.violations(axe) == [], (width, dark)


def test_in_the_dark_the_page_is_dark_and_its_words_are_light(report: Chromium) -> None:
    def brightness(of: str) -> int:
        colour = report.ask(f"getComputedStyle(document.body).{of}")
        return sum(map(int, re.findall(r"\d+", colour)[:3]))

    assert brightness("backgroundColor") > 700 > 200 > brightness("color")
    report.media(dark=True)
    assert brightness("backgroundColor") < 200 < 600 < brightness("color")


def test_without_scripts_every_panel_is_open(
    screen: Chromium, pages: dict[str, Path]
) -> None:
    screen.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        screen.open(pages["report"])
        assert open_panels(screen) == TABS
        assert screen.ask("document.querySelector('[role=tablist]')") is None
        assert screen.ask("document.querySelectorAll('svg .value > title').length") > 5
    finally:
        screen.send("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.parametrize("name", PAGES)
def test_it_prints_on_paper(
    name: str, screen: Chromium, pages: dict[str, Path]
) -> None:
    screen.open(pages[name])
    printed = screen.as_pdf()
    assert printed.startswith(b"%PDF-")
    count = len(re.findall(rb"/Type\s*/Page\b", printed))
    assert count >= (4 if name in ("report", "together", "made") else 1)
    assert len(printed) > 20_000


def test_on_paper_every_panel_and_every_table_stands_open(report: Chromium) -> None:
    report.media("print")
    assert open_panels(report) == TABS
    report.ask("dispatchEvent(new Event('beforeprint'))")
    assert report.ask("document.querySelectorAll('details:not([open])').length") == 0
    assert report.ask("document.querySelector('[role=tablist]').offsetHeight") == 0
