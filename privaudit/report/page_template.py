"""The frame of all pages: templates, which escape what is put in, style, script, glossary.

The glossary explains each term once, at the page's end; a term is linked where the page
first uses it, and what a page does not use is not on it. Its terms stand in glossary.toml.
"""

import base64
import hashlib
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from privaudit.core import formatting
from privaudit.privacy.certificate import is_repeatable, reconstruction_sentence

PLACE = "<!-- glossary -->"
"""Where a page wants its glossary."""

_APART = (  # elements without running text, or where a link would be wrong
    "script", "style", "svg", "title", "h1", "a", "code", "button", "summary", "thead",
)  # fmt: skip


def _pieces(apart: Sequence[str]) -> re.Pattern[str]:
    """Return what finds tags, and elements as a whole whose text does not count."""
    return re.compile(rf"<({'|'.join(apart)})\b.*?</\1>|<!--.*?-->|<[^>]*>", re.DOTALL)


_PROSE, _ALL = _pieces((*_APART, "table")), _pieces(_APART)


@dataclass(frozen=True)
class Term:
    """One entry of the glossary.

    Attributes:
        words: How texts write it: a regular expression, case-insensitive.
    """

    key: str
    title: str
    words: str
    meaning: str

    @property
    def pattern(self) -> re.Pattern[str]:
        """A regular expression that finds it as whole words."""
        return re.compile(rf"(?<![\w-])(?:{self.words})(?![\w-])", re.IGNORECASE)


_GLOSSARY = (files("privaudit.report") / "glossary.toml").read_text(encoding="utf-8")
TERMS = tuple(Term(key, **entry) for key, entry in tomllib.loads(_GLOSSARY).items())


_Use = tuple[re.Match[str], Term]
"""A term's first use: where, and how it is written there."""


def with_glossary(page: str) -> str:
    """Return a page with its glossary, and links to it.

    Args:
        page: HTML whose text is escaped; without :data:`PLACE` it stays as it is.
    """
    if PLACE not in page:
        return page
    known = list[Term]()
    for use, term in sorted(_first_uses(page), key=lambda one: -one[0].start()):
        link = f'<a class="term" href="#term-{term.key}">{use[0]}</a>'
        page = page[: use.start()] + link + page[use.end() :]
        known.append(term)
    return page.replace(PLACE, _section(known))


def _first_uses(page: str) -> list[_Use]:
    """Return each term's first use; where two overlap, one gives way to its next."""
    # A table's cells hold names as well as words: prose comes first.
    spans, taken = _text_spans(page, _PROSE) + _text_spans(page, _ALL), list[_Use]()
    used = [use for term in TERMS if (use := _use(page, spans, term, ()))]
    for _, term in sorted(used, key=lambda one: (one[0].start(), -one[0].end())):
        if free := _use(page, spans, term, taken):
            taken.append(free)
    return taken


def _text_spans(page: str, pieces: re.Pattern[str]) -> list[tuple[int, int]]:
    """Return where the body's running text stands."""
    start, spans = page.index("<body"), []
    for piece in pieces.finditer(page, start):
        if piece.start() > start:
            spans.append((start, piece.start()))
        start = piece.end()
    return spans


def _use(
    page: str, spans: Sequence[tuple[int, int]], term: Term, taken: Sequence[_Use]
) -> _Use | None:
    """Return a term's first use beside those taken."""
    for start, end in spans:
        for match in term.pattern.finditer(page, start, end):
            if all(
                match.end() <= t.start() or t.end() <= match.start() for t, _ in taken
            ):
                return match, term
    return None


def _section(terms: Sequence[Term]) -> str:
    entries = "\n".join(
        f'<dt id="term-{term.key}">{Markup.escape(term.title)}</dt>'
        f"<dd>{Markup.escape(term.meaning)}</dd>"
        for term in sorted(terms, key=lambda term: term.title.casefold())
    )
    return (
        '<section id="glossary">\n<h2>Glossary</h2>\n'
        f'<dl class="reading">\n{entries}\n</dl>\n</section>'
    )


MADE_BY = '<meta name="generator" content="privaudit">'


def asset(name: str) -> str:
    """Return a file that is installed beside this module, or of a whole path."""
    return (files("privaudit.report") / name).read_text(encoding="utf-8")


def render(name: str, **content: Any) -> str:
    """Return a page: one file that asks for no other, and may ask for none.

    It ends with a glossary of the terms that it uses. A name that the template lacks is
    an error, not an empty string.
    """
    page = (
        _environment()
        .get_template(name)
        .render(
            css=Markup(asset("report.css")),  # our own files: nothing to escape
            script=Markup(asset("report.js")),
            policy=Markup(page_policy()),
            made_by=Markup(MADE_BY),
            glossary=Markup(PLACE),
            **content,
        )
    )
    return with_glossary(page)


def fragment(template: str, **content: Any) -> str:
    """Return a part of a page: what is put in is escaped, and no glossary is added."""
    return _environment().get_template(template).render(**content)


@cache  # and with it the compiled templates
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["epsilon"] = formatting.epsilon
    environment.tests["repeatable"] = is_repeatable
    environment.filters["reconstruction"] = reconstruction_sentence
    environment.filters["rounds"] = formatting.rounds
    environment.filters["small"] = formatting.small
    return environment


def page_policy() -> str:
    """Return what the page may do: show itself, and run its one script."""
    script = asset("report.js").encode()
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    return (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
