from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privaudit.auditing.attack_result import AttackResult, ClientScores, evaluate_scores
from privaudit.report.figures.row_figures import class_plot, classes_alt
from privaudit.report.report_data import ReportData
from privaudit.report.tables.class_table import class_rows, drawn_sentence
from privaudit.report.tables.leak_by_class import (
    FEWEST,
    MOST_CLASSES,
    class_sentence,
    leak_by_class,
)
from privaudit.statistics.comparisons import p_above_chance
from tests.privaudit.made_audits import make_audit

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


def test_where_nothing_leaks_at_most_one_audit_in_twenty_names_a_class() -> None:
    rng, times, named = np.random.default_rng(3), 400, 0
    labels = np.repeat(np.arange(5), 40)
    for _ in range(times):
        truth = rng.random(200) < 0.5
        found = leak_by_class(leak(client(rng.normal(size=200), labels, truth)))
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
