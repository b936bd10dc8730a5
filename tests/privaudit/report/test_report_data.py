import math
import re
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privaudit.auditing.attack_result import AttackResult, ClientScores, evaluate_scores
from privaudit.auditing.audit import Audit
from privaudit.auditing.scenario import ALPHAS, GridCell
from privaudit.privacy.certificate import declared_only
from privaudit.report.columns import ColumnCell, audit_row
from privaudit.report.figures.row_figures import class_plot, classes_alt
from privaudit.report.page import render_report
from privaudit.report.report_data import (
    FEWEST,
    MOST_CLASSES,
    Findings,
    ReportData,
    class_sentence,
    leak_by_class,
    run_labels,
    same_columns,
    strongest_other,
)
from privaudit.report.tables.attack_tables import class_rows, drawn_sentence
from privaudit.statistics.comparisons import p_above_chance
from privaudit.statistics.estimate import Estimate, unresolved
from privaudit.statistics.evidence import Limits
from privaudit.statistics.verdict import Sampling, judge_leak
from tests.privaudit.made_audits import make_audit, make_writer
from tests.privaudit.report.test_page import Page


def test_a_single_run_is_called_by_its_trainer() -> None:
    assert run_labels([make_audit("promptfl", rate=0.1)]) == ["promptfl"]


def test_only_the_settings_that_differ_are_named() -> None:
    audits = [
        make_audit("promptfl", rate=0.1),
        make_audit("dp-fpl", mode="sound", epsilon=8.0, rank=4),
        make_audit("dp-fpl", mode="sound", epsilon=None, rank=4),
    ]
    assert run_labels(audits) == ["promptfl", "dp-fpl, ε 8", "dp-fpl, no ε"]


def test_runs_of_one_configuration_get_their_folder_name() -> None:
    audits = [make_audit("promptfl"), make_audit("promptfl")]
    labels = run_labels(audits)
    assert labels[0] == f"promptfl ({audits[0].run.name})"


def test_a_setting_that_is_called_like_a_field_of_runs_is_distinguished() -> None:
    audits = [make_audit("fedpt-dhapa", alpha=one) for one in (0.0, 1.0)]
    names = ["alpha of fedpt-dhapa 0", "alpha of fedpt-dhapa 1"]
    assert run_labels(audits) == [f"fedpt-dhapa, {name}" for name in names]


def test_no_run_is_left_out_where_class_names_are_missing() -> None:
    audits = [make_audit("promptfl"), make_audit("dp-fpl")]
    assert len(ReportData.of(audits).runs) == 2
    with pytest.raises(ValueError, match="argument 3 is shorter"):
        ReportData.of(audits, [NAMES])


ATTACKS = ("loss-threshold", "shadow", "lira", "rmia")


def with_intervals(audit: Audit, *halves: tuple[float, float]) -> Audit:
    """Give each attack an AUROC and a half-width."""
    aurocs = [Estimate(v, v - half, v + half, (75, 81), "AUROC") for v, half in halves]
    results = {
        name: replace(leak, auroc=auroc, verdict=judge_leak(auroc))
        for (name, leak), auroc in zip(audit.results.items(), aurocs, strict=True)
    }
    return replace(audit, results=results)


def test_another_attack_whose_tail_alone_leaks_is_named() -> None:
    rng, truth = np.random.default_rng(5), np.arange(400) < 200
    scores = rng.normal(size=400)
    scores[:12] += 8
    tail = leak(client(scores, 0 * truth, truth))
    assert tail.verdict.parts == ("tail",)
    audit = make_audit(shift=0.0)
    first, second = audit.results
    others = replace(audit, results={first: audit.headline, second: tail})
    assert re.search(
        r"; \d+ of the \d+ highest scores are members', at p", Findings(others).others
    )


@pytest.fixture
def audit() -> Audit:
    return make_audit(attacks=ATTACKS, shift=0.0)


def test_a_leak_that_only_lira_shows_is_named(audit: Audit) -> None:
    """The interval of 0.667 [0.619, 0.715] is z = 6: far beyond any correction."""
    changed = with_intervals(
        audit, (0.5, 0.05), (0.52, 0.06), (0.667, 0.048), (0.55, 0.06)
    )
    assert changed.headline.attack == "loss-threshold"
    assert Findings(changed).others == (
        "strongest of the 3 other attacks, lira 0.667 [0.619, 0.715] on 3 clients "
        "(n = 75 + 81); above 0.5 at p < 0.001, Holm-corrected over 3."
    )


