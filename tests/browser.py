"""A headless browser for pages."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 60.0  # seconds for one answer, on a busy machine
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-extensions", "--disable-dev-shm-usage", "--remote-debugging-pipe",
)  # fmt: skip


def find_chromium() -> str:
    """Return the path of a browser; where none is installed, the test is skipped."""
    wanted = os.environ.get("PRIVAUDIT_CHROMIUM")
    for path in [wanted] if wanted else map(shutil.which, NAMES):
        if path:
            return path
    pytest.skip("no Chromium is installed: set PRIVAUDIT_CHROMIUM to one")


def find_axe() -> str:
    """Return axe-core, which finds what is not accessible; without it, skip the test."""
    if path := os.environ.get("PRIVAUDIT_AXE"):
        return Path(path).read_text()
    pytest.skip("set PRIVAUDIT_AXE to axe.min.js, of the npm package axe-core")


class Chromium:
    """A browser with one page, and all that the page asked for and complained of.

    Attributes:
        requests: Addresses that were asked for.
        complaints: Console errors and warnings, exceptions, log entries.
    """

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._pending, self._number, self._session = b"", 0, ""
        self.requests: list[str] = []
        self.complaints: list[str] = []

    def attach(self) -> None:
        """Open a page, and listen to it."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        answer = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = answer["sessionId"]
        for part in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{part}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the answer to one command."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._write, json.dumps(command).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> dict[str, Any]:
        """Return the next message; events are kept on the way."""
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._read], [], [], PATIENCE)
            assert ready, f"no answer within {PATIENCE:g} seconds"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser has closed its pipe"
            self._pending += part
        first, _, self._pending = self._pending.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        self._keep(message.get("method", ""), message.get("params", {}))
        return message

    def _keep(self, event: str, said: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(str(said["exceptionDetails"]))
        elif event == "Log.entryAdded" and said["entry"]["level"] != "verbose":
            self.complaints.append(f"{said['entry']['level']}: {said['entry']['text']}")
        elif event == "Runtime.consoleAPICalled" and said["type"] in (
            "error",
            "warning",
            "assert",
        ):
            self.complaints.append(f"{said['type']}: {said['args']}")

    def open(self, path: Path, fragment: str = "") -> None:
        """Show a file, and forget what pages before it did."""
        self.visit(path.resolve().as_uri() + fragment)

    def visit(self, url: str) -> None:
        """Show an address, and forget what pages before it did."""
        self.requests.clear()
        self.complaints.clear()
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def ask(self, expression: str) -> Any:
        """Return what a JavaScript expression gives, or what it promises."""
        answer = self.send(
            "Runtime.evaluate",
            expression=expression, returnByValue=True, awaitPromise=True,
        )  # fmt: skip
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def violations(self, axe: str) -> list[str]:
        """Return the rules of accessibility that the page violates, each with a place.

        Args:
            axe: From :func:`find_axe`.
        """
        self.ask(f"{axe}; 1")
        found: list[str] = self.ask(
            "axe.run().then(r => r.violations.map(v => v.id + ': ' + v.nodes[0].html))"
        )
        return found

    def wait(self, expression: str) -> None:
        """Wait until an expression holds."""
        end = time.monotonic() + PATIENCE
        while not self.ask(expression):
            assert time.monotonic() < end, f"never came true: {expression}"
            time.sleep(0.05)

    def move_to(self, x: float, y: float) -> None:
        """Move the pointer, in pixels of the window."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        """Press the pointer's left button."""
        for kind in ("mousePressed", "mouseReleased"):
            self.send(
                "Input.dispatchMouseEvent",
                type=kind, x=x, y=y, button="left", clickCount=1,
            )  # fmt: skip

    def press(self, key: str, code: int) -> None:
        """Press a key by its name and its Windows number."""
        for kind in ("keyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent",
                type=kind, key=key, code=key, windowsVirtualKeyCode=code,
            )  # fmt: skip

    def size(self, width: int, height: int, *, mobile: bool = False) -> None:
        """Make the window as wide and high, in CSS pixels."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=mobile,
        )  # fmt: skip

    def media(self, kind: str = "", *, dark: bool = False) -> None:
        """Show the page as on paper, or in the dark."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media=kind, features=[scheme])

    def as_pdf(self) -> bytes:
        """Return the page as it is printed."""
        answer = self.send("Page.printToPDF", preferCSSPageSize=True)
        return base64.b64decode(answer["data"])


@contextmanager
def started(program: str, folder: Path) -> Iterator[Chromium]:
    """Start a browser with a profile of its own; it is gone afterwards.

    Args:
        program: Its path.
        folder: For the profile.
    """
    ends = [_high(end) for end in (*os.pipe(), *os.pipe())]
    commands_out, commands_in, answers_out, answers_in = ends
    process = os.posix_spawn(
        program,
        [program, *_FLAGS, f"--user-data-dir={folder}", "about:blank"],
        {**os.environ, "HOME": str(folder)},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, commands_out, 3),
            (os.POSIX_SPAWN_DUP2, answers_in, 4),
        ],
        setpgroup=0,
    )
    os.close(commands_out)
    os.close(answers_in)
    browser = Chromium(answers_out, commands_in)
    try:
        browser.attach()
        yield browser
    finally:
        os.close(commands_in)
        os.close(answers_out)
        _end(process)


def _high(end: int) -> int:
    """Return the same pipe under a number that 3 and 4 cannot overwrite."""
    moved = fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(end)
    return moved


def _end(process: int) -> None:
    """Wait a moment for a browser whose pipe was closed, then end it."""
    for _ in range(100):
        if os.waitpid(process, os.WNOHANG)[0]:
            return
        time.sleep(0.05)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
