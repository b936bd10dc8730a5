from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from privaudit.core.streams import Stream
from privaudit.federated.batches import with_canaries
from tests.type_checks import EVERY, FIRST, jaxtyped_once

check = jaxtyped_once(typechecker=None)


@check
def added(one: Float[Tensor, " n"], other: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return one + other if len(one) > 1 else torch.zeros(2)


@check
@dataclass(frozen=True)
class Pair:
    one: Float[Tensor, " n"]
    other: Float[Tensor, " n"]


def test_axes_of_one_name_are_equally_long_in_each_call() -> None:
    for length in (2, 3):
        assert len(added(torch.zeros(length), torch.zeros(length))) == length
    with pytest.raises(TypeCheckError):
        added(torch.zeros(3), torch.zeros(1))
    with pytest.raises(TypeCheckError):
        Pair(torch.zeros(2), torch.zeros(3))


def test_what_is_returned_has_the_axes_of_what_was_given() -> None:
    with pytest.raises(TypeCheckError):
        added(torch.zeros(1), torch.zeros(1))


@pytest.mark.parametrize("again", range(2))
def test_so_it_is_at_first_in_every_test_and_now_and_then_after(
    again: int,
) -> None:
    for _ in range(FIRST - 1):
        added(torch.zeros(2), torch.zeros(2))
    for _ in range(3):
        with pytest.raises(TypeCheckError):
            added(torch.zeros(3), torch.zeros(1))
        for _ in range(EVERY - 1):
            assert len(added(torch.zeros(3), torch.zeros(1))) == 3


def test_the_package_is_checked() -> None:
    with pytest.raises(TypeCheckError):
        Stream("a key")  # type: ignore[arg-type]
    with pytest.raises(TypeCheckError):
        with_canaries(torch.zeros(2), torch.zeros(2), None)  # type: ignore[arg-type]


def adder(offset: int) -> Callable[[int], int]:
    @check
    def plus(number: int) -> int:
        return number + offset if number else plus(1)

    return plus


def test_functions_defined_by_one_outer_one_are_counted_together() -> None:
    for number in range(FIRST):
        assert adder(number)(1) == number + 1
    with pytest.raises(TypeCheckError):
        [adder(0)(1.0) for _ in range(EVERY)]  # type: ignore[arg-type]


def test_an_inner_function_is_checked_and_encloses_its_own_values() -> None:
    one, ten = adder(1), adder(10)
    assert (one(1), ten(1), one(0), ten(0)) == (2, 11, 2, 11)
    for each in (one, ten):
        with pytest.raises(TypeCheckError):
            each("1")  # type: ignore[arg-type]
    assert (one(5), ten(5)) == (6, 15)
