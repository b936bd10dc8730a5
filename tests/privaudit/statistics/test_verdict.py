import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privaudit.core.errors import ConfigError, UnknownNameError
from privaudit.statistics.comparisons import pooled_paired_auroc_difference
from privaudit.statistics.estimate import Estimate, unresolved
from privaudit.statistics.evidence import Limits, MembershipEvidence, weigh
from privaudit.statistics.membership_test import (
    ALPHA,
    MembershipTest,
    Strata,
    membership_test,
)
from privaudit.statistics.roc import pooled_auroc
from privaudit.statistics.verdict import (
    Pooled,
    Verdict,
    as_tested,
    enough_to_exclude,
    judge_leak,
)


def _auroc(value: float, low: float, high: float) -> Estimate:
    return Estimate(value, low, high, (640, 640), "AUROC")


def _found(
    p: float = 0.5, average: float = 0.5, tail: float = 0.5
) -> MembershipEvidence:
    """Return evidence whose bound on the tail is 3 %."""
    test = MembershipTest(p, average, tail, (12, 13))
    return MembershipEvidence(test, 19, 18, (1000, 1000))


def _audit(strata: Strata, audits: int = 1) -> Verdict:
    test = membership_test(strata)
    evidence = weigh(test, strata, alpha=ALPHA / audits)
    auroc = pooled_auroc([(s[t], s[~t]) for s, t in strata])
    return judge_leak(as_tested(auroc, test), audits=audits, evidence=evidence)


def _normal(
    rng: np.random.Generator, members: int, others: int, share: float = 0.0
) -> Strata:
    """Return noise, with a share of members 8 above it."""
    scores = rng.normal(size=members + others)
    scores[: round(share * members)] += 8
    return [(scores, np.arange(members + others) < members)]


@pytest.mark.parametrize(
    ("low", "high", "kind", "words"),
    [
        (0.502, 0.560, "leaks", "lies above 0.5"),
        (0.502, 0.520, "leaks", "lies above 0.5"),
        (0.480, 0.540, "no evidence", "nothing above 0.55"),
        (0.500, 0.550, "no evidence", "nothing above 0.55"),
        (0.450, 0.500, "no evidence", "nothing above 0.55."),
        (0.300, 0.520, "no evidence", "above 0.55; with the sign turned, up to 0.700"),
        (0.400, 0.480, "reversed", "members have the lower scores"),
        (0.000, 0.071, "reversed", "Separates, with the sign turned: AUROC 0.03"),
        (0.480, 0.580, "underpowered", "both 0.5 and values above 0.55"),
    ],
)
def test_of_an_auroc_alone_the_interval_decides(
    low: float, high: float, kind: str, words: str
) -> None:
    estimate = _auroc((low + high) / 2, low, high)
    ours = judge_leak(estimate)
    assert ours.kind == kind
    assert words in ours.sentence
    assert str(estimate) in ours.sentence


@pytest.mark.parametrize(
    ("evidence", "high", "kind", "parts", "words"),
    [
        (
            _found(0.02, 0.012, 0.4),
            0.56,
            "leaks",
            ("average",),
            "lies above 0.5 (p = 0",
        ),
        (_found(0.01, 0.4, 0.004), 0.54, "leaks", ("tail",), "12 of the 13 highest"),
        (_found(0.01, 0.01, 0.01), 0.54, "leaks", ("average", "tail"), "12 of the 13"),
        (_found(), 0.54, "no evidence", (), "at most 2.9% of members are told at 1 %"),
        (
            _found(),
            0.56,
            "underpowered",
            (),
            "includes both 0.5 and values above 0.55;",
        ),
        (
            _found(0.03, 0.02),
            0.56,
            "underpowered",
            (),
            "once the tail is tested beside",
        ),
        (_found(), 0.49, "reversed", (), "members have the lower scores"),
    ],
)
def test_the_test_of_membership_and_both_bounds_decide(
    evidence: MembershipEvidence,
    high: float,
    kind: str,
    parts: tuple[str, ...],
    words: str,
) -> None:
    assert evidence.test
    low = 0.501 if evidence.test.average <= 0.025 else high - 0.06
    auroc = as_tested(_auroc(high - 0.005, low, high), evidence.test)
    ours = judge_leak(auroc, evidence=evidence)
    assert (ours.kind, ours.parts) == (kind, parts)
    assert words in ours.sentence


def test_a_corrected_interval_agrees_with_the_test_that_decides() -> None:
    """Of an average at p = 0.012 two audits leave a leak, whatever the interval says."""
    estimate = as_tested(_auroc(0.53, 0.501, 0.56), _found(0.012, 0.012).test)  # type: ignore[arg-type]
    ours = judge_leak(estimate, audits=2, evidence=_found(0.012, 0.012))
    assert ours.kind == "leaks"
    assert "2 audits of the run [0.500, 0.564], lies above 0.5" in ours.sentence


