from privaudit.statistics.comparisons import Comparison
from privaudit.statistics.estimate import Estimate
from privaudit_labs.shift.distribution_shift_verdict import Shift
from privaudit_labs.shift.shift_table import HEADINGS, shift_table


def about(value: float) -> Estimate:
    return Estimate(value, value - 0.05, value + 0.05, (40, 30), "made up")


def test_a_row_holds_every_number_with_its_interval_and_the_sentence() -> None:
    inside = Estimate(0.5, 0.45, 0.55, (40, 35), "made up")
    found = Shift(
        "entropy",
        inside,
        about(0.8),
        about(0.75),
        Comparison(about(0.04), 0.5),
        about(0.9),
        Comparison(about(-0.1), 0.1),
    )
    heads, line, row, *rest = shift_table({"mine": [found]}).splitlines()
    assert row.startswith("| mine | entropy | 0.500 [0.450, 0.550] | 0.800 [0.750,")
    assert "| 40 + 35, 30 | distribution shift, not membership:" in row
    assert heads.count("|") == line.count("|") == row.count("|") == len(HEADINGS) + 5
    assert "n: members + others, foreign" in rest[1]
