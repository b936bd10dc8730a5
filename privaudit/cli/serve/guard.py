"""Who is answered: one browser on this machine, that was given the token.

What could go wrong, and what stops it:

- Another user of the machine asks: without the cookie nothing is answered. The token in
  the address works once, so one that is found in a history or a list of processes later
  does not.
- A page elsewhere asks through the browser: the cookie is SameSite=Strict, and what a
  browser says comes from another origin is refused, also from other ports.
- A name that suddenly means this machine (DNS rebinding): Host must be a loopback name.
- A text of a run that is markup: templates escape it, and no page runs inline script.
"""

import secrets
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
        app: What answers.
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
                _add_headers(message)
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


def _add_headers(message: MutableMapping[str, Any]) -> None:
    headers = MutableHeaders(scope=message)
    for name, value in _HEADERS.items():
        headers.setdefault(name, value)
