"""Single records in an audit: what they share and lose, stored, shown, and never exported."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from jaxtyping import Bool, Float
from scipy.stats import false_discovery_control, nct
from torch.nn.functional import normalize

from privaudit import Audit, Auditor, train
from privaudit.auditing.attack_result import AttackResult, ClientScores, evaluate_scores
from privaudit.auditing.parts.record_exposure import (
    ISOLATED,
    LONG,
    RARE,
    RECORD_EXPOSURE,
    RecordLosses,
    compare_properties,
    numbers_of,
    properties_of,
    rank_clients,
    record_losses,
    share_exposure,
)
from privaudit.auditing.stored_audit import read_audit, restore_audit, save_audit
from privaudit.datasets.records import (
    ANSWER,
    INSTRUCTION,
    PADDING,
    Records,
    TokenSequences,
)
from privaudit.report.figures.row_figures import exposure_plot, property_plot
from privaudit.report.page import render_report
from privaudit.report.report_data import ReportData
from privaudit.report.tables.parts import (
    level_rows,
    most_exposed_of,
    property_rows,
    record_sentences,
)
from tests.conftest import common_cache

SCENARIO = "server-reconstruct"


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    folder = tmp_path_factory.mktemp("exposed")
    with common_cache(tmp_path_factory):
        run = train(folder=folder, rounds=1, epochs=40, shots=10, clients=2, seed=1)
        audit = Auditor(run).attack(shadows=16)
        save_audit(audit)
    return audit


def test_members_that_were_memorised_stand_out(audit: Audit) -> None:
    found = audit.part(RECORD_EXPOSURE)
    assert found is not None
    assert found.loss is not None
    assert found.loss.worst is not None
    assert found.loss.rest is not None
    assert found.loss.n == len(found.records.record) == 100
    assert found.loss.exposed > 0
    assert found.loss.worst.low > found.loss.rest.value > 0
    assert found.shared.levels[0].beyond.value > 0
    assert found.shared.levels[0].members.n[0] == sum(found.records.is_member)


def test_members_and_others_stand_side_by_side(audit: Audit) -> None:
    """Shadow models start from broadcasts, which hold what members did before."""
    found = audit.part(RECORD_EXPOSURE)
    assert found is not None
    assert found.loss is not None
    is_member = np.array(found.records.is_member)
    for mean, chosen in (
        (found.loss.members, is_member),
        (found.loss.others, ~is_member),
    ):
        assert mean is not None
        assert mean.n == (chosen.sum(),)
        losses = found.records.losses[chosen]
        assert mean.value == pytest.approx(losses.mean(), abs=1e-4)
    assert "Members lose" in " ".join(record_sentences(audit))


def test_of_a_model_that_learned_nothing_no_record_is_exposed() -> None:
    run = train("zero-shot", clients=2, seed=1)
    found = Auditor(run).attack(shadows=8).part(RECORD_EXPOSURE)
    assert found is not None
    assert found.loss is not None
    assert found.loss.exposed == 0
    assert not np.abs(found.records.losses).max() > 1e-3
    assert not found.shared.all.beyond.excludes(0)


def test_what_is_stored_is_read_back(audit: Audit) -> None:
    again = restore_audit(read_audit(audit.run, SCENARIO))
    assert again.part(RECORD_EXPOSURE) == audit.part(RECORD_EXPOSURE)
    assert record_sentences(again) == record_sentences(audit)


def test_a_page_names_records_only_where_it_is_asked_to(audit: Audit) -> None:
    plain = render_report([audit])
    assert "Records that several attacks point at" in plain
    assert "Records by number" not in plain
    shown = render_report([audit], show_records=True)
    first = most_exposed_of(audit)[0]
    assert f"<td>{first.client}</td><td>{first.record}</td>" in shown


def test_without_shadow_models_only_attacks_are_counted(audit: Audit) -> None:
    found = Auditor(audit.run).attack(is_logged=False, shadows=0).part(RECORD_EXPOSURE)
    assert found is not None
    assert found.loss is None
    assert set(found.records.loss) == {None}
    assert all(one.auroc is None or one.auroc.n for one in found.properties)
    assert most_exposed_of(replace(audit, parts={})) == []
    assert record_sentences(replace(audit, parts={})) == []


def test_without_the_part_there_is_nothing_to_show(audit: Audit) -> None:
    bare = [replace(audit, parts={})]
    assert exposure_plot(ReportData.of(bare)) is None
    assert property_plot(ReportData.of(bare)) is None
    assert not level_rows(ReportData.of(bare))
    assert not property_rows(ReportData.of(bare))


COUNT = 100


def result(*scores: Float[np.ndarray, " candidates"], first: int = 0) -> AttackResult:
    clients = [
        ClientScores(
            f"client-{number}",
            np.arange(COUNT) + COUNT * number + first,
            np.zeros(COUNT, np.int64),
            one,
            one > 0,
            np.arange(COUNT) % 2 == 0,
        )
        for number, one in enumerate(scores)
    ]
    return evaluate_scores("some", "", "0", clients)


def test_by_hand() -> None:
    """The first attack points at records 90 to 99, the second at 85 to 94."""
    up = np.arange(COUNT, dtype=np.float64)
    both = {"up": result(up), "shifted": result(np.roll(up, -5))}
    (client,) = rank_clients(both)
    assert np.flatnonzero(client.seen == 2).tolist() == [90, 91, 92, 93, 94]
    assert np.flatnonzero(client.seen == 1).tolist() == [
        *range(85, 90),
        *range(95, 100),
    ]
    found = share_exposure([client])
    assert found.all.attacks == 2
    assert found.all.members.value == pytest.approx(3 / 50)
    assert found.all.others.value == pytest.approx(2 / 50)
    assert found.all.beyond.value == pytest.approx(1 / 50)
    assert found.all.independent == pytest.approx(0.01)
    assert found.levels[0].independent == pytest.approx(0.19)


def test_attacks_that_know_all_expose_members_and_no_others() -> None:
    knows = np.where(np.arange(COUNT) % 2 == 0, 1.0, 0.0) * np.arange(COUNT)
    exposure = share_exposure(rank_clients({n: result(knows) for n in "abc"}))
    assert exposure.all.members.value == pytest.approx(10 / 50)
    assert exposure.all.others.value == 0
    assert exposure.all.beyond.low > 0


def test_attacks_that_agree_and_know_nothing_expose_members_as_others() -> None:
    """The chance of independent attacks is far off, and the others are not."""
    rng = np.random.default_rng(0)
    (one,) = rank_clients({"any": result(np.zeros(COUNT))})
    alarms = 0
    for _ in range(100):
        shared = rng.normal(size=(3, COUNT))
        noise = 0.1 * rng.normal(size=(2, 3, COUNT))
        ranks = ((shared + noise).argsort(axis=-1).argsort(axis=-1) + 1) / (COUNT + 1)
        clients = [replace(one, ranks=r) for r in ranks.transpose(1, 0, 2)]
        found = share_exposure(clients).all
        alarms += found.beyond.low > 0
        assert found.members.value > 2 * found.independent
    assert alarms <= 100 * 0.025 + 3 * np.sqrt(100 * 0.025)


def test_constant_scores_point_at_nobody() -> None:
    (client,) = rank_clients({"flat": result(np.zeros(COUNT))})
    assert not client.seen.any()


def test_clients_that_an_attack_left_out_are_left_out() -> None:
    up = np.arange(COUNT, dtype=np.float64)
    found = rank_clients({"all": result(up, up), "one": result(up)})
    assert [one.scores.client for one in found] == ["client-0"]
    assert not rank_clients({"all": result(up), "others": result(up, first=7)})


def coins(
    models: int, records: int, rng: np.random.Generator
) -> Bool[np.ndarray, "models records"]:
    """Toss a coin for each pair of models and record, as shadow models do."""
    heads = rng.random((models // 2, records)) < 0.5
    return np.stack([heads, ~heads], axis=1).reshape(models, records)


@pytest.mark.parametrize("loss", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("models", [8, 32])
def test_intervals_cover_and_the_loss_is_unbiased(loss: float, models: int) -> None:
    rng = np.random.default_rng(1)
    is_in = coins(models, 4000, rng)
    deviation = rng.uniform(0.1, 10.0, 4000)  # each record's own
    signals = deviation * (rng.normal(size=is_in.shape) + loss * is_in)
    found = record_losses(signals, is_in, ~is_in)
    covered = ((found.low <= loss) & (loss <= found.high)).mean()
    assert covered == pytest.approx(0.95, abs=0.015)
    assert found.value.mean() == pytest.approx(loss, abs=0.03 + 0.01 * loss)


def test_an_interval_is_nearly_the_exact_one_of_a_noncentral_t() -> None:
    is_in = coins(16, 20, np.random.default_rng(2))
    signals = np.random.default_rng(3).normal(size=is_in.shape) + 1.5 * is_in
    found = record_losses(signals, is_in, ~is_in)
    error = np.sqrt(2 / 8)
    pivot = found.value / (1 - 3 / 55) / error
    for low, high, t in zip(found.low, found.high, pivot, strict=True):
        assert nct.sf(t, 14, low / error) == pytest.approx(0.025, abs=0.003)
        assert nct.cdf(t, 14, high / error) == pytest.approx(0.025, abs=0.003)


def test_records_are_exposed_where_they_are_and_nowhere_else() -> None:
    rng = np.random.default_rng(4)
    is_in, leaks = coins(32, 1000, rng), np.arange(1000) < 50
    signals = rng.normal(size=is_in.shape) + 4 * is_in * leaks
    exposed = record_losses(signals, is_in, ~is_in).exposed()
    assert exposed[leaks].all()
    assert exposed[~leaks].mean() < 0.01
    nobody = record_losses(rng.normal(size=is_in.shape), is_in, ~is_in)
    assert not nobody.exposed().any()


def test_heavy_tails_expose_nobody_in_more_audits_than_chance_allows() -> None:
    """In each of 200 audits without a leak any record found is false: 5 % may have one."""
    rng = np.random.default_rng(7)
    alarms = 0
    for _ in range(200):
        is_in = coins(64, 540, rng)
        signals = rng.standard_t(5, size=is_in.shape)
        alarms += int(record_losses(signals, is_in, ~is_in).exposed().any())
    assert alarms <= 200 * 0.05 + 4 * np.sqrt(200 * 0.05 * 0.95)


def test_models_that_learn_nothing_show_nothing() -> None:
    is_in = coins(8, 5, np.random.default_rng(5))
    found = record_losses(np.full(is_in.shape, 2.0), is_in, ~is_in)
    np.testing.assert_array_equal(found.value, 0)
    assert (found.low < 0).all()
    assert not found.exposed().any()


def test_too_few_models_say_nothing() -> None:
    is_in = coins(4, 3, np.random.default_rng(6))
    found = record_losses(np.ones(is_in.shape), is_in, ~is_in)
    assert np.isnan(found.value).all()
    assert (found.p_value == 1).all()
    assert not record_losses(np.ones((4, 0)), is_in[:, :0], is_in[:, :0]).exposed().size


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("count", [0, 1, 40])
def test_the_exposed_are_those_of_scipys_control(
    count: int, rate: float, rng: np.random.Generator
) -> None:
    for digits in (1, 2, 16):
        p_value = (rng.random(count) ** 3).round(digits)
        found = RecordLosses(*[p_value] * 4).exposed(rate)
        expected = false_discovery_control(p_value) <= rate if count else found
        np.testing.assert_array_equal(found, expected)
        assert found.shape == (count,)


def test_properties_by_hand() -> None:
    labels = np.array([0, 0, 0, 0, 1, 1, 2])
    has = properties_of(labels, {ISOLATED: np.arange(7.0)})
    assert has["class 1"].tolist() == [False] * 4 + [True] * 2 + [False]
    assert has[RARE].tolist() == [False] * 4 + [True] * 3
    assert has[ISOLATED].tolist() == [False] * 4 + [True] * 3
    assert set(properties_of(np.zeros(5, np.int64), {})) == set()


def test_a_record_far_from_all_others_is_isolated() -> None:
    features = normalize(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]), dim=-1)
    records = Records(features, torch.zeros(3, dtype=torch.long))
    assert numbers_of(records)[ISOLATED].argmax() == 2
    assert not numbers_of(records.pick(torch.tensor([0])))


def test_answers_are_counted_and_not_what_was_asked() -> None:
    kinds = torch.tensor(
        [
            [INSTRUCTION, INSTRUCTION, ANSWER, PADDING],
            [INSTRUCTION, ANSWER, ANSWER, ANSWER],
        ]
    )
    words = TokenSequences(torch.zeros_like(kinds), kinds)
    labels = torch.zeros(2, dtype=torch.long)
    records = Records(torch.zeros(2, 3), labels, words=words)
    assert {n: v.tolist() for n, v in numbers_of(records).items()} == {LONG: [1.0, 3.0]}


def test_a_property_that_goes_with_exposure_is_found_and_corrected() -> None:
    rng = np.random.default_rng(0)
    clients = []
    for _ in range(3):
        labels = rng.integers(0, 4, 80)
        clients.append(
            (rng.normal(size=80) + 2.0 * (labels == 3), properties_of(labels, {}))
        )
    found = {one.name: one for one in compare_properties(clients, ["a", "b", "c", "d"])}
    assert found["class d"].p_value < 0.001
    assert found["class d"].auroc is not None
    assert found["class d"].auroc.low > 0.5
    assert sum(found["class d"].n) == 240


def test_where_nothing_goes_with_exposure_properties_are_seldom_named() -> None:
    """Families of nine tests, of which Holm lets at most one in twenty name any."""
    rng = np.random.default_rng(1)
    alarms = 0
    for _ in range(100):
        labels = rng.integers(0, 8, 160)
        has = properties_of(labels, {ISOLATED: rng.normal(size=160)})
        found = compare_properties([(rng.normal(size=160), has)])
        alarms += any(one.p_value <= 0.05 for one in found)
    assert alarms <= 100 * 0.05 + 3 * np.sqrt(100 * 0.05)


def test_few_records_are_not_judged() -> None:
    labels = np.array([0] * 5 + [1] * 50)
    found = compare_properties([(np.arange(55.0), properties_of(labels, {}))])
    assert {one.name: one.auroc for one in found}["class 0"] is None
    assert all(one.p_value == pytest.approx(1) for one in found if one.auroc is None)
