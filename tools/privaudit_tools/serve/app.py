"""Routes of ``privaudit serve``, and whom they answer: one browser that has the token.

All of them read, and none takes a path. What could go wrong, and what stops it:

- Another user of the machine asks: without the cookie nothing is answered. The token in
  the address works once, so one that is found in a history or a list of processes later
  does not.
- A page elsewhere asks through the browser: the cookie is SameSite=Strict, and what a
  browser says comes from another origin is refused, also from other ports.
- A name that suddenly means this machine (DNS rebinding): Host must be a loopback name.
- A text of a run that is markup: templates escape it, and no page runs inline script.
"""

import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from privaudit.core.errors import MissingFileError, PrivauditError, UnknownNameError
from privaudit.report.page_template import asset, page_policy
from privaudit_tools.serve import pages
from privaudit_tools.serve.pages import BROKEN, ServedRuns, error_text

_HOSTS = ("127.0.0.1", "localhost")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; frame-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_ENTER = (
    '<!doctype html><meta http-equiv="refresh" content="0; url=/"><a href="/">Go on</a>'
)
_CLOSED = (
    "This page needs the address that `privaudit serve` printed, which works once and in "
    "one browser. For a new one, start `privaudit serve` again.\n"
)


class Guard:
    """Answers nobody else, and sets the headers that keep a browser to its page.

    Args:
        app: The application that answers requests which are let through.
        token: In the first address; from then on a cookie of other content counts.
        port: In the cookie's name: browsers do not tell ports apart.
    """

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self._app = app
        self._token: str | None = token
        self._name, self._secret = f"privaudit-{port}", secrets.token_urlsafe(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        answer: ASGIApp = self._refused(request) or self._app

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await answer(scope, receive, guarded)

    def _refused(self, request: Request) -> Response | None:
        """Return what to say in place of a page; None where the page may be seen."""
        if request.headers.get("host", "").partition(":")[0] not in _HOSTS:
            return PlainTextResponse("This is not the host that was asked.\n", 421)
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("Nothing can be changed here.\n", 405)
        known = _same(request.cookies.get(self._name, ""), self._secret)
        if request.url.path == "/" and "token" in request.query_params:
            return self._entered(request, known)
        elsewhere = request.headers.get("sec-fetch-site", "none")
        if not known or elsewhere not in ("none", "same-origin"):
            return PlainTextResponse(_CLOSED, 403)
        return None

    def _entered(self, request: Request, known: bool) -> Response:
        """Give the cookie for the token, once.

        The page goes on by itself: after a redirect from elsewhere, such as a mail or a
        notebook, browsers would not send a Strict cookie.
        """
        right = _same(request.query_params["token"], self._token or "")
        if known:
            return HTMLResponse(_ENTER)
        if request.method != "GET" or self._token is None or not right:
            return PlainTextResponse(_CLOSED, 403)
        self._token = None
        answer = HTMLResponse(_ENTER)
        answer.set_cookie(self._name, self._secret, httponly=True, samesite="strict")
        return answer


def _same(given: str, expected: str) -> bool:
    """Compare in a time that does not depend on where they differ."""
    return secrets.compare_digest(given.encode(), expected.encode())


_LOG = logging.getLogger("uvicorn.error")
_ASSETS = {
    "report.css": "text/css",
    "report.js": "text/javascript",
    "serve.css": "text/css",
    "serve.js": "text/javascript",
}
_SANDBOX = "sandbox allow-scripts; frame-ancestors 'self'; {}"
Page = Callable[[ServedRuns, Request], str]


def make_server(
    folder: Path, token: str, port: int, *, read_ahead: bool = False
) -> uvicorn.Server:
    """Return what serves a folder of runs, on a socket that already listens.

    The token opens it, once. With ``read_ahead`` the first page is read at once.
    """
    settings = uvicorn.Config(
        make_app(folder, token, port, read_ahead=read_ahead),
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,  # theirs closes every log handler of the process, absl's too
        log_level="warning",
        access_log=False,  # else the token is in it
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(settings)


def _read_ahead(served: ServedRuns) -> None:
    """Read what the first page shows, before a browser asks for it."""
    with suppress(Exception):  # the page itself says what is wrong
        pages.runs_page(served)


def make_app(folder: Path, token: str, port: int, *, read_ahead: bool = False) -> Guard:
    """Return the application behind :func:`make_server`."""
    served = ServedRuns(folder)
    if read_ahead:
        Thread(target=_read_ahead, args=[served], daemon=True).start()
    routes = [
        *(Route(path, _endpoint(served, page)) for path, page in _SHOWN.items()),
        *(Route(path, _endpoint(served, page, True)) for path, page in _FRAMED.items()),
        Route("/assets/{file}", _asset),
        # There is none: browsers ask whatever a page says.
        Route("/favicon.ico", lambda _: Response(status_code=204)),
    ]
    handler = partial(_error_page, served)
    handlers = dict.fromkeys((HTTPException, *BROKEN), handler)
    return Guard(Starlette(routes=routes, exception_handlers=handlers), token, port)


def _endpoint(
    served: ServedRuns, page: Page, framed: bool = False
) -> Callable[[Request], Response]:
    """Return what answers with a page; a framed one has no rights, and no origin."""

    def answer(request: Request) -> Response:
        headers = {}
        if framed:
            headers["Content-Security-Policy"] = _SANDBOX.format(page_policy())
        return HTMLResponse(page(served, request), headers=headers)

    return answer


def _error_page(served: ServedRuns, request: Request, error: Exception) -> Response:
    """Say what is missing or damaged, in place of a page."""
    if isinstance(error, HTTPException):
        text, status = "There is no such page here.", error.status_code
    else:
        missing = isinstance(error, MissingFileError | UnknownNameError)
        text, status = error_text(error), 404 if missing else 422
        if not isinstance(error, PrivauditError):
            _LOG.error("%s", request.url.path, exc_info=error)
    title = "Not found" if status == 404 else "This cannot be shown"
    return HTMLResponse(
        pages.page_of(served, "message", title=title, text=text), status
    )


def _asset(request: Request) -> Response:
    """Return one of our own files, by a name of a list."""
    name = request.path_params["file"]
    if name not in _ASSETS:
        raise HTTPException(404)
    path = name if name.startswith("report") else f"{pages.HERE}/{name}"
    return Response(asset(path), media_type=_ASSETS[name])


def _report(served: ServedRuns, request: Request) -> str:
    one = request.path_params
    return served.report([(one["name"], one["scenario"])])


def _reports(served: ServedRuns, request: Request) -> str:
    ticked = request.query_params.getlist("audit")
    return served.report([pages.picked(one) for one in ticked])


def _sweep(served: ServedRuns, request: Request) -> str:
    return served.sweep(request.path_params["name"])


def _tradeoff(served: ServedRuns, request: Request) -> str:
    query = request.query_params
    scenario, data = query.get("scenario", ""), query.get("data", "")
    return pages.tradeoff_page(served, scenario, data, query.getlist("trainer"))


def _framing(page: Page, title: str = "") -> Page:
    """Return a page with another in a frame, whose address has "/page" behind it.

    What is framed is drawn first, and kept: what is wrong with it is said without a frame.
    """

    def frame(served: ServedRuns, request: Request) -> str:
        page(served, request)
        named = title or " · ".join(request.path_params.values())
        query = f"?{request.url.query}" if request.url.query else ""
        address = f"{quote(request.scope['path'])}/page{query}"
        return pages.page_of(served, "frame", title=named, page=address)  # of no rights

    return frame


_FRAMED: Mapping[str, Page] = {
    "/reports/{name}/{scenario}/page": _report,
    "/together/page": _reports,
    "/sweeps/{name}/page": _sweep,
}
_SHOWN: Mapping[str, Page] = {
    "/": lambda served, _: pages.runs_page(served),
    "/runs/{name}": lambda served, one: pages.run_page(served, one.path_params["name"]),
    "/compare": lambda served, one: pages.compare_page(
        served, one.query_params.getlist("audit")
    ),
    "/together": _framing(_reports, "Side by side"),
    "/tradeoff": _tradeoff,
    "/reports/{name}/{scenario}": _framing(_report),
    "/sweeps/{name}": _framing(_sweep),
}
