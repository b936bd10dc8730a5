"""docs/api.md says of each name where it is imported from."""

import re
from importlib import import_module

import privaudit
from tests.places import ROOT

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (.+?) \|", PAGE, re.M)
NAMED = {name for row in ROWS for name in re.findall(r"`(\w+)`", row)}
DIRECTIVE = re.compile(r"^::: (\S+)(?:\n    options:\n      members: \[(.+)\])?", re.M)


def test_the_table_names_what_privaudit_exports_and_nothing_else() -> None:
    assert set(privaudit.__all__) == NAMED


def test_every_other_name_is_in_the_module_before_it() -> None:
    found = DIRECTIVE.findall(PAGE)
    assert len(found) > 20
    for path, members in found:
        owner = _resolve(path)
        for member in filter(None, members.split(", ")):
            fields = getattr(owner, "__dataclass_fields__", {})
            assert hasattr(owner, member) or member in fields, (path, member)


def _resolve(path: str) -> object:
    """Return what a dotted path names: a module, or what the module before it holds."""
    try:
        return import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return vars(import_module(module))[name]