def test_a_tail_that_is_not_ruled_out_is_said_and_what_would_do() -> None:
    """283 + 256 rule 5 % out in one of three cases: twice as many would, and thrice do both."""
    test = MembershipTest(0.4, 0.5, 0.3, (3, 4))
    evidence = MembershipEvidence(test, 8, 7, (283, 256))
    auroc = Estimate(0.49, 0.441, 0.539, (283, 256), "AUROC")
    ours = judge_leak(auroc, evidence=evidence)
    assert ours.kind == "underpowered"
    assert ours.sentence.startswith("Undecided: no evidence on average (AUROC 0.490")
    assert "that 5.1% of members are told at 1 % false alarms is not ruled out" in (
        ours.sentence
    )
    assert ours.trainings == 3
    assert "about 2 more trainings like it, pooled (n = 1617 in all)" in ours.sentence
    assert "pooled (n = 1617 in all, 1m), decide in 80 of 100" in ours.said(30.0)
    wider = judge_leak(auroc, Limits(tail_margin=0.06), evidence=evidence)
    assert wider.kind == "no evidence"


def test_the_bound_follows_limits_and_audits() -> None:
    evidence = _found()
    auroc = _auroc(0.5, 0.47, 0.53)
    strict = judge_leak(auroc, Limits(tail_margin=0.02), evidence=evidence)
    assert strict.kind == "underpowered"
    assert strict.tail_bound == pytest.approx(0.03, abs=1e-3)
    assert (
        judge_leak(auroc, Limits(margin=0.02), evidence=evidence).kind == "underpowered"
    )
    assert judge_leak(auroc, audits=5, evidence=evidence).kind == "underpowered"


def test_an_interval_says_what_the_test_of_the_average_says() -> None:
    above, beside = _found(0.02, 0.02).test, _found(0.04, 0.03).test
    assert above
    assert beside
    assert as_tested(_auroc(0.53, 0.499, 0.56), above).excludes(0.5)
    assert as_tested(_auroc(0.53, 0.501, 0.56), above).low == 0.501
    assert as_tested(_auroc(0.53, 0.501, 0.56), beside).low == 0.5
    assert as_tested(_auroc(0.53, 0.499, 0.56), beside).low == 0.499


@pytest.mark.parametrize(("low", "high"), [(0.9, 1.0), (0.0, 0.1), (0.48, 0.52)])
def test_without_a_coin_a_number_is_no_verdict_on_membership(
    low: float, high: float
) -> None:
    estimate = _auroc((low + high) / 2, low, high)
    ours = judge_leak(estimate, sampling="unknown")
    assert ours.kind == "sampling unknown"
    assert ours.sentence.startswith(f"No verdict on membership: AUROC {estimate}")
    assert "nobody declares that a fair coin" in ours.sentence
    with pytest.raises(UnknownNameError, match="Did you mean 'coin'"):
        inspect.unwrap(judge_leak)(estimate, sampling="Coin")


def test_an_interval_of_twice_the_margin_needs_three_trainings() -> None:
    """Twice the margin in width rules it out in every second case, 2.04 times n in 80 %."""
    ours = judge_leak(_auroc(0.53, 0.48, 0.58))
    assert ours.trainings == 3  # the least above ((1.96 + 0.84) / 1.96)^2
    assert judge_leak(_auroc(0.5, 0.47, 0.53)).trainings is None


def test_an_interval_that_is_missing_decides_nothing() -> None:
    ours = judge_leak(unresolved("needs 2 clients, has 1", (1,), "AUROC", 0.95))
    assert ours.kind == "underpowered"
    assert "needs 2 clients, has 1" in ours.sentence


@given(value=st.floats(0.01, 0.99), width=st.floats(0.001, 0.049))
def test_an_interval_narrower_than_the_margin_always_decides(
    value: float, width: float
) -> None:
    low, high = max(value - width / 2, 0.0), min(value + width / 2, 1.0)
    assert judge_leak(_auroc(value, low, high)).kind != "underpowered"


@pytest.mark.parametrize("margin", [0.0, 0.6, -0.1])
def test_limits_out_of_range_are_refused(margin: float) -> None:
    with pytest.raises(ConfigError, match=r"not between 0 and 0\.5"):
        Limits(margin)
    for name in ("tail_margin", "fpr"):
        with pytest.raises(ConfigError, match="is not between 0 and 1"):
            Limits(**{name: round(margin) + 0.0})


@pytest.mark.parametrize(("members", "others"), [(40, 40), (10, 200)])
def test_runs_that_cannot_leak_are_rarely_called_leaky(
    members: int, others: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privaudit.statistics.membership_test.DRAWS", 199)
    kinds = [_audit(_normal(rng, members, others)).kind for _ in range(1000)]
    assert kinds.count("leaks") / 1000 <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / 1000)


