import torch

from privaudit_tools.pretraining.tiny_clip import contrastive_loss
from privaudit_tools.pretraining.tiny_clip_validation import zero_shot_accuracy


def test_the_loss_of_perfect_logits_with_two_positives_is_log_2() -> None:
    matches = torch.block_diag(torch.ones(2, 2), torch.ones(1, 1)).bool()
    logits = torch.where(matches, 0.0, -1e4)
    expected = 2 / 3 * torch.tensor(2.0).log()
    torch.testing.assert_close(contrastive_loss(logits, matches), expected)


def test_with_one_positive_each_the_loss_is_that_of_clip() -> None:
    logits = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(6)
    by_picture = torch.nn.functional.cross_entropy(logits, labels)
    by_caption = torch.nn.functional.cross_entropy(logits.T, labels)
    torch.testing.assert_close(
        contrastive_loss(logits, torch.eye(6, dtype=torch.bool)),
        (by_picture + by_caption) / 2,
    )


def test_accuracy_counts_the_nearest_text() -> None:
    texts = torch.eye(2)
    features = torch.tensor([[2.0, 1.0], [0.0, 3.0], [5.0, 1.0], [1.0, 0.5]])
    labels = torch.tensor([0, 1, 1, 0])
    assert zero_shot_accuracy(features, texts, labels) == 0.75
