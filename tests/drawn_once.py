"""Pictures of pages, drawn once in a process: that is most of a page's time."""

import copyreg
import hashlib
import io
import marshal
import pickle
from collections.abc import Callable
from types import FunctionType
from typing import Any

from matplotlib.transforms import TransformNode

MOST = 1000  # of some tens of kilobytes
_drawn: dict[bytes, str] = {}


def forget() -> None:
    """Draw all pictures anew, as a test asks that says what drawing gives."""
    _drawn.clear()


class _Content(pickle.Pickler):
    """Writes a figure as bytes that are equal where all that is drawn is; never read."""

    def reducer_override(self, one: Any) -> Any:
        if isinstance(one, FunctionType):  # of ticks
            held = [cell.cell_contents for cell in one.__closure__ or ()]
            return tuple, ((one.__module__, marshal.dumps(one.__code__), held),)
        if isinstance(one, TransformNode):  # knows others by their addresses
            state: Any = one.__getstate__()
            known = {**state, "_parents": [*state["_parents"].values()]}
            return copyreg.__newobj__, (type(one),), known  # type: ignore[attr-defined]
        return NotImplemented


def drawn_once(draw: Callable[..., str]) -> Callable[..., str]:
    """Return what draws a figure, given with words, unless an equal one was drawn."""

    def once(*given: Any) -> str:
        content = io.BytesIO()
        try:
            _Content(content).dump((draw.__name__, *given))
        except (AttributeError, TypeError, pickle.PicklingError):  # of somebody else's
            return draw(*given)
        key = hashlib.sha256(content.getbuffer()).digest()
        if key not in _drawn:
            if len(_drawn) == MOST:
                _drawn.clear()
            _drawn[key] = draw(*given)
        return _drawn[key]

    return once
