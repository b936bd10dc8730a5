"""Who must not be answered is not, and what runs hold does nothing: by attacks."""

import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="the extra [serve] is not installed")

from privaudit import Auditor
from privaudit.auditing.storage.save import save_audit
from tests.served import TOKEN, Site, serving

HOSTILE = '"><script>hacked()</script><img src=x onerror=hacked()>'
REPORT = "/reports/mine/scores/page"
PAGES = (
    "/",
    "/runs/mine",
    "/reports/mine/scores",
    REPORT,
    "/compare?audit=mine/scores&audit=other/scores",
    "/together?audit=mine/scores&audit=other/scores",
    "/together/page?audit=mine/scores&audit=other/scores",
    "/tradeoff",
    "/assets/serve.css",
    "/assets/report.js",
)


class Marker:
    """What a pickle could do: leave a file."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.place,)


def save_scores(place: Path, shift: float, seed: int) -> None:
    """Save an audit of scores whose names are markup."""
    rng = np.random.default_rng(seed)
    everybody = np.arange(120)
    audit = Auditor.from_scores(
        rng.normal(shift, size=60),
        rng.normal(size=60),
        clients=[f"{HOSTILE} {n % 2}" for n in everybody],
        classes=[f"{HOSTILE} {n % 2}" for n in everybody],
        records=everybody,
        sampling="coin",
        attack=HOSTILE,
    )
    save_audit(audit, place)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs in a folder, a third beside it, and things that were planted."""
    place = tmp_path_factory.mktemp("served")
    save_scores(place / "runs" / "mine", 1.5, 0)
    save_scores(place / "runs" / "other", 0.2, 1)
    shutil.copytree(place / "runs" / "mine", place / "runs" / "broken")
    shutil.copytree(place / "runs" / "mine", place / "secret")
    (place / "runs" / HOSTILE.replace("/", "|")).mkdir()
    damaged = place / "runs" / HOSTILE.replace("/", "|") / "run.json"
    damaged.write_text(f'{{"config": "{HOSTILE}')
    mine = place / "runs" / "mine"
    plant = f"import pathlib; pathlib.Path({str(place / 'ran')!r}).touch()"
    for name in ("owner.py", "sitecustomize.py", "__init__.py", "scores.py"):
        (mine / name).write_text(plant)
    (mine / "model.pkl").write_bytes(pickle.dumps(Marker(place / "ran")))
    (mine / "audits" / "scores" / "report.html").write_text("planted")
    return place


@pytest.fixture(scope="module")
def site(place: Path) -> Iterator[Site]:
    with serving(place / "runs") as site:
        yield site.enter()


def test_without_the_cookie_nothing_is_answered(site: Site) -> None:
    for cookie in ("", "privaudit=1", site.cookie[:-1], f"{site.cookie}x", "\xff=\xe4"):
        for page in PAGES:
            answer = site.ask(page, Cookie=cookie)
            assert answer.status == 403, (cookie, page)
            assert "mine" not in answer.text


def test_the_token_opens_once(place: Path) -> None:
    with serving(place / "runs") as site:
        for wrong in ("", TOKEN[:-1], f"{TOKEN}x", "%C3%A4", "%00", "%ff"):
            assert site.ask(f"/?token={wrong}").status == 403
        assert site.ask(f"/?token={TOKEN}", method="HEAD").status == 403
        assert site.ask(f"/runs/mine?token={TOKEN}").status == 403
        response = site.ask(f"/?token={TOKEN}")
        given = response.headers["set-cookie"]
        assert {"HttpOnly", "Path=/", "SameSite=strict"} <= set(given.split("; "))
        assert TOKEN not in given + response.text
        again = site.ask(f"/?token={TOKEN}")
        assert (again.status, again.headers.get("set-cookie")) == (403, None)
        assert site.ask(PAGES[-1], Cookie=given.partition(";")[0]).status == 200
        assert site.ask(f"/?token={TOKEN}", Cookie=given).status == 200  # loaded again


@pytest.mark.parametrize(
    "host",
    [None, "", "evil.example", "127.0.0.1.evil.example", "localhost.evil", "[::1]:1"],
)
def test_a_name_that_was_bent_to_this_machine_is_refused(
    host: str | None, site: Site
) -> None:
    answer = site.ask("/", Host=host)
    assert answer.status in (400, 421)  # HTTP/1.1 without a Host is no request
    assert "mine" not in answer.text
    with_token = site.ask(f"/?token={TOKEN}", Host=host)
    assert "set-cookie" not in with_token.headers


def test_a_port_that_is_forwarded_is_served(site: Site) -> None:
    for host in ("localhost:9000", "127.0.0.1:80", "127.0.0.1"):
        assert site.ask("/", Host=host).status == 200


