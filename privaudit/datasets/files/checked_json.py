"""JSON that users bring, checked against the form it should have."""

from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

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
        ...


def read_checked(path: Path, form: Form[T]) -> T:
    """Return a file's content; keys that the form does not name are passed over."""
    return parse_checked(read_bytes(path, "list"), form, str(path))


def parse_checked(content: bytes, form: Form[T], where: str) -> T:
    """Return JSON of a form; errors call it ``where``."""
    check_json(content, where, numbers=False)
    try:
        return form.validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    at = ".".join(map(str, first["loc"]))
    raise DatasetError(
        f"{where} is not as it should be{f' at {at}' if at else ''}: {first['msg']}. "
        "Fix it, or get it again."
    )