def test_what_three_attacks_find_by_chance_is_not_named(audit: Audit) -> None:
    """One interval in isolation is just above 0.5: p = 0.039, and 0.117 of three."""
    changed = with_intervals(
        audit, (0.5, 0.05), (0.5, 0.06), (0.562, 0.059), (0.5, 0.06)
    )
    assert changed.results["lira"].auroc.low > 0.5
    assert Findings(changed).others == ""


def test_the_headline_is_none_of_the_others(audit: Audit) -> None:
    changed = with_intervals(audit, (0.8, 0.05), (0.5, 0.06), (0.5, 0.06), (0.5, 0.06))
    assert strongest_other(changed) is None


def test_of_several_that_show_a_leak_the_largest_is_named(audit: Audit) -> None:
    """Though the narrower interval has the smaller p-value."""
    changed = with_intervals(audit, (0.5, 0.05), (0.5, 0.06), (0.7, 0.06), (0.69, 0.02))
    found = strongest_other(changed)
    assert found is not None
    assert (found.result.attack, found.tried) == ("lira", 3)


def test_scores_that_separate_with_the_sign_turned_are_named(audit: Audit) -> None:
    changed = with_intervals(
        audit, (0.5, 0.05), (0.5, 0.06), (0.667, 0.048), (0.1, 0.04)
    )
    found = strongest_other(changed)
    assert found is not None
    assert (found.result.attack, found.turned) == ("rmia", True)
    assert Findings(changed).others.endswith(
        "; below 0.5 at p < 0.001, Holm-corrected over 3: separates, with the sign "
        "turned."
    )


def test_a_single_other_attack_needs_no_correction() -> None:
    changed = with_intervals(make_audit(), (0.5, 0.05), (0.562, 0.059))
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


NAMES = ("cat", "dog", "eel")


def client(
    scores: Sequence[float] | np.ndarray,
    labels: Sequence[int] | np.ndarray,
    truth: Sequence[bool] | np.ndarray,
    name: str = "client-0",
) -> ClientScores:
    count = len(scores)
    return ClientScores(
        name, np.arange(count), np.asarray(labels), np.asarray(scores, dtype=float),
        np.zeros(count, bool), np.asarray(truth, dtype=bool),
    )  # fmt: skip


def leak(*clients: ClientScores) -> AttackResult:
    return evaluate_scores("a", "a()", "none", clients)


def reported(found: AttackResult) -> ReportData:
    audit = replace(make_audit(), results={"a": found})
    return ReportData.of([audit], [NAMES])


def test_a_class_that_leaks_is_distinguished_from_one_that_does_not() -> None:
    truth = np.tile([True, False], 40)
    scores = np.concatenate([truth[:40] * 10.0, np.zeros(40)]) + np.arange(80) % 4
    found = leak_by_class(leak(client(scores, np.repeat([0, 1], 40), truth)), NAMES)
    assert [one.name for one in found] == ["cat", "dog"]
    assert [one.n for one in found] == [(20, 20), (20, 20)]
    cat, dog = found
    assert cat.auroc is not None
    assert dog.auroc is not None
    assert cat.auroc.value == 1
    assert cat.results
    assert not dog.results
    assert "cat 1.000" in class_sentence(found)
    assert "Holm-corrected over 2 classes" in class_sentence(found)


def test_few_records_are_unresolved_whatever_their_scores() -> None:
    count = FEWEST - 1
    truth = np.repeat([True, False], count)
    (one,) = leak_by_class(leak(client(truth * 9.0, np.zeros(2 * count, int), truth)))
    assert one.auroc is None
    assert not one.results
    assert one.standing == f"unresolved: needs 10 + 10, has {count} + {count}"
    assert "1 of 1 classes have too few records" in class_sentence([one])
    assert one.name == "class 0"


def test_a_client_with_members_alone_adds_nothing_to_a_class() -> None:
    truth = np.repeat([True, False], FEWEST)
    both = client(np.arange(20.0), np.zeros(20, int), truth)
    only = client(np.arange(50.0), np.zeros(50, int), np.ones(50), "client-1")
    (alone,), (joined,) = (
        leak_by_class(leak(*some)) for some in ([both], [both, only])
    )
    assert joined.auroc is not None
    assert alone.auroc is not None
    assert joined.auroc.value == alone.auroc.value
    assert joined.n == (60, 10)


