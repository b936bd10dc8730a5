"""For the documentation site: docstrings as its reader of Google's style knows them."""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):`~?([^`]+)`")
EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Names the section of examples in the plural, and turns roles into plain code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one object's docstring before it is parsed."""
        if obj.docstring:
            text = EXAMPLE.sub("Examples:", obj.docstring.value)
            obj.docstring.value = ROLE.sub(r"`\1`", text)
