from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privaudit.core.errors import ConfigError
from privaudit.statistics.claim import ClaimKind, Guarantee, judge_claim
from privaudit.statistics.epsilon.bound import Adjacency, EpsilonBound

BOUND = EpsilonBound(
    1.2, 0.95, 1e-5, (50, 48), 2.5, "many runs", "by hand", can_refute=True
)


@pytest.mark.parametrize(
    ("claimed", "kind"),
    [
        (0.0, "REFUTED"),
        (0.4, "REFUTED"),
        (1.2, "NOT REFUTED"),
        (2.4, "NOT REFUTED"),
        (2.5, "UNDERPOWERED"),
        (8.0, "UNDERPOWERED"),
    ],
)
def test_a_claim_is_held_against_bound_and_ceiling(
    claimed: float, kind: ClaimKind
) -> None:
    verdict = judge_claim(Guarantee(claimed, 1e-5), None, BOUND)
    assert verdict.kind == kind
    assert str(verdict).startswith(f"{kind}: claimed is epsilon {claimed:g}")
    assert not verdict.alarm


def test_the_sentence_carries_its_evidence() -> None:
    verdict = judge_claim(Guarantee(0.4, 1e-5), None, BOUND)
    assert str(verdict) == (
        "REFUTED: claimed is epsilon 0.4 at delta 1e-05 (add/remove-one, per record); "
        "shown is epsilon >= 1.20 at 95 % (ceiling 2.50), delta = 1e-05, n = 50 + 48, "
        "many runs, by hand. Certified: none."
    )


def test_a_bound_beyond_the_certificate_is_an_alarm() -> None:
    verdict = judge_claim(Guarantee(0.4, 1e-5), Guarantee(1.1, 1e-5), BOUND)
    assert verdict.alarm
    assert "Certified: epsilon 1.1" in str(verdict)
    assert "ALARM" in str(verdict)
    fine = judge_claim(Guarantee(0.4, 1e-5), Guarantee(1.3, 1e-5), BOUND)
    assert fine.kind == "REFUTED"
    assert not fine.alarm
    assert "ALARM" not in str(fine)


def test_without_a_claim_the_certificate_is_still_watched() -> None:
    verdict = judge_claim(None, Guarantee(1.1, 1e-5), BOUND)
    assert verdict.kind == "UNTESTABLE"
    assert verdict.alarm
    assert "claimed is no epsilon" in str(verdict)
    assert "(add/remove-one, per record)" in str(verdict)


@pytest.mark.parametrize(
    ("bound", "why"),
    [
        (replace(BOUND, can_refute=False), "assumes the form of the noise"),
        (replace(BOUND, delta=1e-6), "at delta 1e-06; audit at 1e-05"),
        (replace(BOUND, adjacency="replace-one"), "canaries are replace-one"),
        (replace(BOUND, unit="client"), "one client"),
    ],
)
def test_a_bound_that_cannot_speak_about_a_claim_neither_refutes_nor_alarms(
    bound: EpsilonBound, why: str
) -> None:
    verdict = judge_claim(Guarantee(0.1, 1e-5), Guarantee(0.2, 1e-5), bound)
    assert verdict.kind == "UNTESTABLE"
    assert not verdict.alarm
    assert str(verdict).count(why) == 2


def test_a_bound_at_a_larger_delta_refutes_too() -> None:
    """(0.4, 1e-5)-DP is (0.4, 1e-3)-DP, which the bound rules out."""
    bound = replace(BOUND, delta=1e-3)
    assert judge_claim(Guarantee(0.4, 1e-5), None, bound).kind == "REFUTED"


@given(
    claimed=st.floats(0, 5),
    certified=st.floats(0, 5),
    value=st.floats(0, 5),
    room=st.floats(0, 5),
)
def test_nothing_but_a_bound_above_it_refutes(
    claimed: float, certified: float, value: float, room: float
) -> None:
    bound = replace(BOUND, value=value, ceiling=value + room)
    verdict = judge_claim(Guarantee(claimed, 0.0), Guarantee(certified, 0.0), bound)
    assert (verdict.kind == "REFUTED") == (value > claimed)
    assert (verdict.kind == "UNDERPOWERED") == (value + room <= claimed)
    assert verdict.alarm == (value > certified)


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(-1.0, 0.0), (float("inf"), 0.0), (float("nan"), 0.0), (1.0, 1.0)],
)
def test_what_guarantees_nothing_is_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(ConfigError, match="or None where nothing is guaranteed"):
        Guarantee(epsilon, delta)


@pytest.mark.parametrize(
    ("adjacency", "kind"),
    [("replace-one", "REFUTED"), ("add/remove-one", "UNTESTABLE")],
)
def test_a_canary_record_speaks_of_clients_that_are_replaced(
    adjacency: Adjacency, kind: str
) -> None:
    """Who may replace all records may add one; who leaves a client out may not."""
    claimed = Guarantee(0.4, 1e-5, adjacency, "client")
    verdict = judge_claim(claimed, claimed, BOUND)
    assert verdict.kind == kind
    assert verdict.alarm == (kind == "REFUTED")
