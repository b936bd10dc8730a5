"""Rows of a table that are read together."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privaudit.core.errors import ConfigError, DatasetError, PrivauditError
from privaudit.core.formatting import install_line


@dataclass(frozen=True)
class Block:
    """Rows that are read together: a row group of Parquet, a record batch of Arrow.

    Attributes:
        schema: The columns with their types, as pyarrow has them.
        read: Returns some columns of all rows as a pyarrow table.
    """

    file: Path
    rows: int
    schema: Any
    read: Callable[[Sequence[str]], Any]


def import_pyarrow() -> Any:
    """Import pyarrow."""
    try:
        importlib.import_module("pyarrow.parquet")
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise ConfigError(
            f"The data set hf is read with pyarrow, which cannot be imported ({error})."
            f" Install it: {install_line('hf')}."
        ) from None


@contextmanager
def readable_table(file: Path) -> Iterator[None]:
    """Turn what pyarrow raises on a damaged file into one clear line."""
    try:
        yield
    except PrivauditError:
        raise
    except (import_pyarrow().lib.ArrowException, OSError, ValueError, MemoryError) as e:
        reason = str(e).strip().partition("\n")[0] or type(e).__name__
        raise DatasetError(
            f"{file} cannot be read ({reason}): it is damaged, or no table of its "
            "kind. Get it again."
        ) from None
