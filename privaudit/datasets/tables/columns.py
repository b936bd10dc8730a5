"""Which column of a table is what: as a user says, or as types and names tell."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privaudit.core.errors import DatasetError
from privaudit.datasets.sources import TableColumns
from privaudit.datasets.tables.block import import_pyarrow
from privaudit.datasets.tables.pictures import holds_files, is_picture

USUAL_LABELS = ("label", "labels", "fine_label", "class")


@dataclass(frozen=True)
class ChosenColumns:
    """Which column is what; each may be missing."""

    image: str | None
    label: str | None
    texts: tuple[str, ...]
    owner: str | None
    group: str | None

    @property
    def writes(self) -> bool:
        """Whether pictures have captions: a class is then not needed."""
        return self.image is not None and bool(self.texts)

    @property
    def read_first(self) -> tuple[str, ...]:
        """Those that are read as a whole."""
        named = (self.label, *self.texts, self.owner, self.group)
        return tuple(dict.fromkeys(n for n in named if n is not None))


def choose_columns(
    columns: TableColumns, schema: Any, labelled: Sequence[str], path: Path
) -> ChosenColumns:
    """Return what each column is that matters.

    Values of ``labelled`` columns are numbers of named classes.
    """
    texts = tuple(filter(None, (t.strip() for t in (columns.text or "").split(","))))
    _refuse_missing(columns, texts, schema, path)
    pictures = [field.name for field in schema if is_picture(field.type)]
    if columns.image is not None and columns.image not in pictures:
        raise DatasetError(
            f"--image-column {columns.image} was given, and in {path} it is "
            f"{schema.field(columns.image).type}: images are bytes, or bytes with a "
            f"path. {_others(pictures)}"
        )
    image = columns.image or (None if texts else _only(pictures, "image", path))
    if image is None and not texts and "text" in schema.names:
        texts = ("text",)
    label = columns.label
    if label is None and (not (image and texts) or len(labelled) == 1):
        usual = [name for name in USUAL_LABELS if name in schema.names]
        label = _only(labelled or usual[:1], "label", path)
    if (image or texts) and (label or (image and texts)):
        chosen = ChosenColumns(image, label, texts, columns.owner, columns.group)
        _refuse_nested(chosen.read_first, schema, path)
        return chosen
    missing = "--label-column" if image or texts else "--image-column or --text-column"
    raise DatasetError(
        f"{path} has the columns {shown_columns(schema)}, and what they are is not "
        f"known. Say it with {missing}."
    )


def shown_columns(schema: Any) -> str:
    """Return the columns with their types, as errors show them."""
    return ", ".join(f"{field.name} ({field.type})" for field in schema)


def _refuse_missing(
    columns: TableColumns, texts: Sequence[str], schema: Any, path: Path
) -> None:
    named = [("image", columns.image), ("label", columns.label)]
    named += [("owner", columns.owner), *(("text", text) for text in texts)]
    options = [(f"{what}-column", name) for what, name in named]
    for option, name in [*options, ("groups", columns.group)]:
        if name is not None and name not in schema.names:
            raise DatasetError(
                f"--{option} {name} was given, and {path} has the columns "
                f"{shown_columns(schema)}. Name one of these."
            )


def _refuse_nested(names: Sequence[str], schema: Any, path: Path) -> None:
    """Refuse what may be endlessly many values in a few bytes."""
    for name in names:
        kind = schema.field(name).type
        lists = str(kind).startswith(("list<", "large_list<", "fixed_size_list<"))
        if not (_is_plain(kind) or (lists and _is_text(kind.value_type))):
            raise DatasetError(
                f"The column {name} of {path} is {kind}, and labels, texts and owners "
                "are read from texts, numbers, and lists of texts. Write its values as "
                "such, or name another column."
            )


def _is_plain(kind: Any) -> bool:
    """Say whether each value has bytes of its own; of null there are only rows."""
    types = import_pyarrow().types
    bare = types.is_null(kind) or types.is_primitive(kind) or types.is_decimal(kind)
    return _is_text(kind) or holds_files(kind) or bare


def _is_text(kind: Any) -> bool:
    return str(kind) in ("string", "large_string")


def _only(found: Sequence[str], option: str, path: Path) -> str | None:
    if len(found) > 1:
        raise DatasetError(
            f"{path} has the columns {', '.join(found)}, each of which may be the "
            f"{option}. Say which: --{option}-column {found[0]}"
        )
    return found[0] if found else None


def _others(pictures: Sequence[str]) -> str:
    return f"Name {' or '.join(pictures)}." if pictures else "The table has none."
