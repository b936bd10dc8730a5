"""Captions coloured by how unsure the model was of each word."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import isfinite

from privaudit.core.errors import ConfigError

STEPS = (
    ("#f7fbff", "#1f2328"),
    ("#d6e6f4", "#1f2328"),
    ("#abd0e6", "#1f2328"),
    ("#6aaed6", "#1f2328"),
    ("#2f74b0", "#ffffff"),
    ("#105ba4", "#ffffff"),
    ("#08306b", "#ffffff"),
)
"""Background and text, from sure to unsure: one hue whose lightness falls, so that it
is read with any colour blindness and in grey; text at least 4.5 to 1 against it.

Source: ColorBrewer's "Blues", Harrower and Brewer, 2003, its fifth made darker.
"""

_PIECE = "border-radius:3px;padding:.1em .12em;white-space:pre-wrap;"
_ROW = "display:flex;gap:.9rem;align-items:center;margin:0 0 1rem;break-inside:avoid"
_IMAGE = (
    "width:4.5rem;height:4.5rem;object-fit:contain;image-rendering:pixelated;"
    "border:1px solid #d1d9e0;flex:none"
)
_TAG = (
    "border:1px solid #1f2328;border-radius:1rem;padding:.05rem .5rem;"
    "font-size:.78rem;white-space:nowrap;"
)
_UNKNOWN = _PIECE + "border-bottom:2px dotted #59636e"


@dataclass(frozen=True)
class ColouredText:
    """One text, piece by piece.

    Attributes:
        heading: What is said above it, such as how exposed the record is.
        pieces: Tokens as text, with their blanks.
        entropies: Of the distribution that each piece was drawn from, in nats; None
            where there is none: the piece stays without a colour.
    """

    heading: str
    pieces: tuple[str, ...]
    entropies: tuple[float | None, ...]
    tag: str = ""
    strong: bool = False
    picture: str | None = None


def coloured_texts(texts: Sequence[ColouredText], name: str) -> str:
    """Return an HTML fragment: texts coloured by entropy, and what colours mean.

    Nothing outside of it is needed. A piece says its number when pointed at.
    """
    for text in texts:
        _check(text)
    known = [e for text in texts for e in text.entropies if e is not None]
    top = max(known, default=0.0) or 1.0
    shown = "\n".join(_text(text, top) for text in texts)
    return (
        f'<div class="token-entropy" style="max-width:60rem">\n{_legend(name, top)}\n'
        f"{shown}\n</div>"
    )


def _check(text: ColouredText) -> None:
    if len(text.pieces) != len(text.entropies):
        raise ConfigError(
            f"The text {text.heading!r} has {len(text.pieces)} pieces and "
            f"{len(text.entropies)} entropies. Give one for each, None where there is "
            "none."
        )
    wrong = [
        e for e in text.entropies if e is not None and not (isfinite(e) and e >= 0)
    ]
    if wrong:
        raise ConfigError(
            f"The text {text.heading!r} has an entropy of {wrong[0]}, and a colour "
            "needs a finite number from 0. Leave the record out."
        )


def _legend(name: str, top: float) -> str:
    """Return a bar of all colours, each with the entropies that it stands for."""
    width = top / len(STEPS)
    cells = "".join(
        f'<span style="background:{back};color:{ink};padding:.15em .5em;'
        f'border:1px solid #59636e;margin-left:-1px">{_range(step, width)}</span>'
        for step, (back, ink) in enumerate(STEPS)
    )
    return (
        '<p style="margin:.4rem 0 1rem;max-width:none;font-size:.85rem;'
        'line-height:1.9;font-variant-numeric:tabular-nums">'
        f'{escape(name)}, nats: <span style="white-space:nowrap">{cells}</span> '
        "dark: high entropy of the next token; pale: low; dotted: not scored</p>"
    )


def _range(step: int, width: float) -> str:
    last = step == len(STEPS) - 1
    low = f"{step * width:.2f}"
    return f"{low} and more" if last else f"{low} to {(step + 1) * width:.2f}"


def _text(text: ColouredText, top: float) -> str:
    pairs = zip(text.pieces, text.entropies, strict=True)
    pieces = "".join(_piece(piece, entropy, top) for piece, entropy in pairs)
    return (
        f'<div style="{_ROW}">{_picture(text)}<div><p style="margin:0;font-weight:600;'
        f'font-size:.9rem">{escape(text.heading)}{_tag(text)}</p><p style="margin:'
        f'.2rem 0 0;max-width:none;font-size:1.05rem;line-height:1.9">{pieces}</p>'
        "</div></div>"
    )


def _picture(text: ColouredText) -> str:
    if text.picture is None:
        return ""
    return f'<img style="{_IMAGE}" src="{escape(text.picture)}" alt="The record">'


def _tag(text: ColouredText) -> str:
    if not text.tag:
        return ""
    fill = "background:#1f2328;color:#ffffff" if text.strong else "font-weight:400"
    return f' <span style="{_TAG}{fill}">{escape(text.tag)}</span>'


def _piece(piece: str, entropy: float | None, top: float) -> str:
    if entropy is None:
        return f'<span style="{_UNKNOWN}">{escape(piece)}</span>'
    step = min(int(entropy / top * len(STEPS)), len(STEPS) - 1)
    back, ink = STEPS[step]
    return (
        f'<span title="{entropy:.3f} nats" style="{_PIECE}background:{back};'
        f'color:{ink}">{escape(piece)}</span>'
    )
