"""Which run is the worst, what is green, and what a row says of the strongest attack."""

import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from privaudit.auditing.audit import Audit
from privaudit.privacy.privacy_record import declared_only
from privaudit.report.columns import ColumnCell, audit_row
from privaudit.report.decision.badges import Findings
from privaudit.report.page import render_report
from privaudit.report.tables.other_attacks import strongest_other
from privaudit.statistics.estimate import Estimate, unresolved
from privaudit.statistics.verdict import Sampling, judge_leak
from tests.privaudit.made_audits import make_audit
from tests.privaudit.report.test_page import Page


def auroc_of(value: float) -> Estimate:
    """Return one that is resolved; of NaN, one that is not."""
    if math.isnan(value):
        return unresolved("needs more", (300, 300), "AUROC", 0.95)
    low, high = max(value - 0.04, 0.0), min(value + 0.04, 1.0)
    return Estimate(value, low, high, (300, 300), "AUROC")


def with_aurocs(*values: float, sampling: Sampling = "coin", n: int = 0) -> Audit:
    """Return an audit whose attacks have these AUROCs, the headline first."""
    names = ("shadow", "loss-threshold", "lira")[: len(values)]
    audit = make_audit(attacks=names, shift=0.0, candidates=30, rank=n)
    results = {
        name: replace(
            leak,
            auroc=auroc_of(value),
            verdict=judge_leak(auroc_of(value), 0.03, sampling=sampling),
        )
        for (name, leak), value in zip(audit.results.items(), values, strict=True)
    }
    tossed = sampling == "coin"
    audit.run.__dict__["truth"] = SimpleNamespace(
        group=None, cluster=None, tossed=tossed, coin=None
    )
    return replace(audit, results=results)


def ranked(audits: Sequence[Audit]) -> list[float]:
    return [
        audit.auroc.value
        for audit in sorted(audits, key=lambda audit: Findings(audit).rank)
    ]


def test_turned_scores_rank_by_how_far_they_separate() -> None:
    audits = [with_aurocs(value) for value in (0.369, 0.013, 0.2)]
    assert {audit.verdict.kind for audit in audits} == {"reversed"}
    assert ranked(audits) == [0.013, 0.2, 0.369]


@pytest.mark.parametrize("value", [0.982, 0.018])
def test_a_number_without_a_verdict_ranks_above_what_is_undecided(value: float) -> None:
    unknown = with_aurocs(value, sampling="unknown")
    undecided = with_aurocs(0.5)
    assert undecided.verdict.kind == "underpowered"
    assert ranked([undecided, unknown]) == [value, 0.5]
    further = with_aurocs(0.4, sampling="unknown")
    assert ranked([undecided, further, unknown]) == [value, 0.4, 0.5]


def test_what_has_no_number_is_the_last_of_its_kind_in_whatever_order() -> None:
    some = [with_aurocs(value, n=i) for i, value in enumerate((0.495, math.nan, 0.51))]
    for order in ((0, 1, 2), (1, 0, 2), (2, 1, 0), (0, 2, 1)):
        assert ranked([some[i] for i in order])[:2] == [0.51, 0.495]


def test_among_leaks_the_largest_that_is_named_comes_first() -> None:
    by_another, by_headline = with_aurocs(0.5, 0.95), with_aurocs(0.6, 0.5)
    assert Findings(by_another).leak.text == "Another attack shows a leak"
    assert ranked([by_headline, by_another]) == [0.5, 0.6]


def strongest(audit: Audit) -> ColumnCell:
    cells = audit_row(Findings(audit), "#")["cells"]
    (found,) = (
        c for column, c in cells if column.head("index")[0] == "Strongest attack"
    )
    assert isinstance(found, ColumnCell)
    return found


