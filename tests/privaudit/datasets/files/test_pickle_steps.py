"""Steps that Python's own reader does, and that bloat it, end it or change what is made."""

import struct
from typing import Any

import pytest

from privaudit.core.errors import ConfigError
from privaudit.datasets.files.pickled_arrays import PickledArray, PickledType
from privaudit.datasets.files.plain_pickle import Named, Stateful, read_plain_pickle


class Made(Stateful):
    """What a constructor returns, with an attribute that a state would change."""

    def __init__(self, *_: Any) -> None:
        self.bound = 1


class Open:
    """What could be given any state."""


STATE = b"}X\x05\x00\x00\x00boundK\x02s"
DOUBLED = b"".join(b"q%ch%c\x86" % (n, n) for n in range(60))
STEPS = {
    "puts aside more": b"Nr" + struct.pack("<I", 10**8) + b".",
    "nor a number": b"\x80\x02})" + DOUBLED + b"Ns.",
    "neither a text": b"\x80\x02}(" + b")" + DOUBLED + b"Nu.",
    "state for a Made": b"\x80\x02cm\nmade\n)R" + STATE + b"b.",
    "a state for a M": b"\x80\x02cm\nmade\n)\x81" + STATE + b"b.",
    "mappingproxy": b"\x80\x02cm\nmade\n" + STATE + b"b.",
    "a state for a name": b"\x80\x02cm\nmade\nN" + STATE + b"\x86b.",
    "a Open in place": b"\x80\x02cm\nopen\n)R" + STATE + b"b.",
    "not callable": b"\x80\x02K\x01)R.",
    "more than there is": b"\x80\x02(\x85.",
    "asks for 'm.other'": b"\x80\x02cm\nother\n)R.",
    "has a step EMPTY_SET": b"\x80\x04\x8f.",
}


@pytest.mark.parametrize("says", STEPS)
def test_a_step_that_would_do_harm_is_refused(says: str) -> None:
    constructors = {"m.made": Made, "m.open": Open}
    with pytest.raises(ConfigError, match=says):
        read_plain_pickle(STEPS[says], "It", constructors)


def test_what_is_put_aside_keeps_its_type() -> None:
    """A text that is taken again is still a key, and a tuple is still none."""
    found = read_plain_pickle(
        b"\x80\x02(X\x01\x00\x00\x00aq\x00}h\x00h\x00st.", "It", {}
    )
    assert found == ("a", {"a": "a"})


def test_a_name_that_comes_again_makes_no_class_again() -> None:
    found = read_plain_pickle(
        b"(" + b"cm\nmade\n" * 1000 + b"l.", "It", {"m.made": Made}
    )
    assert len({id(one) for one in found}) == 1


NAMES: dict[str, Any] = {
    "numpy.dtype": PickledType, "numpy._core.numeric._frombuffer": PickledArray.of_buffer,
}  # fmt: skip
TYPE = b"cnumpy\ndtype\n(X\x02\x00\x00\x00u1tR"


@pytest.mark.parametrize("state", [b"(" + b"N" * 10 + b"t", b"(NX\x01\x00\x00\x00|l"])
def test_a_state_that_is_long_or_no_tuple_is_refused(state: bytes) -> None:
    """Each step that sets it would copy it."""
    with pytest.raises(ConfigError, match="no short tuple"):
        read_plain_pickle(b"\x80\x02" + TYPE + state + b"b.", "It", NAMES)


def test_each_name_is_a_class_of_its_own() -> None:
    names = {"m.made": Made, "m.other": Made}
    found = read_plain_pickle(b"\x80\x02cm\nmade\ncm\nother\n\x86.", "It", names)
    assert [type(one) for one in found] == [Named, Named]
    assert found[0] is not found[1]
    assert found[0].name == "m.made"
