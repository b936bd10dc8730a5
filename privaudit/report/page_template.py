"""The page's own files: templates, which escape what is put in, style and script."""

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from privaudit.core import formatting
from privaudit.privacy.certificate import is_repeatable
from privaudit.privacy.reconstruction_robustness import reconstruction_sentence
from privaudit.report import wording
from privaudit.report.glossary import PLACE, with_glossary

MADE_BY = '<meta name="generator" content="privaudit">'


def asset(name: str) -> str:
    """Return a file that is installed beside this module."""
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
    environment.filters["heading"] = wording.heading
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
