"""What stands above a table of attacks, and above the columns of a plan that has none."""

import pytest

from privaudit_tools.tables.utility_words import heads, title
from tests.tools.tables.test_metrics import plan_of


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


@pytest.mark.parametrize(
    ("scenario", "attacked"),
    [
        ("server-reconstruct", "reconstructed models"),
        ("prompt-release", "released models"),
        ("black-box", "queried models"),
    ],
)
def test_a_title_says_what_the_scenario_shows(scenario: str, attacked: str) -> None:
    plan = plan_of(scenario=scenario, metrics=["client loss-threshold"])
    assert title(plan, "client loss-threshold") == (
        f"AUROC of loss-threshold on {attacked}"
    )
    assert title(plan, "server loss-threshold").endswith("on the server's model")
