"""``privaudit serve``: what it shows, and whom it refuses."""

import logging
import os
import pickle
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote

import numpy as np
import pytest

from privaudit import Audit, Auditor
from privaudit.auditing.stored_audit import save_audit
from privaudit_tools.serve.pages import ServedAudit, ServedRuns, _data_names, run_page
from tests.conftest import Cli
from tests.tools.serve.site import TOKEN, Site, serving

uvicorn = pytest.importorskip("uvicorn", reason="the extra [serve] is not installed")

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


NAME = "mine"


@pytest.fixture
def served(tmp_path: Path) -> ServedRuns:
    save_scores(tmp_path / NAME, 1.5, 0)
    return ServedRuns(tmp_path)


def page_of(
    served: ServedRuns, lines: list[dict[str, Any]], patch: pytest.MonkeyPatch
) -> str:
    patch.setattr(type(served.load(NAME)), "metrics", property(lambda run: lines))
    return run_page(served, NAME)


def test_what_a_round_does_not_say_is_a_dash(
    served: ServedRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    for line in ({"round": 0}, {"round": 0, "seconds": None, "training_loss": 0.5}):
        page = page_of(served, [line], monkeypatch)
        assert page.count("<td>\N{EN DASH}</td>") >= 4
        assert page.count("<section") == page.count("</section>")
        assert "<h2>Rounds</h2>" in page
    page = page_of(
        served, [{"round": 0, "seconds": 1.25, "bytes_up": 1000}], monkeypatch
    )
    assert "<td>1,000</td>" in page
    empty = page_of(served, [], monkeypatch)
    assert empty.count("<section") == empty.count("</section>")
    assert "scores, and no rounds" in empty
    monkeypatch.setattr(
        "privaudit_tools.serve.pages.ScoredRun", Marker
    )  # as if trained
    assert "No round is finished yet." in page_of(served, [], monkeypatch)


def test_a_picture_follows_numbers_that_change_in_as_many_rounds(
    served: ServedRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = (
        page_of(served, [{"round": 0, "training_loss": loss}], monkeypatch)
        for loss in (0.5, 0.25)
    )
    assert "Training loss 0.5 in round 1" in first
    assert "Training loss 0.25 in round 1" in other


def test_data_sets_of_one_name_are_told_apart() -> None:
    def served(digest: str, classes: str) -> ServedAudit:
        config = SimpleNamespace(dataset="bank", data="b.npz", classes=classes)
        run = SimpleNamespace(config=config, header={"data_hash": digest})
        utility = SimpleNamespace(metric="accuracy")
        audit = Mock(spec=Audit, run=run, measured_utility=utility)
        return ServedAudit("run", "scenario", audit)

    both = [served("a", ""), served("b", "cat,dog")]
    assert _data_names(both[:1]) == ["bank: accuracy"]
    assert _data_names(both)[1] == "bank (b.npz, cat,dog, b): accuracy"


def test_an_audit_carries_the_stamp_of_the_files_it_was_read_from(
    served: ServedRuns,
) -> None:
    first = served.audit(NAME, "scores")
    assert first.stamp == served.audit(NAME, "scores").stamp != ()
    stamps = {first.stamp}
    for file in ("metrics.jsonl", "audits/scores/audit.json"):
        (served.folder / NAME / file).touch()
        os.utime(served.folder / NAME / file, ns=(1, 1))
        stamps.add(served.audit(NAME, "scores").stamp)
    assert len(stamps) == 3


def test_the_address_is_printed_once_and_is_of_this_machine_alone(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: list[tuple[str, int]] = []

    def end(self: object, sockets: list[socket.socket]) -> None:
        bound.extend(one.getsockname() for one in sockets)
        raise KeyboardInterrupt

    monkeypatch.setattr(uvicorn.Server, "run", end)
    code, out, err = cli("serve", tmp_path, "--port", 0)
    assert (code, err) == (0, "")
    ((host, port),) = bound
    (url,) = re.findall(r"http://\S+", out)
    assert host == "127.0.0.1"
    assert re.fullmatch(rf"http://127\.0\.0\.1:{port}/\?token=[\w-]{{43}}", url)
    assert cli("serve", tmp_path, "--port", 0)[1] != out


def test_what_cannot_be_served_is_said_in_a_line(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "There is no folder" in cli.refused("serve", tmp_path / "nowhere")
    assert "is a store" in cli.refused("serve", "memory://runs")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        if "uvicorn" in sys.modules:
            words = ("serve", tmp_path, "--port", taken.getsockname()[1])
            assert "Choose another --port" in cli.refused(*words)
    for name in list(sys.modules):
        if name.startswith("privaudit_tools.serve."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)  # as if it were not there
    assert "pip install './tools[serve]'" in cli.refused("serve", tmp_path)


def test_log_handlers_of_the_process_stay_open(tmp_path: Path) -> None:
    from privaudit_tools.serve.app import make_server

    closed: list[str] = []

    class Handler(logging.Handler):
        def close(self) -> None:
            closed.append("a handler that others write to")

    handler = Handler()
    make_server(tmp_path, "token", 80)
    assert not closed
    logging.Handler.close(handler)
