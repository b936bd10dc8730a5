"""Runs served to a test, which asks for them as a browser does."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread
from typing import Any

from privaudit_tools.serve.app import make_server

TOKEN = "a-token-that-is-not-guessed"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str


@dataclass
class Site:
    """Where a folder is served, and the cookie of whoever has entered."""

    port: int
    cookie: str = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, path: str, method: str = "GET", **headers: Any) -> Answer:
        """Ask for a path as it is written: no client tidies it up.

        Args:
            path: With its query.
            method: Of HTTP.
            headers: Underscores are dashes; None sends no such header.
        """
        said = {"Host": f"127.0.0.1:{self.port}", "Cookie": self.cookie}
        said |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.putrequest(method, path, skip_host=True)
            for name, value in said.items():
                if value is not None:
                    connection.putheader(name, value)
            connection.endheaders()
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, names, response.read().decode())
        finally:
            connection.close()

    def enter(self) -> "Site":
        """Show the token, and keep the cookie."""
        answer = self.ask(f"/?token={TOKEN}")
        assert answer.status == 200
        self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return self


@contextmanager
def serving(folder: Path) -> Iterator[Site]:
    """Serve a folder until the end; nobody has entered yet."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        server = make_server(folder, TOKEN, port)
        thread = Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield Site(port)
        finally:
            server.should_exit = True
            thread.join()