def test_a_row_and_the_sentence_take_one_strongest_attack_and_one_p_value() -> None:
    audit = with_aurocs(0.5, 0.013, 0.56)
    cell, other = strongest(audit), strongest_other(audit)
    assert other is not None
    assert (cell.attack, other.leak.attack) == ("loss-threshold",) * 2
    assert cell.number.value == "0.987"
    assert cell.note == "best of 3, sign turned, p < 0.001"
    page = Page(render_report([audit, with_aurocs(0.5, 0.5, 0.5)])).words
    assert "best of 3, sign turned, p < 0.001" in page


def test_a_turned_headline_is_no_strongest_attack_at_p_1() -> None:
    cell = strongest(with_aurocs(0.013, 0.5))
    assert (cell.attack, cell.number.value) == ("shadow", "0.987")
    assert cell.note.endswith("p < 0.001")


def test_p_of_the_strongest_other_attack_is_corrected_over_the_others() -> None:
    _, p_value = Findings(with_aurocs(0.5, 0.545, 0.5)).strongest
    _, alone = Findings(with_aurocs(0.5, 0.545)).strongest
    assert p_value == pytest.approx(2 * alone, abs=0.002)


def test_an_attack_without_a_number_is_not_the_strongest() -> None:
    cell = strongest(with_aurocs(math.nan, 0.7))
    assert (cell.attack, cell.number.value) == ("loss-threshold", "0.700")


def quiet(epsilons: tuple[float | None, float | None]) -> Audit:
    return make_audit(
        "dp-fpl", shift=0.0, seed=2, candidates=700, epsilons=epsilons, noise=1.0
    )


@pytest.mark.parametrize(
    ("epsilons", "kind"),
    [
        ((8.0, 7.9), "good"),
        ((10.0, 10.0), "good"),
        ((1000.0, 999.0), "neutral"),
        ((10.5, 10.1), "neutral"),
        ((None, 999.0), "neutral"),
        ((None, 1.0), "good"),
    ],
)
def test_no_good_news_above_epsilon_10_and_epsilon_stands_beside_it(
    epsilons: tuple[float | None, float], kind: str
) -> None:
    claimed, certified = epsilons
    audit = quiet(epsilons)
    assert Findings(audit).leak.kind == kind
    page = render_report([audit])
    assert ('<span class="badge good">' in page) == (kind == "good")
    if claimed is not None:
        assert Findings(audit).promise.kind == kind
        assert Findings(audit).promise.text.startswith("Promise kept")
        beside = f"{Findings(audit).promise.text} (ε = {certified:.3g})"
        assert beside in Page(page).words
    assert ("bounds little" in page) == (kind != "good")


def test_what_an_owner_declares_is_said_to_be_declared_and_is_not_green() -> None:
    audit = quiet((8.0, 7.9))
    audit.run.__dict__["privacy"] = declared_only(audit.run.privacy)
    page = render_report([audit])
    assert (audit.certified_epsilon, audit.declared_epsilon) == (None, 7.9)
    assert Findings(audit).promise.text == "Promise only declared"
    assert '<span class="badge good">' not in page
    assert "declared 7.9" in Page(page).words
    assert "Declared, not certified" in page
    for said in ("certified 7.9", "ε = 7.9 is proved", "ε = 7.9 certified"):
        assert said not in Page(page).words


def test_a_proof_for_a_record_keeps_no_promise_to_a_group_of_one_coin() -> None:
    audit = quiet((8.0, 7.9))
    audit.run.__dict__["truth"] = SimpleNamespace(
        group=np.arange(90) // 2, cluster=None, tossed=True, coin=None
    )
    assert audit.certified_epsilon is None
    assert Findings(audit).promise.text == "Promise not proved"
    page = render_report([audit])
    assert '<span class="badge good">' not in page
    assert "for one record, and a group that shares a coin has many" in page
    alone = quiet((8.0, 7.9))
    alone.run.__dict__["truth"] = SimpleNamespace(
        group=np.arange(90), cluster=None, tossed=True, coin=None
    )
    assert Findings(alone).promise.text == "Promise kept"
