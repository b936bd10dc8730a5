import torch

from privaudit.attacks.shadow import Shadow, _AttackModels, _balanced


def test_members_and_others_weigh_the_same_in_each_class() -> None:
    truth = torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 0]])
    there = torch.tensor([[1.0, 1, 1, 1], [1, 1, 1, 1]])
    weight = _balanced(truth, there)
    torch.testing.assert_close((weight * truth).sum(dim=1), torch.ones(2))
    torch.testing.assert_close((weight * (1 - truth)).sum(dim=1), torch.ones(2))


def test_each_record_is_judged_by_its_own_class() -> None:
    """Stacked perceptrons equal one perceptron at a time."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(20, 5, generator=generator)
    labels = torch.arange(20) % 3
    models = _AttackModels(inputs, 3, hidden=4, generator=generator)
    together = models(inputs, labels)
    for row in range(20):
        alone = models(inputs[row : row + 1], labels[row : row + 1])
        torch.testing.assert_close(alone[0], together[row])


def test_sorted_vectors_do_not_know_the_class() -> None:
    assert Shadow(vector="sorted").vector == "sorted"
