import pytest

from privaudit.statistics.claim import Guarantee, judge_claim
from privaudit.statistics.epsilon.bound import Adjacency, EpsilonBound

SHOWN = EpsilonBound(
    1.2, 0.95, 1e-5, (50, 50), 2.57, "many runs", "Clopper-Pearson", can_refute=True
)


@pytest.mark.parametrize(
    ("adjacency", "kind"),
    [("replace-one", "REFUTED"), ("add/remove-one", "UNTESTABLE")],
)
def test_a_canary_record_speaks_of_clients_that_are_replaced(
    adjacency: Adjacency, kind: str
) -> None:
    """Who may replace all records may add one; who leaves a client out may not."""
    claimed = Guarantee(0.4, 1e-5, adjacency, "client")
    verdict = judge_claim(claimed, claimed, SHOWN)
    assert verdict.kind == kind
    assert verdict.alarm == (kind == "REFUTED")


def test_a_canary_client_says_nothing_of_records() -> None:
    bound = EpsilonBound(**{**vars(SHOWN), "unit": "client"})
    assert judge_claim(Guarantee(0.4, 1e-5), None, bound).kind == "UNTESTABLE"
