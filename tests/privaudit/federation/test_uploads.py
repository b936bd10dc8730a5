"""Tensors in few bits: size, error, and no bias."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privaudit.core.errors import TranscriptError
from privaudit.core.seeds import Seeds
from privaudit.federation.uploads import RANGE, quantised, with_numbers

BITS = st.integers(1, 16)


def there_and_back(tensor: torch.Tensor, bits: int, stochastic: bool) -> torch.Tensor:
    draws = Seeds(1).stream("draws").uniform_tensor(tensor.shape)
    sent = quantised("a", tensor, bits, draws if stochastic else None)
    return with_numbers(sent, {"a": tensor[0]})["a"]


@given(
    bits=BITS,
    shape=st.tuples(*[st.integers(1, 5)] * 3),
    stochastic=st.booleans(),
    scale=st.floats(1e-6, 1e3),
)
def test_no_number_moves_by_more_than_a_step(
    bits: int, shape: tuple[int, ...], stochastic: bool, scale: float
) -> None:
    tensor = scale * Seeds(len(shape) + bits).stream("x").normal_tensor(shape)
    back = there_and_back(tensor, bits, stochastic)
    rows = tensor.flatten(1)
    width = rows.max(dim=1).values - rows.min(dim=1).values
    step = width / (2**bits - 1) * (1 if stochastic else 0.5)
    error = (back - tensor).flatten(1).abs().max(dim=1).values
    assert (error <= step * 1.01 + 1e-5 * scale).all()


@pytest.mark.parametrize("bits", [1, 3, 4, 8, 16])
def test_codes_are_packed_bit_by_bit(bits: int) -> None:
    tensor = torch.arange(30.0).view(2, 3, 5)
    sent = quantised("a", tensor, bits, None)
    assert sent["a"].dtype == torch.uint8
    assert sent["a"].shape == (2, -(-15 * bits // 8))
    assert sent[RANGE + "a"].tolist() == [[0, 14, bits], [15, 29, bits]]


def test_stochastic_rounding_has_no_bias() -> None:
    """The mean of n roundings has a standard error of half a step over sqrt(n)."""
    numbers = torch.tensor([0.0, 0.1, 0.45, 0.8, 1.0])
    back = there_and_back(numbers.repeat(10_000, 1), 1, stochastic=True)
    assert torch.allclose(back.mean(dim=0), numbers, atol=5 * 0.5 / 100)
    assert back.unique().tolist() == [0, 1]


def test_a_tensor_of_one_value_stays_that() -> None:
    for value in (0.0, -3.5):
        tensor = torch.full((2, 4), value)
        assert torch.equal(there_and_back(tensor, 4, stochastic=True), tensor)


def test_what_was_sent_as_it_is_stays() -> None:
    plain = {"a": torch.ones(2, 3), "weight": torch.ones(2)}
    assert with_numbers(plain, {}) == plain


@pytest.mark.parametrize(
    ("codes", "ends"),
    [
        ((1, 2), [[0.0, 1.0, 0.0]]),
        ((1, 2), [[0.0, 1.0, -1.0]]),
        ((1, 2), [[0.0, 1.0, 4e8]]),
        ((1, 2), [[0.0, 1.0, float("nan")]]),
        ((1, 2), [[0.0, 1.0, 3.5]]),
        ((1, 2), [[float("inf"), 1.0, 4.0]]),
        ((1, 2), [[0.0, 4.0]]),
        ((1, 1), [[0.0, 1.0, 4.0]]),
        ((1, 3), [[0.0, 1.0, 4.0]]),
        ((2, 2), [[0.0, 1.0, 4.0], [0.0, 1.0, 3.0]]),
    ],
)
def test_messages_that_do_not_fit_are_refused(
    codes: tuple[int, int], ends: list[list[float]]
) -> None:
    sent = {"a": torch.zeros(codes, dtype=torch.uint8), RANGE + "a": torch.tensor(ends)}
    with pytest.raises(TranscriptError, match="in few bits"):
        with_numbers(sent, {"a": torch.zeros(4)})


def test_codes_of_a_tensor_that_there_is_not_are_refused() -> None:
    sent = quantised("a", torch.ones(1, 4), 4, None)
    with pytest.raises(TranscriptError, match="'a' in few bits"):
        with_numbers(sent, {"b": torch.zeros(4)})