def test_a_few_certain_members_among_many_are_found_and_named(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3 % of 1,000 members, as memorised secrets look: the AUROC alone found one in five."""
    monkeypatch.setattr("privaudit.statistics.membership_test.DRAWS", 999)
    found = [_audit(_normal(rng, 1000, 1000, 0.03)) for _ in range(30)]
    assert {one.kind for one in found} == {"leaks"}
    assert all("tail" in one.parts for one in found)
    words = [one.test.top for one in found if one.test]
    assert all(members == count >= 25 for members, count in words)


def test_nothing_is_ruled_out_at_a_thousand_of_each_where_nothing_leaks(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privaudit.statistics.membership_test.DRAWS", 199)
    kinds = [_audit(_normal(rng, 1000, 1000)).kind for _ in range(100)]
    assert kinds.count("no evidence") >= 97 - 4 * np.sqrt(100 * 0.97 * 0.03)


def test_scores_that_all_tie_tell_no_threshold_anything() -> None:
    """As of a model that trained on nothing: no member is above any non-member."""
    ours = _audit([(np.zeros(540), np.arange(540) < 280)])
    assert (ours.kind, ours.trainings) == ("no evidence", None)
    assert ours.evidence
    assert ours.test
    assert (ours.evidence.called, ours.test.either) == (0, 1)
    assert ours.tail_bound == pytest.approx(0.0135, abs=1e-3)


def test_clusters_count_in_the_bound_alone(rng: np.random.Generator) -> None:
    scores, coin = np.repeat(rng.normal(size=40), 10), rng.random(400) < 0.5
    alike = [np.repeat(np.arange(40), 10)]
    plain = weigh(None, [(scores, coin)])
    assert weigh(None, [(scores, coin)], alike).sizes < plain.sizes


def test_a_leak_that_many_audits_hide_is_said_to_be_one_alone(
    rng: np.random.Generator,
) -> None:
    found = Estimate(0.55, 0.505, 0.594, (300, 300), "AUROC")
    assert judge_leak(found).kind == "leaks"
    hidden = judge_leak(found, audits=60)
    assert hidden.kind == "underpowered"
    assert "the run's only audit, it would say “leaks”" in hidden.sentence
    chance = Estimate(0.51, 0.46, 0.56, (300, 300), "AUROC")
    assert "only audit" not in judge_leak(chance, audits=60).sentence
    tail = judge_leak(
        _auroc(0.52, 0.48, 0.56), audits=3, evidence=_found(0.02, 0.5, 0.01)
    )
    assert tail.kind == "underpowered"
    assert "it would say “leaks”" in tail.sentence


def test_trainings_that_decide_are_counted_from_those_that_are_pooled() -> None:
    evidence = MembershipEvidence(None, 8, 6, (283, 256))
    auroc = _auroc(0.51, 0.46, 0.56)
    alone = judge_leak(auroc, evidence=evidence)
    pooled = judge_leak(auroc, evidence=evidence, pooled=Pooled(2))
    assert alone.trainings is not None
    assert pooled.trainings is not None
    assert pooled.trainings > alone.trainings  # as many records are of two trainings
    assert f"about {pooled.trainings - 2} more training" in pooled.sentence


def test_a_look_has_a_quarter_of_the_error() -> None:
    found = MembershipEvidence(
        MembershipTest(0.02, 0.01, 0.5, (3, 5)), 8, 3, (400, 400)
    )
    auroc = _auroc(0.54, 0.501, 0.58)
    assert judge_leak(auroc, evidence=found).kind == "leaks"
    look = judge_leak(auroc, evidence=found, pooled=Pooled(1, True))
    assert look.kind == "underpowered"
    assert look.share == 4
    assert look.to_dict()["pooled"] == {"trainings": 1, "is_sequential": True}
    assert "pooled" not in judge_leak(auroc, evidence=found).to_dict()


def test_an_interval_says_how_many_more_it_takes() -> None:
    """Half a width of 0.1 at n = 200: an error of 0.051. Within 0.05 in 80 % takes
    200 (0.051 (1.960 + 1.282) / 0.05)^2 = 2188, below it on one side 1635."""
    wide = Estimate(0.02, -0.08, 0.12, (100, 100), "made up")
    assert enough_to_exclude(wide, 0.05) == 2200
    assert enough_to_exclude(wide, 0.05, sides=1) == 1700


def test_so_many_records_do_exclude_the_margin(rng: np.random.Generator) -> None:
    """Asked at 100 + 100 equal attacks, and tried at the number that is answered."""
    margin, asked = 0.08, []
    for _ in range(50):
        a, b = rng.normal(size=(2, 200))
        plain = pooled_paired_auroc_difference([(a, b, np.arange(200) < 100)]).estimate
        asked.append(enough_to_exclude(plain, margin))
    size = int(np.median(asked)) // 2
    within = []
    for _ in range(400):
        a, b = rng.normal(size=(2, 2 * size))
        found = pooled_paired_auroc_difference(
            [(a, b, np.arange(2 * size) < size)]
        ).estimate
        within.append(-margin < found.low and found.high < margin)
    assert abs(np.mean(within) - 0.8) <= 3 * (0.8 * 0.2 / 400) ** 0.5 + 0.03


def test_no_number_excludes_a_margin_of_nothing() -> None:
    wide = Estimate(0.0, -1.0, 1.0, (9,), "made up")
    with pytest.raises(ConfigError, match=r"excludes a margin of 0.0"):
        enough_to_exclude(wide, 0.0)
