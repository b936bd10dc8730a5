from dataclasses import replace

import pytest

from privaudit.auditing.audit import Audit
from privaudit.auditing.default_attacks import ALPHAS, GridCell
from privaudit.report.decision.badges import Findings
from privaudit.report.tables.other_attacks import same_columns, strongest_other
from privaudit.statistics.estimate import Estimate
from tests.privaudit.made_audits import make_audit, make_writer

NAMES = ("loss-threshold", "shadow", "lira", "rmia")


def with_aurocs(audit: Audit, *halves: tuple[float, float]) -> Audit:
    """Give each attack an AUROC and a half-width."""
    results = {
        name: replace(
            leak, auroc=Estimate(value, value - half, value + half, (75, 81), "AUROC")
        )
        for (name, leak), (value, half) in zip(
            audit.results.items(), halves, strict=True
        )
    }
    return replace(audit, results=results)


@pytest.fixture
def audit() -> Audit:
    return make_audit(attacks=NAMES, shift=0.0)


def test_a_leak_that_only_lira_shows_is_named(audit: Audit) -> None:
    """The interval of 0.667 [0.619, 0.715] is z = 6: far beyond any correction."""
    changed = with_aurocs(
        audit, (0.5, 0.05), (0.52, 0.06), (0.667, 0.048), (0.55, 0.06)
    )
    assert changed.headline.attack == "loss-threshold"
    assert Findings(changed).others == (
        "strongest of the 3 other attacks, lira 0.667 [0.619, 0.715] on 3 clients "
        "(n = 75 + 81); above 0.5 at p < 0.001, Holm-corrected over 3."
    )


def test_what_three_attacks_find_by_chance_is_not_named(audit: Audit) -> None:
    """One interval in isolation is just above 0.5: p = 0.039, and 0.117 of three."""
    changed = with_aurocs(audit, (0.5, 0.05), (0.5, 0.06), (0.562, 0.059), (0.5, 0.06))
    assert changed.results["lira"].auroc.low > 0.5
    assert Findings(changed).others == ""


def test_the_headline_is_none_of_the_others(audit: Audit) -> None:
    changed = with_aurocs(audit, (0.8, 0.05), (0.5, 0.06), (0.5, 0.06), (0.5, 0.06))
    assert strongest_other(changed) is None


def test_of_several_that_show_a_leak_the_largest_is_named(audit: Audit) -> None:
    """Though the narrower interval has the smaller p-value."""
    changed = with_aurocs(audit, (0.5, 0.05), (0.5, 0.06), (0.7, 0.06), (0.69, 0.02))
    found = strongest_other(changed)
    assert found is not None
    assert (found.leak.attack, found.shown, found.tried) == ("lira", 2, 3)


def test_scores_that_separate_with_the_sign_turned_are_named(audit: Audit) -> None:
    changed = with_aurocs(audit, (0.5, 0.05), (0.5, 0.06), (0.667, 0.048), (0.1, 0.04))
    found = strongest_other(changed)
    assert found is not None
    assert (found.leak.attack, found.turned, found.shown) == ("rmia", True, 2)
    assert Findings(changed).others.endswith(
        "; below 0.5 at p < 0.001, Holm-corrected over 3: separates, with the sign "
        "turned."
    )


def test_a_single_other_attack_needs_no_correction() -> None:
    changed = with_aurocs(make_audit(), (0.5, 0.05), (0.562, 0.059))
    assert Findings(changed).others.startswith(
        "the other attack, loss-threshold 0.562 ["
    )
    assert Findings(changed).others.endswith("; above 0.5 at p = 0.039.")


def test_one_attack_alone_has_no_others() -> None:
    assert Findings(make_audit(attacks=("shadow",), shift=2.0)).others == ""


def test_columns_that_score_every_candidate_alike_are_one_measurement() -> None:
    writer = make_writer()
    assert same_columns(writer) == []
    results = dict(writer.results)
    for alpha in ALPHAS:
        first = results[GridCell("image", 0, alpha).attack]
        cell = GridCell("image", 10, alpha).attack
        results[cell] = replace(results[cell], clients=first.clients)
    (sentence,) = same_columns(replace(writer, results=results))
    assert sentence.startswith("in the slice image, 10 % scores every candidate as 0 %")
    del results[GridCell("image", 10, ALPHAS[0]).attack]
    assert same_columns(replace(writer, results=results)) == []
