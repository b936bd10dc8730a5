"""Parameters of what users name: read, checked, and written as JSON."""

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal, Protocol

import pytest
from pydantic import BaseModel, Field, ValidationError
from pydantic.dataclasses import dataclass

from privaudit.core.errors import ConfigError
from privaudit.core.parameters import (
    LATER,
    MOST,
    above_zero,
    at_least_one,
    build,
    complete_settings,
    field_names,
    first_problem,
    fraction,
    from_plain,
    parse_pairs,
    parse_spec,
    probability,
    refuse_incomplete,
    to_plain,
)


@dataclass(frozen=True)
class Method:
    """A method of a user."""

    rank: Annotated[int, Field(ge=1)] | Literal["full"] = 8
    rate: Annotated[float, Field(gt=0)] = 0.1
    is_private: bool = False
    later: Annotated[int | None, Field(json_schema_extra=LATER)] = None

    def __post_init__(self) -> None:
        """Refuse what does not go together."""
        if self.is_private and self.rank == "full":
            raise ValueError("a private method has a rank.")


def test_pairs_are_read_and_none_is_no_value() -> None:
    texts = ["learning-rate=0.1", "epsilon=none", "path=a=b"]
    read = {"learning_rate": "0.1", "epsilon": None, "path": "a=b"}
    assert parse_pairs("--set a=1", texts) == read
    for text in ("rank", "=3", ""):
        with pytest.raises(ConfigError, match=r"Write NAME=VALUE, as in --set a=1\."):
            parse_pairs("--set a=1", [text])


def test_a_name_with_its_parameters() -> None:
    asked = "labels:images=200,epsilon=none"
    expected = ("labels", {"images": "200", "epsilon": None})
    assert parse_spec("--attack", asked, "x:a=1") == expected
    assert parse_spec("--attack", "labels", "x:a=1") == ("labels", {})
    for text, lacks in (("", "a name"), (":a=1", "a name"), ("labels:", "a parameter")):
        with pytest.raises(ConfigError, match=f"lacks {lacks}"):
            parse_spec("--attack", text, "x:a=1")


def test_what_is_built_reads_texts_and_has_its_defaults() -> None:
    made = build("method", Method, {"rank": "4", "rate": "0.5"})
    assert made == Method(rank=4, rate=0.5)
    assert field_names(Method) == {"rank", "rate", "is_private", "later"}
    assert field_names(len) == frozenset()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"ranks": 3},
            r"no parameter 'ranks'. It has: is_private, later, rank, rate\.",
        ),
        ({"rank": "half"}, r"cannot take rank = 'half': .* integer.*; or: .*'full'\.$"),
        ({"rate": 0}, r"cannot take rate = 0: .* greater than 0\.$"),
        ({"rate": True}, r"cannot take rate = True: that is no number"),
        ({"rank": "full", "is_private": True}, r"made: a private method has a rank\.$"),
        ({"rank": MOST + 1}, r"cannot take rank = 1000001: at most 1,000,000 are"),
    ],
)
def test_a_bad_parameter_is_named_with_what_is_wrong(
    settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        build("method 'm'", Method, settings)


def test_what_a_later_version_added_is_written_where_it_is_set() -> None:
    plain = {"rank": 8, "rate": 0.1, "is_private": False}
    assert complete_settings(Method()) == plain
    assert complete_settings(Method(later=3)) == {**plain, "later": 3}


def test_of_a_union_all_kinds_are_said_of_one_place() -> None:
    with pytest.raises(ValidationError) as caught:
        Method(rank="half", rate=-1.0)  # type: ignore[arg-type]
    place, says = first_problem(caught.value.errors())
    assert place == ("rank",)
    assert says.count("; or: ") == 1
    assert "greater" not in says  # which is said of the rate


def test_a_field_that_is_called_like_a_kind_keeps_its_name() -> None:
    class Strict(BaseModel, extra="forbid"):
        """A file's content."""

    with pytest.raises(ValidationError) as caught:
        Strict.model_validate({"int": 3})
    assert first_problem(caught.value.errors())[0] == ("int",)


def test_json_has_what_was_written() -> None:
    made = Method(rank="full", rate=0.25)
    assert from_plain(Method, to_plain(Method, made)) == made
    with pytest.raises(ValueError, match=r"entry cannot take rate = -1"):
        from_plain(Method, {"rate": -1})


def test_an_object_without_what_is_asked_is_refused() -> None:
    class Asked(Protocol):
        def score(self) -> float: ...
        def name(self) -> str: ...

    class Half:
        def name(self) -> str:
            return "half"

    with pytest.raises(ConfigError, match=r"Half\) has no score\. Write one\.$"):
        refuse_incomplete("attack", Half(), Asked, "Write one.")


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (above_zero, (1e-9, 1e9), (0.0, -1.0, math.inf, math.nan)),
        (at_least_one, (1, 5), (0, -1, -(10**400), -(10**5000))),
        (fraction, (1e-9, 1.0), (0.0, 1.5, math.nan)),
        (probability, (1e-9, 0.5), (0.0, 1.0, math.nan)),
    ],
)
def test_ranges_end_where_they_say(
    check: Callable[[str, Any], None], good: tuple[float, ...], bad: tuple[float, ...]
) -> None:
    for value in good:
        check("share", value)
    for value in bad:
        with pytest.raises(ConfigError, match=r"The share must be .*, and is "):
            check("share", value)
