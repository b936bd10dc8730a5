"""What stands above the columns of a plan that has none."""

import pytest

from privaudit_tools.tables.utility_words import heads


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("local", ["accuracy"]),
        ("mix on photo", ["accuracy"]),
        ("client loss-threshold", ["AUROC"]),
        ("megabytes per round", ["megabytes per round"]),
    ],
)
def test_the_only_column_is_named_by_what_it_holds(
    metric: str, said: list[str]
) -> None:
    assert heads(["accuracy"], metric) == said
    assert heads(["0.1", "10"], metric) == ["0.1", "10"]
