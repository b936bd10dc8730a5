"""The routes of ``privaudit serve``: all of them read, and none takes a path."""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from privaudit.cli.serve import pages
from privaudit.cli.serve.guard import Guard
from privaudit.cli.serve.served_runs import BROKEN, ServedRuns, error_text
from privaudit.core.errors import MissingFileError, PrivauditError, UnknownNameError
from privaudit.report.page_template import asset, page_policy

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

    Args:
        folder: It is there; nothing is written in it.
        token: Opens it, once.
        port: Where the socket listens.
        read_ahead: Begin at once to read what the first page shows.
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
        Route("/favicon.ico", _no_icon),
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
    return HTMLResponse(pages.message_page(served, title, text), status)


def _asset(request: Request) -> Response:
    """Return one of our own files, by a name of a list."""
    name = request.path_params["file"]
    if name not in _ASSETS:
        raise HTTPException(404)
    place = name if name.startswith("report") else f"serve/{name}"
    return Response(asset(place), media_type=_ASSETS[name])


def _no_icon(request: Request) -> Response:
    """Say that there is none: browsers ask whatever a page says."""
    return Response(status_code=204)


def _report(served: ServedRuns, request: Request) -> str:
    return served.report(
        [(request.path_params["name"], request.path_params["scenario"])]
    )


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
        address = f"{quote(request.url.path)}/page{query}"
        return pages.frame_page(served, named, address)

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
