"""Values that hold within a block, as the device that is computed on."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def set_within(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Let a variable have a value within, and behind it the one of before."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
