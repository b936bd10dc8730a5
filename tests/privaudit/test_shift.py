import pytest

from privaudit.shift import Shift
from privaudit.statistics.comparisons import Comparison
from privaudit.statistics.estimate import Estimate


def about(value: float) -> Estimate:
    return Estimate(value, value - 0.05, value + 0.05, (100, 100), "made up")


@pytest.mark.parametrize(
    ("foreign", "untuned", "told"),
    [
        (0.8, 0.8, "distribution shift, not membership"),
        (0.8, 0.6, "membership shows beyond the distribution shift"),
        (0.52, 0.5, "nothing tells members from these foreign records"),
        (0.4, 0.3, "membership shows beyond the distribution shift"),
        (0.3, 0.4, "nothing tells members from these foreign records"),
        (0.57, 0.54, "undecided between distribution shift and membership"),
    ],
)
def test_the_sentence_says_no_more_than_the_difference(
    foreign: float, untuned: float, told: str
) -> None:
    beyond = Comparison(about(foreign - untuned), 0.5)
    found = Shift("token-loss", about(0.7), about(foreign), about(untuned), beyond)
    assert found.sentence == told
