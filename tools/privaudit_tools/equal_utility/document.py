"""A page as blocks, written as Markdown or as one file of HTML.

In texts, `code` and *emphasis* are marked as in Markdown; nothing else is.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup, escape
from matplotlib.figure import Figure

from privaudit.core.formatting import markdown_table
from privaudit.report.figures.figure_style import to_svg
from privaudit.report.page_template import render

_TEMPLATE = Path(__file__).with_name("page.html.jinja")
_MARKED = re.compile(r"`([^`]+)`|\*([^*]+)\*")


@dataclass(frozen=True)
class Heading:
    """Of a section."""

    text: str


@dataclass(frozen=True)
class Paragraph:
    """Running text."""

    text: str


@dataclass(frozen=True)
class Command:
    """A command line."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """A list."""

    items: Sequence[str]


@dataclass(frozen=True)
class Table:
    """Texts by row, as many as heads."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    """A figure, which Markdown names by its path."""

    figure: Figure
    path: str
    alt: str


Block = Heading | Paragraph | Command | Bullets | Table | Picture


def as_markdown(title: str, blocks: Sequence[Block]) -> str:
    """Return a page in Markdown."""
    return "\n\n".join([f"# {title}", *map(_markdown, blocks)]) + "\n"


def as_html(title: str, blocks: Sequence[Block]) -> str:
    """Return a page that asks for no other file, in the style of reports."""
    return render(str(_TEMPLATE), title=title, blocks=[*map(_html, blocks)])


def _markdown(block: Block) -> str:
    match block:
        case Heading(text):
            return f"## {text}"
        case Paragraph(text):
            return text
        case Command(text):
            return f"    {text}"
        case Bullets(items):
            return "\n".join(f"- {item}" for item in items)
        case Picture(_, path, alt):
            return f"![{alt}]({path})"
        case Table(heads, rows):
            return markdown_table(heads, rows)


def _html(block: Block) -> Markup:
    match block:
        case Heading(text):
            return Markup("<h2>{}</h2>").format(text)
        case Paragraph(text):
            return Markup('<p class="reading">{}</p>').format(_marked(text))
        case Command(text):
            return Markup("<p><code>{}</code></p>").format(text)  # a pre would not wrap
        case Bullets(items):
            return Markup("<ul>{}</ul>").format(_each("<li>{}</li>", items))
        case Picture(figure, _, alt):
            drawn = Markup(to_svg(figure, "plane", alt))  # our own: nothing to escape
            return Markup("<figure>{}</figure>").format(drawn)
        case Table(heads, rows):
            lines = [
                Markup('<tr><th scope="row">{}</th>{}</tr>').format(
                    _marked(row[0]), _each("<td>{}</td>", row[1:])
                )
                for row in rows
            ]
            return Markup(
                '<div class="scroll"><table><thead><tr>{}</tr></thead>'
                "<tbody>{}</tbody></table></div>"
            ).format(_each("<th>{}</th>", heads), Markup("\n").join(lines))


def _each(element: str, texts: Sequence[str]) -> Markup:
    return Markup("").join(Markup(element).format(_marked(text)) for text in texts)


def _marked(text: str) -> Markup:
    """Return a text escaped, with its marks as elements."""
    marked = _MARKED.sub(
        lambda at: f"<code>{at[1]}</code>" if at[1] else f"<em>{at[2]}</em>",
        str(escape(text)),
    )
    return Markup(marked)  # escaped above
