"""Pickles read as data; and steps that Python's own reader does, which bloat or end it."""

import os
import pickle
import struct
import subprocess
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privaudit.core.errors import ConfigError, LimitError
from privaudit.datasets.files.plain_pickle import (
    Named,
    PickledArray,
    PickledType,
    Stateful,
    array_constructors,
    read_plain_pickle,
)


def read(content: bytes) -> Any:
    return read_plain_pickle(content, "It", array_constructors(content))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text(max_size=9)
    | st.floats(allow_nan=False) | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner, inner, inner)
    | st.dictionaries(st.text(max_size=5) | st.integers(0, 9), inner, max_size=3),
    max_leaves=9,
)  # fmt: skip


@given(PLAIN, st.integers(0, 5))
def test_what_is_plain_comes_back_from_every_protocol(value: Any, kind: int) -> None:
    assert read(pickle.dumps(value, kind)) == value


@given(st.integers(0, 5), st.sampled_from(["u1", ">i4", "<f8", "?"]), st.booleans())
def test_arrays_come_back_from_every_protocol(
    kind: int, dtype: str, by_columns: bool
) -> None:
    wanted = np.arange(6).reshape(2, 3).astype(dtype)
    wanted = np.asfortranarray(wanted) if by_columns else wanted
    found = read(pickle.dumps({"a": wanted, "b": wanted}, kind))["b"]
    assert isinstance(found, PickledArray)
    assert found.array.tolist() == wanted.tolist()
    assert found.array.dtype == wanted.dtype


class Calls:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.reduced = (function, arguments)

    def __reduce__(self) -> Any:
        return self.reduced


class Stated:
    def __reduce__(self) -> Any:
        return (OrderedDict, (), {"a": 1})


