import torch

from privaudit.core.tensors import distinct


def test_equal_tensors_are_found_by_identity_and_by_content() -> None:
    one, other = torch.tensor([1.0]), torch.tensor([2.0])
    parts = [{"a": one}, {"a": other}, {"a": one}, {"a": one.clone()}, {"b": one}, {}]
    assert distinct(parts) == ([0, 1, 4, 5], [0, 1, 0, 0, 2, 3])
    assert distinct(parts[:4], [{}, {}, {"a": one}, {}]) == ([0, 1, 2], [0, 1, 2, 0])
