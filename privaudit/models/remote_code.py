"""Whether code that comes with a model may run: never, unless a user allows it.

A run says that it was trained so, and cannot allow it itself: who attacks a run of
somebody else decides anew.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

from privaudit.core.context import set_within

_trusted: ContextVar[bool] = ContextVar("remote code", default=False)
_refused: ContextVar[bool] = ContextVar("refused remote code", default=False)


def trust_remote_code(trusted: bool = True) -> AbstractContextManager[None]:
    """Let models of transformers that are loaded within run code of their own.

    It runs with all rights of the user, also where a run was made by others.

    Example:
        >>> with trust_remote_code():
        ...     remote_code_is_trusted()
        True
        >>> remote_code_is_trusted()
        False
    """
    return set_within(_trusted, trusted)


def remote_code_is_trusted() -> bool:
    """Say whether models may run code of their own."""
    return _trusted.get()


@contextmanager
def refuse_remote_code() -> Iterator[None]:
    """Let no model within run code of its own, whatever a user allows."""
    with set_within(_refused, True), trust_remote_code(False):
        yield


def remote_code_is_refused() -> bool:
    """Say whether a user could not allow models to run code of their own."""
    return _refused.get()
