"""Cards altered by whoever has a key: other statements, signed again."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from privaudit.core.signing import Envelope
from privaudit.report.export.export import write_card


def statement_in(card: Path) -> Any:
    """Return what a card's file or folder says."""
    return json.loads(
        base64.b64decode(json.loads(file_of(card).read_text())["payload"])
    )


def file_of(card: Path) -> Path:
    return card / "card.json" if card.is_dir() else card


def sign_statement(card: Path, statement: Any) -> None:
    """Write a statement, signed with the key of this process."""
    text = json.dumps(statement, sort_keys=True, separators=(",", ":"))
    write_card(file_of(card), Envelope.of(text.encode()))


def alter_card(card: Path, change: Callable[[Any], Any]) -> Path:
    """Change what a card says, sign it again, and return its path."""
    statement = statement_in(card)
    change(statement["predicate"])
    sign_statement(card, statement)
    return card


def other_value(value: Any) -> Any:
    """Return another value that the same field could hold."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return round(value * 0.98, 4)
    if value in (None, "", [], {}):
        return 1
    return value[:-1] + ("1" if value[-1] != "1" else "2")


def put(content: Any, place: str, value: Any) -> Any:
    """Put a value at keys and positions joined by slashes; return all."""
    *above, last = place.split("/")
    one = content
    for key in above:
        one = one[int(key) if isinstance(one, list) else key]
    last_key: Any = int(last) if isinstance(one, list) else last
    one[last_key] = value
    return content
