import pytest
import torch

from privaudit.core.errors import ConfigError
from privaudit.privacy.secure_aggregation.ideal_sum import secure_sum


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


def test_unequal_shapes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"first 'p' is \(2,\), number 1 \(3,\)"):
        secure_sum([{"p": torch.zeros(2)}, {"p": torch.zeros(3)}])


def test_what_a_client_does_not_send_counts_as_zeros() -> None:
    total = secure_sum([{"p": torch.ones(2)}, {"q": torch.ones(3)}, {}])
    assert total["p"].tolist() == [1, 1]
    assert total["q"].tolist() == [1, 1, 1]


def test_a_sum_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="no message"):
        secure_sum([])
