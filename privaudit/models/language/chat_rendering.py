"""Chat templates of somebody else, rendered in bounded time and memory.

A template may multiply texts and nest loops, and no reading of it tells how much comes
of that. So it is rendered in a process of its own, which the system ends. Run as a
program, this file is that process: it imports nothing of privaudit, nor torch.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

SECONDS = 5
MEMORY = 2**31
LETTERS = 100_000
_ANSWER_SECONDS = 60  # beside it the libraries are imported, on a busy machine


class RenderingError(Exception):
    """A chat template that cannot be rendered, or not within the bounds."""


def render_bounded(
    template: str, messages: Sequence[Mapping[str, Any]], tokens: Mapping[str, Any]
) -> str:
    """Return what a chat template writes, up to where an answer begins.

    Messages are as JSON knows them; ``tokens`` are the tokenizer's special tokens, by
    their names in templates.

    Raises:
        RenderingError: It raises an error, or takes more than the bounds.
    """
    asked = json.dumps([template, messages, {k: str(v) for k, v in tokens.items()}])
    # -P: nothing is imported from the folder that one happens to be in.
    command = [sys.executable, "-P", __file__]
    environment = {**os.environ, "USE_TORCH": "0", "TRANSFORMERS_VERBOSITY": "error"}
    try:
        done = subprocess.run(
            command,
            input=asked,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RenderingError(_TOO_MUCH) from None
    if done.returncode < 0:  # the system ended it
        raise RenderingError(_TOO_MUCH)
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2]
        raise RenderingError(f"it could not be rendered: {reason}")
    written, error = json.loads(done.stdout)
    if error is not None:
        raise RenderingError(error)
    return str(written)


_TOO_MUCH = (
    f"for one question it takes more than {SECONDS} seconds, {MEMORY // 2**30} GiB or "
    f"{LETTERS:,} letters"
)


def _bound() -> None:
    import resource  # which Windows has not

    for what, most in (
        (resource.RLIMIT_AS, _taken() + MEMORY),
        (resource.RLIMIT_CPU, int(resource.getrusage(0).ru_utime) + SECONDS),
        (resource.RLIMIT_CORE, 0),
    ):
        with suppress(OSError, ValueError):  # macOS knows no bound of memory
            resource.setrlimit(what, (most, most))


def _taken() -> int:
    """Return the addresses that are taken already, by libraries and their threads."""
    try:
        pages = Path("/proc/self/statm").read_text("ascii").split()[0]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def _render(asked: str) -> tuple[str | None, str | None]:
    """Return what is written, or else the error."""
    from transformers.utils.chat_template_utils import render_jinja_template

    template, messages, tokens = json.loads(asked)
    _bound()
    try:
        rendered: Any = render_jinja_template(
            [messages], chat_template=template, add_generation_prompt=True, **tokens
        )
        written = str(rendered[0][0])
    except MemoryError:
        return None, _TOO_MUCH
    except Exception as error:  # whatever a template can raise
        return None, (str(error) or type(error).__name__)[:LETTERS]
    return (None, _TOO_MUCH) if len(written) > LETTERS else (written, None)


if __name__ == "__main__":
    print(json.dumps(_render(sys.stdin.read())))
