import torch

from privaudit.core.operations import count_operations


def test_matrix_products_are_counted_where_gradients_are_by_a_modules_own_input() -> (
    None
):
    """As a private trainer's derivative of the text tower takes them."""
    module = torch.nn.GELU()

    def compute() -> None:
        leaf = torch.randn(3, requires_grad=True)
        torch.autograd.grad(module(leaf).sum(), leaf)
        torch.randn(4, 5) @ torch.randn(5, 6)

    assert count_operations(compute) == 2 * 4 * 5 * 6
