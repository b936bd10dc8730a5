import pytest
import torch

from privaudit.errors import ConfigError
from privaudit.privacy.secure_sum import secure_sum


def test_sums_are_those_of_pencil_and_paper() -> None:
    messages = [{"p": torch.tensor([1.0, 2.0]), "weight": torch.tensor(3.0)}] * 2
    total = secure_sum(messages)
    assert total["p"].tolist() == [2.0, 4.0]
    assert total["weight"].item() == 6.0
    assert messages[0]["p"].tolist() == [1.0, 2.0]


def test_small_terms_survive_beside_large_ones() -> None:
    terms = [1e8, *[1.0] * 64, -1e8]
    total = secure_sum([{"p": torch.tensor(term)} for term in terms])
    assert total["p"].item() == 64.0
    assert total["p"].dtype == torch.float32


@pytest.mark.parametrize(
    "other", [{"q": torch.zeros(2)}, {"p": torch.zeros(3)}, {}], ids=str
)
def test_unequal_messages_are_refused(other: dict[str, torch.Tensor]) -> None:
    with pytest.raises(ConfigError, match="message 1 holds"):
        secure_sum([{"p": torch.zeros(2)}, other])


def test_a_sum_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="no message"):
        secure_sum([])