def test_one_class_alone_is_the_attacks_own_auroc() -> None:
    headline = make_audit().headline
    same = [
        client(c.scores, np.zeros(len(c.scores), int), c.is_member, c.client)
        for c in headline.clients
    ]
    (one,) = leak_by_class(leak(*same))
    assert one.auroc == headline.auroc
    assert one.p_value == p_above_chance(headline.auroc)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_knowing_the_class_alone_tells_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, 80)
    found = leak_by_class(leak(client(labels * 1.0, labels, rng.random(80) < 0.5)))
    for one in found:
        assert one.auroc is None or one.auroc.value == 0.5
        assert not one.results


@pytest.mark.usefixtures("fewer_permutations")
def test_where_nothing_leaks_at_most_one_audit_in_twenty_names_a_class() -> None:
    rng, times, named = np.random.default_rng(3), 400, 0
    labels, some = np.repeat(np.arange(5), 40), make_audit().headline
    for _ in range(times):
        truth = rng.random(200) < 0.5
        clients = [client(rng.normal(size=200), labels, truth)]
        found = leak_by_class(replace(some, clients=clients))  # which reads them alone
        named += any(one.results for one in found)
    assert named / times <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / times)


def many_classes(count: int) -> AttackResult:
    labels = np.repeat(np.arange(count), np.arange(count) + 2 * FEWEST + 4)
    truth = np.arange(len(labels)) % 2 == 0
    return leak(client(np.arange(len(labels)) % 7, labels, truth))


def test_of_many_classes_those_with_the_most_records_are_drawn() -> None:
    data = reported(many_classes(30))
    figure = class_plot(data)
    assert figure is not None
    rows = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert rows == [f"class {n}" for n in range(30 - MOST_CLASSES, 30)]
    assert drawn_sentence(data).startswith("The figure shows the 24 classes")
    assert len(class_rows(data)) == 30
    assert drawn_sentence(reported(many_classes(3))) == ""


def test_unresolved_classes_have_words_and_no_dot() -> None:
    labels = np.repeat([0, 1], [40, 6])
    truth = np.arange(46) % 2 == 0
    data = reported(leak(client(np.arange(46) % 5, labels, truth)))
    figure = class_plot(data)
    assert figure is not None
    (axes,) = figure.axes
    (text,) = axes.texts
    assert "unresolved" in text.get_text()
    assert text.get_position()[1] == 1
    assert sum(line.get_gid() is not None for line in axes.lines) == 1
    assert "dog" not in classes_alt(data)


def test_without_a_class_with_enough_there_is_no_picture() -> None:
    few = leak(client([1, 0, 1], [0, 0, 1], [True, False, True]))
    assert class_plot(reported(few)) is None
    assert class_sentence(leak_by_class(few)).startswith(
        "No class has 10 members and 10 non-members"
    )


@pytest.mark.parametrize("count", [6, 8])
def test_at_most_five_classes_are_named_and_not_the_largest(count: int) -> None:
    labels = np.repeat(np.arange(count), 40)
    truth = np.arange(40 * count) % 2 == 0
    found = leak_by_class(leak(client(truth * 1.0, labels, truth)))
    assert f" and {count - 5} more." in class_sentence(found)


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
            verdict=judge_leak(auroc_of(value), Limits(0.03), sampling=sampling),
        )
        for (name, leak), value in zip(audit.results.items(), values, strict=True)
    }
    of_one_coin(audit, None, sampling)
    return replace(audit, results=results)


def of_one_coin(
    audit: Audit, group: np.ndarray | None, sampling: Sampling = "coin"
) -> None:
    """Say which records share a coin in an audit's run, if any was tossed."""
    truth = audit.run.truth
    said = {**vars(truth), "group": group, "sampling": sampling}
    audit.run.__dict__["truth"] = SimpleNamespace(**said)


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
    assert (cell.attack, other.result.attack) == ("loss-threshold",) * 2
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
    of_one_coin(audit, np.arange(90) // 2)
    assert audit.certified_epsilon is None
    assert Findings(audit).promise.text == "Promise not proved"
    page = render_report([audit])
    assert '<span class="badge good">' not in page
    assert "for one record, and a group that shares a coin has many" in page
    alone = quiet((8.0, 7.9))
    of_one_coin(alone, np.arange(90))
    assert Findings(alone).promise.text == "Promise kept"
