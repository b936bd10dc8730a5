"""What masked sums promise: how exact they are, and against how many colluders."""

from privaudit_labs.secure_aggregation.primitives import FixedPoint


def error_of_sum(code: FixedPoint) -> float:
    """By how much the sum of all parties' numbers is off at most, before it is stored."""
    return code.parties * code.step / 2


def most_colluders(parties: int, threshold: int) -> int:
    """Return how many clients may side with a server that breaks every rule.

    Two thresholds of clients have at least 2 threshold - parties in common. One more
    than those who collude, and one of them is honest.
    """
    return 2 * threshold - parties - 1
