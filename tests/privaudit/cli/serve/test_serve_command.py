"""``privaudit serve`` as it is called: what it says, and what it refuses."""

import logging
import re
import socket
import sys
from pathlib import Path

import pytest

from tests.conftest import Cli


def test_the_address_is_printed_once_and_is_of_this_machine_alone(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    uvicorn = pytest.importorskip("uvicorn", reason="the extra [serve] is missing")
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
    def refused(*words: object) -> str:
        code, out, err = cli("serve", *words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        return err

    assert "There is no folder" in refused(tmp_path / "nowhere")
    assert "is a store" in refused("memory://runs")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        if "uvicorn" in sys.modules:
            message = refused(tmp_path, "--port", taken.getsockname()[1])
            assert "Choose another --port" in message
    for name in list(sys.modules):
        if name.startswith("privaudit.cli.serve."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)  # as if it were not there
    assert "pip install 'starlette<2,>=1' 'uvicorn<" in refused(tmp_path)


def test_log_handlers_of_the_process_stay_open(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="the extra [serve] is missing")
    from privaudit.cli.serve.app import make_server

    closed: list[str] = []

    class Handler(logging.Handler):
        def close(self) -> None:
            closed.append("a handler that others write to")

    handler = Handler()
    make_server(tmp_path, "token", 80)
    assert not closed
    logging.Handler.close(handler)
