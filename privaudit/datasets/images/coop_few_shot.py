"""CoOp's few-shot splits, split_fewshot/shot_N-seed_S.pkl, read with nothing of them run.

Source: CoOp's data sets pickle {"train": [...], "val": [...]} of Dassl's Datum, which
holds a picture's full path on the machine of whoever drew the split, its label, its
domain and its class's name.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import Field

from privaudit.core.errors import DatasetError, shown
from privaudit.core.storage import read_bytes
from privaudit.datasets.files.plain_pickle import Stateful, read_plain_pickle

Label = Annotated[int, Field(strict=True, gt=-(2**31), lt=2**31)]
Row = tuple[str, Label, str]  # a file, its label, the class's name
DEEPEST = 64  # parts of a path, each of which may begin the name


class _Datum(Stateful):
    """What a pickled record says of itself."""

    def __init__(self) -> None:
        self.fields: Mapping[Any, Any] = {}

    def set_state(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise ValueError("a record whose state is no dict")
        self.fields = state


_CONSTRUCTORS = {
    f"{module}.Datum": _Datum
    for module in (
        "dassl.data.datasets.base_dataset",
        "dassl.data.datasets",
        "Dassl.dassl.data.datasets.base_dataset",  # FedOTP's, DP-FPL's: their own copy
    )
}


def read_few_shot(path: Path, known: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of a few-shot split, each with the file's name in the full split.

    Args:
        path: The pickle.
        known: Rows of the full split's train and val, whose names end the pickle's
            paths.
    """
    found = read_plain_pickle(read_bytes(path, "list"), str(path), _CONSTRUCTORS)
    if not isinstance(found, dict) or not found.get("train"):
        raise DatasetError(f"{path} lists no picture under train. Get it again.")
    by_name = {row[0]: row for row in known}
    lengths = sorted({name.count("/") + 1 for name in by_name}, reverse=True)
    return {
        part: [
            _row(path, one, by_name, lengths)
            for one in _listed(path, found.get(part), len(known))
        ]
        for part in ("train", "val")
    }


def _listed(path: Path, part: Any, most: int) -> list[Any]:
    if part is None:
        return []
    if not isinstance(part, list) or not all(isinstance(one, _Datum) for one in part):
        raise DatasetError(f"{path} does not list records. Get it again.")
    if len(part) > most:
        raise DatasetError(
            f"{path} lists {len(part):,} records, and train and val of the full split "
            f"have {most:,}. Use the two of one download."
        )
    return part


def _row(
    path: Path, one: _Datum, known: Mapping[str, Row], lengths: Sequence[int]
) -> Row:
    """Return the full split's row of the picture whose path a record ends with."""
    full, label = one.fields.get("_impath"), one.fields.get("_label")
    if not isinstance(full, str) or type(label) is not int or len(full) > 4096:
        raise DatasetError(f"A record in {path} has no path or no label. Get it again.")
    parts = PurePosixPath(full.replace("\\", "/")).parts
    if len(parts) > DEEPEST:
        raise DatasetError(
            f"A record in {path} lies in more than {DEEPEST} folders. Get it again."
        )
    names = ("/".join(parts[-length:]) for length in lengths if length <= len(parts))
    row = next((known[name] for name in names if name in known), None)
    if row is None or row[1] != label:
        raise DatasetError(
            f"{path} has {shown(full)} with label {label}, and train and val of the "
            "full split have not. Use the two of one download."
        )
    return row
