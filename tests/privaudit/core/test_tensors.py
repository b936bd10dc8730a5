import numpy as np
import torch

from privaudit.core.tensors import LazyTensors, digest, distinct


def test_equal_tensors_are_found_by_identity_and_by_content() -> None:
    one, other = torch.tensor([1.0]), torch.tensor([2.0])
    parts = [{"a": one}, {"a": other}, {"a": one}, {"a": one.clone()}, {"b": one}, {}]
    assert distinct(parts) == ([0, 1, 4, 5], [0, 1, 0, 0, 2, 3])
    assert distinct(parts[:4], [{}, {}, {"a": one}, {}]) == ([0, 1, 2], [0, 1, 2, 0])


def test_tensors_that_nobody_keeps_are_told_apart() -> None:
    """One may get the place in memory of the one before."""

    def made(number: float) -> LazyTensors:
        return LazyTensors("ab", lambda _: torch.full((4,), number))

    parts = [made(number) for number in (0.0, 0.0, 1.0, 0.0, 1.0)]
    assert distinct(parts) == ([0, 2], [0, 0, 1, 0, 1])


def test_an_empty_array_of_numpy_has_the_digest_of_an_empty_tensor() -> None:
    """Its strides are 0."""
    loaded = torch.from_numpy(np.array([], dtype=np.float32)[::1])
    strided = torch.zeros(1).as_strided((0,), (0,))
    assert digest(loaded) == digest(strided) == digest(torch.zeros(0))