@pytest.mark.parametrize("origin", ["cross-site", "same-site"])
def test_another_page_in_the_same_browser_is_refused(origin: str, site: Site) -> None:
    """Cookies know no ports: one of 127.0.0.1:1 is same-site, and has the cookie."""
    assert site.ask("/", Sec_Fetch_Site=origin).status == 403
    assert site.ask("/assets/serve.js", Sec_Fetch_Site=origin).status == 403
    assert site.ask("/", Sec_Fetch_Site="same-origin").status == 200


def contents(place: Path) -> dict[str, tuple[int, int]]:
    found = {path: path.lstat() for path in place.rglob("*")}
    return {str(path): (at.st_mtime_ns, at.st_size) for path, at in found.items()}


def test_nothing_is_written_and_nothing_of_a_run_is_executed(
    site: Site, place: Path
) -> None:
    before = contents(place)
    for page in PAGES:
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert site.ask(page, method=method).status == 405
        assert site.ask(page).status == 200, page
    assert contents(place) == before
    assert not (place / "ran").exists()
    assert "planted" not in site.ask(REPORT).text


def test_what_was_planted_would_have_left_a_trace(place: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    pickle.loads(pickle.dumps(Marker(mark)))
    assert mark.exists()


UP = ("..", "%2e%2e", "..%2f..", "..%2fsecret", "%2e%2e%2fsecret", "..%5csecret", ".")


@pytest.mark.parametrize("up", [*UP, "secret", "%00", "a" * 5000])
def test_no_name_is_taken_for_a_path(up: str, site: Site, place: Path) -> None:
    outside = quote(str(place / "secret"), safe="")
    for name in (up, f"mine%2f..%2f{up}", outside):
        for page in (
            f"/runs/{name}",
            f"/reports/{name}/scores",
            f"/reports/{name}/scores/page",
            f"/reports/mine/{name}/page",
            f"/sweeps/{name}/page",
            f"/assets/{name}",
            f"/assets/{name}/page.py",
            f"/compare?audit={name}/scores&audit=mine/scores",
            f"/together/page?audit={name}/scores",
            f"/{name}/run.json",
        ):
            answer = site.ask(page)
            assert answer.status in (400, 404, 422), page
            assert "<svg" not in answer.text
    for raw in ("/../secret/run.json", "//etc/passwd", "/runs/../../secret/run.json"):
        assert site.ask(raw).status in (400, 404)


def test_texts_of_runs_are_text(site: Site) -> None:
    for page in PAGES[:8]:
        text = site.ask(page).text
        assert "<script>hacked" not in text, page
        assert "<img src=x" not in text, page
    for page in ("/", REPORT, PAGES[4]):
        assert "&lt;script&gt;hacked" in site.ask(page).text, page
    wrong = site.ask(f"/runs/{quote('<script>hacked()')}")
    assert (wrong.status, "<script>hacked" in wrong.text) == (404, False)


def test_pages_may_run_no_inline_script_and_reports_have_no_origin(site: Site) -> None:
    for page in PAGES:
        headers = site.ask(page).headers
        policy = dict(
            part.strip().split(" ", 1)
            for part in headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'"
        assert "unsafe" not in policy["script-src"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"
        framed = page.partition("?")[0].endswith("/page")
        assert policy["frame-ancestors"] == ("'self'" if framed else "'none'")
        assert policy.get("sandbox") == ("allow-scripts" if framed else None)


def test_damage_is_a_row_with_the_reason_and_never_an_error_of_the_server(
    site: Site, place: Path
) -> None:
    broken = place / "runs" / "broken"
    files = [path for path in broken.rglob("*") if path.is_file()]
    assert len(files) >= 4
    for path in files:
        whole = path.read_bytes()
        for damage in (whole[: len(whole) // 2], b'{"config": 1}', None):
            path.unlink()
            if damage is not None:
                path.write_bytes(damage)
            response = site.ask("/")
            assert response.status == 200
            needed = path.name in ("run.json", "audit.json", "scores.npz", "ledger.npz")
            said = "Cannot be read</span>" in _row(response.text)
            assert said == (needed and (damage is not None or path.name != "run.json"))
            for page in ("/runs/broken", "/reports/broken/scores/page"):
                assert site.ask(page).status in (200, 404, 422), (path, damage, page)
        path.write_bytes(whole)
    assert "Cannot be read" not in _row(site.ask("/").text)
    assert site.ask("/reports/broken/scores/page").status == 200


def _row(text: str) -> str:
    """Return the row of the run that is damaged, from the page of all."""
    rows = [row for row in text.split("<tr")[1:] if "broken" in row.partition(">")[0]]
    return rows[0] if rows else ""
