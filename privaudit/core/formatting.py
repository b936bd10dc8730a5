"""Numbers as they are printed everywhere: in the terminal, on pages, in errors."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import requires
from shlex import quote
from typing import Any


def epsilon(value: float | int | None, declared: float | None = None) -> str:
    """Return an epsilon as it is printed everywhere; one that is declared says so.

    Example:
        >>> epsilon(7.961), epsilon(None, 7.961), epsilon(None)
        ('7.96', 'declared 7.96', 'none')
    """
    if declared is not None:
        return f"declared {declared:.3g}"
    return "none" if value is None else f"{value:.3g}"


def small(value: float) -> str:
    """Return a delta as it is printed everywhere.

    Example:
        >>> small(1e-5)
        '1e-5'
    """
    return f"{value:g}".replace("e-0", "e-")


def p_value(value: float) -> str:
    """Return a p-value as it is printed everywhere, with its sign.

    Example:
        >>> p_value(0.0032), p_value(1e-9)
        ('= 0.003', '< 0.001')
    """
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"


def percent(share: float) -> str:
    """Return a rate as people write it: 10 %, 0.1 %."""
    return f"{100 * share:g} %"


def write_time(seconds: float) -> str:
    """Return a time in two digits, and hours beyond 100 in all of theirs.

    Example:
        >>> write_time(0.034), write_time(120.0), write_time(5400.0), write_time(4e5)
        ('0.034s', '2m', '1.5h', '111h')
    """
    sizes = {3600: "h", 60: "m", 1: "s"}
    size = next((size for size in sizes if seconds >= size), 1)
    number = seconds / size
    return f"{number:{'.0f' if number >= 10 else '.2g'}}{sizes[size]}"


def outcome_in_words(code: str) -> str:
    """Return the code of a verdict, or of a gate's outcome, as it is printed."""
    return "undecided" if code == "underpowered" else code


# XML 1.0 has no way to write these, not even escaped.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def xml_text(text: str) -> str:
    """Return a text without the characters that XML cannot hold.

    Example:
        >>> xml_text("a" + chr(0) + "b")
        'a�b'
    """
    return _FORBIDDEN.sub("\ufffd", text)


def rounds(indices: Sequence[int]) -> str:
    """Return rounds as ranges.

    Example:
        >>> rounds([0, 1, 2, 5])
        '0 to 2, 5'
    """
    return ", ".join(
        str(first) if first == last else f"{first} to {last}"
        for first, last in stretches(indices)
    )


def stretches(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return numbers in order as stretches, each by its first and its last.

    Example:
        >>> stretches([0, 1, 2, 5])
        [(0, 2), (5, 5)]
    """
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found


def first_of(names: Sequence[str], most: int) -> str:
    """Return some names in a row, and that there are more.

    Example:
        >>> first_of(["a", "b", "c"], 2)
        'a, b, ...'
    """
    return ", ".join([*names[:most], *["..."] * (len(names) > most)])


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table for Markdown, whose cells stay in one line."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(one_line, line))} |" for line in lines)


def one_line(text: str) -> str:
    """Return a text that ends neither a cell nor a line."""
    return text.replace("|", "\\|").replace("\n", " ")


def install_line(extra: str) -> str:
    """Return how to install what an extra of this package needs.

    By the packages' own names: privaudit is on no index, and whoever registers its name
    there could put anything behind it.

    Example:
        >>> install_line("hf")
        "pip install 'pyarrow>=17'"
    """
    named = (line.partition(";") for line in requires("privaudit") or ())
    of_it = re.compile(rf"extra == [\"']{extra}[\"']")
    return " ".join(
        [
            "pip install",
            *(quote(name.strip()) for name, _, of in named if of_it.search(of)),
        ]
    )


def as_csv(records: Sequence[Mapping[str, Any]]) -> str:
    """Return records as CSV; a key that a record lacks is empty there."""
    names = dict.fromkeys(name for record in records for name in record)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return buffer.getvalue()
