"""JSON that users bring, checked against its form, and YAML without aliases."""

from codecs import BOM_UTF8
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from pydantic import ValidationError

from privaudit.core.errors import DatasetError
from privaudit.core.limits import check_json
from privaudit.core.storage import read_bytes

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class Form(Protocol[T_co]):
    """What JSON should be: a pydantic ``TypeAdapter``."""

    def validate_json(self, content: bytes, /) -> T_co:
        """Return the content, or raise pydantic's ValidationError."""


def read_checked(path: Path, form: Form[T]) -> T:
    """Return a file's content; keys that the form does not name are passed over."""
    return parse_checked(read_bytes(path, "list"), form, str(path))


def parse_checked(content: bytes, form: Form[T], where: str) -> T:
    """Return JSON of a form; errors call it ``where``."""
    check_json(content, where, numbers=False)
    try:
        return form.validate_json(content.removeprefix(BOM_UTF8))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    at = ".".join(map(str, first["loc"]))
    raise DatasetError(
        f"{where} is not as it should be{f' at {at}' if at else ''}: {first['msg']}. "
        "Fix it, or get it again."
    )


def parse_yaml(text: str, where: str) -> Any:
    """Return what YAML says; aliases and merge keys are refused.

    A few lines in which each names the one before twice would be endlessly many.
    """
    yaml = import_module("yaml")  # comes with huggingface_hub

    class Plain(yaml.SafeLoader):  # type: ignore[misc,name-defined]
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("it has an alias, such as *name")
            return super().compose_node(parent, index)

        def flatten_mapping(self, node: Any) -> None:
            if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
                raise yaml.YAMLError("it has a merge key, <<")
            super().flatten_mapping(node)

    broken = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError)
    try:
        return yaml.load(text, Plain)  # a SafeLoader
    except (*broken, ArithmeticError, RecursionError) as error:
        reason = str(error).partition("\n")[0]
        raise DatasetError(
            f"{where} is broken ({reason}). Fix it, writing out what is meant, or take "
            "it out."
        ) from None