MARKER = "a-pickle-ran"
ATTACKS: dict[str, Any] = {
    "os.system": Calls(os.system, f"touch {MARKER}"),
    "builtins.eval": Calls(eval, f"open({MARKER!r}, 'w')"),
    "subprocess.Popen": Calls(subprocess.Popen, ["touch", MARKER]),
    "nested": {"data": [1, (2, {"deeper": Calls(os.system, f"touch {MARKER}")})]},
    "as an argument": Calls(np.dtype, Calls(os.system, f"touch {MARKER}")),
    "getattr": Calls(getattr, Calls(__import__, "os"), "system"),
    "object array": np.array([Calls(os.system, f"touch {MARKER}")], dtype=object),
    "records": np.zeros(2, dtype=[("a", "u1")]),
    "a class": OrderedDict(a=1),
    "a state": Stated(),
    "a function": os.system,
    "a set": {1, 2},
    "a large number": 10**400,
    "another coding": Calls(__import__("_codecs").encode, "x", "rot13"),
}


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_pickle_is_one_line_and_runs_nothing(
    attack: str, protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = pickle.dumps(ATTACKS[attack], protocol)
    with pytest.raises(ConfigError, match="nothing of it was run") as caught:
        read(content)
    assert not (tmp_path / MARKER).exists()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def array_of(shape: bytes, content: bytes) -> bytes:
    """Return the pickle of an array that declares a shape."""
    return (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b"
        b"\x87R(K\x01" + shape + b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN"
        b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + struct.pack("<i", len(content)) + content + b"tb."
    )  # fmt: skip


HUGE = struct.pack("<i", 2**31 - 1)
DAMAGED = {
    "empty": b"",
    "a text": b"not a pickle",
    "cut": pickle.dumps([1, 2, "three"])[:-4],
    "a huge text": b"\x80\x04X" + b"\xff\xff\xff\x7f" + b"ab.",
    "a text of 2^63": b"\x80\x04\x8d" + struct.pack("<Q", 2**63 - 1) + b"ab.",
    "bytes of -1": b"T\xff\xff\xff\xff.",
    "a number of 2 GB": b"\x80\x02\x8b" + HUGE + b"\x01.",
    "a frame of 2^62": b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"ab",
    "a huge array": array_of(b"J" + HUGE + b"J" + HUGE + b"\x86", b"abc"),
    "a huge array of none": array_of(b"K\x00J" + HUGE + b"\x86", b"abc"),
    "a negative array": array_of(b"J\xff\xff\xff\xffJ\xfd\xff\xff\xff\x86", b"abc"),
    "an array of lists": array_of(b"]", b""),
    "no such memo": b"\x80\x02h\x07.",
    "no such mark": b"\x80\x02t.",
    "an empty stack": b"\x80\x020.",
    "two objects": b"\x80\x02NN.",
    "items for a number": b"\x80\x02K\x01K\x02a.",
    "entries for a list": b"\x80\x02]K\x02K\x02s.",
    "a list as a key": b"\x80\x02}]Ns.",
    "a nested key": b"\x80\x02})" + b"\x85" * 50_000 + b"Ns.",
    "a call of a number": b"\x80\x02K\x01)R.",
    "a state for a list": b"\x80\x02]}b.",
    "an extension": b"\x80\x02\x82\x01.",
    "another store": b"\x80\x02K\x01Q.",
    "a text of digits": b"I" + b"9" * 5000 + b"\n.",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_and_huge_lengths_are_one_line(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^It .*nothing of it was run"):
        read(DAMAGED[name])


def test_a_list_in_a_list_in_a_list_takes_no_more_than_its_steps() -> None:
    """Sixty lists, each of the one before twice: 2 to the 60 if they were copied."""
    steps = b"\x80\x02]q\x00" + b"".join(
        b"](h%ch%ceq%c" % (n, n, n + 1) for n in range(60)
    )
    content = steps + b"1"  # the last list alone is not what is left
    with pytest.raises(ConfigError, match="damaged"):
        read(content + b".")
    found = read(b"\x80\x02(" + steps[2:] + b"l.")
    assert len(found) == 61


def test_a_text_that_is_made_bytes_again_and_again_is_refused() -> None:
    text = b"X" + struct.pack("<i", 1000) + b"a" * 1000
    call = b"h\x01h\x00h\x02\x86R"
    start = (
        b"\x80\x02]("
        + text
        + b"q\x00c_codecs\nencode\nq\x01X\x06\x00\x00\x00latin1q\x02"
    )
    assert len(read(start + call + b"e.")) == 4
    with pytest.raises(ConfigError, match="more bytes than it has"):
        read(start + call * 40 + b"e.")


def test_more_steps_than_the_bound_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVAUDIT_MAX_ENTRIES", "100")
    with pytest.raises(LimitError, match="PRIVAUDIT_MAX_ENTRIES=101"):
        read(b"\x80\x02](" + b"}" * 200 + b"e.")
    assert len(read(b"\x80\x02](" + b"}" * 50 + b"e.")) == 50


def test_what_holds_itself_is_read() -> None:
    found = read(b"\x80\x02]q\x00h\x00a.")
    assert found[0] is found


@pytest.mark.parametrize(
    ("identifier", "says"),
    [
        (b"K\x01", "no short tuple"),
        (b"(" + b"N" * 9 + b"t", "no short tuple"),
        (b"]\x85", "more than plain values"),
        (b"K\x01\x85\x85", "more than plain values"),
    ],
)
def test_an_identifier_of_what_lies_outside_is_a_flat_tuple(
    identifier: bytes, says: str
) -> None:
    def stored(given: Any) -> Any:
        return given

    plain = b"\x80\x02(K\x01NU\x01atQ."
    assert read_plain_pickle(plain, "It", {}, stored) == (1, None, b"a")
    with pytest.raises(ConfigError, match=says):
        read_plain_pickle(b"\x80\x02" + identifier + b"Q.", "It", {}, stored)


def test_a_name_put_together_of_long_texts_is_refused() -> None:
    """A text that is there once would be copied for each name."""

    def find(name: str) -> Any:
        return dict

    def named(length: int) -> bytes:
        text = b"X" + struct.pack("<i", length) + b"a" * length
        return b"\x80\x04" + text + b"\x8c\x01b\x93."

    assert read_plain_pickle(named(500), "It", find).name == "a" * 500 + ".b"
    with pytest.raises(ConfigError, match="a name of more than 512 characters"):
        read_plain_pickle(named(512), "It", find)


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
