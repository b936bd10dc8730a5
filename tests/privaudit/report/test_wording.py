from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from privaudit.core import formatting
from privaudit.federation.threat_models import THREATS
from privaudit.report import wording
from privaudit.report.report_data import ReportData
from privaudit.statistics.estimate import Estimate, unresolved
from tests.privaudit.made_audits import make_audit, make_writer


@pytest.mark.parametrize("threat", list(THREATS))
def test_every_threat_model_has_words_of_its_own(threat: str) -> None:
    assert threat in wording.ADVERSARIES


def test_a_finding_names_adversary_attack_number_and_interval() -> None:
    audit = make_audit(shift=1.0)
    text, auroc = wording.finding(audit), audit.auroc
    assert text.startswith("An honest-but-curious server can tell")
    assert "“shadow”" in text
    for share in (auroc.value, auroc.low, auroc.high):
        assert f"{100 * share:.1f}" in text


def test_no_leak_and_underpowered_are_not_the_same_words() -> None:
    none = make_audit(shift=0.0, candidates=2000, seed=1)
    few = make_audit(shift=0.1, candidates=20, seed=3)
    assert none.headline.verdict.kind == "no evidence"
    assert few.headline.verdict.kind == "underpowered"
    assert "could not tell members from non-members" in wording.finding(none)
    assert "too few records to decide" in wording.finding(few)


def test_where_groups_are_counted_odds_are_about_groups() -> None:
    audit, few = make_audit(shift=1.0), make_audit(shift=0.1, candidates=20, seed=3)
    for one in (audit, few):
        one.run.__dict__["truth"] = SimpleNamespace(group=np.arange(9), sampling="coin")
    said, (members, others) = wording.odds(audit), audit.auroc.n
    assert f"n = {members} groups of members + {others} groups of non-members" in said
    assert "one group of members and one of non-members" in said
    assert "identifies the group of members in" in said
    assert "too few groups of records" in wording.finding(few)


def test_where_whole_clients_are_counted_no_word_is_of_records() -> None:
    audit = make_audit(shift=1.0)
    scenario = replace(audit.scenario, unit="client")
    headline = replace(audit.headline, attack="too few records", tied=3)
    results = {"too few records": headline}  # a name stays what it is
    said = wording.finding(replace(audit, scenario=scenario, results=results))
    members, others = audit.auroc.n
    assert "can tell clients that took part from clients that did not" in said
    assert "the attack “too few records”, named beforehand" in said
    assert f"n = {members} that took part + {others} that did not; random" in said
    assert said.endswith(
        f"3 of {members + others} clients are tied; no threshold separates them."
    )


def test_a_missing_epsilon_is_none_and_zero_is_zero() -> None:
    assert [formatting.epsilon(e) for e in (None, 0.0, 0.4, 101.63)] == [
        "none",
        "0",
        "0.4",
        "102",
    ]


def test_an_unresolved_estimate_has_no_number_but_a_reason() -> None:
    estimate = unresolved("needs 1000 non-members, has 9", (9, 9), "TPR", 0.95)
    assert wording.point(estimate) == "unresolved"
    assert wording.interval(estimate) == "needs 1000 non-members, has 9"


def test_signed_numbers_carry_their_sign() -> None:
    gain = Estimate(0.1, -0.2, 0.4, (9,), "")
    assert wording.point(gain, signed=True) == "+0.100"
    assert wording.interval(gain) == "[-0.200, 0.400]"


def test_a_loss_of_utility_is_said_to_be_one() -> None:
    assert "20.0 points more than" in wording.utility_sentence(make_audit(local=0.8))
    assert "20.0 points less than" in wording.utility_sentence(make_audit(local=0.4))
    assert "no clear difference from" in wording.utility_sentence(make_audit(local=0.6))


def test_what_is_measured_is_called_by_its_name() -> None:
    captions, answers = make_writer(), make_writer(metric="exact match")
    assert wording.utility_sentence(make_audit()).startswith(
        "Accuracy 80.0 % [77.0, 83.0] on a"
    )
    assert wording.utility_sentence(captions).startswith("ROUGE-L of the captions")
    assert "80.0 % [77.0, 83.0] on a client's own" in wording.utility_sentence(captions)
    assert wording.utility_sentence(answers).startswith(
        "Exact match 80.0 % [77.0, 83.0]"
    )
    for audit in (captions, answers):
        assert "20.0 points more than the untrained model" in wording.utility_sentence(
            audit
        )
        assert "accuracy" not in wording.utility_sentence(audit).lower()


def test_headings_name_every_metric_and_what_was_not_trained() -> None:
    both = [make_audit(), make_writer()]
    assert wording.heading(ReportData.of(both).metric) == "Accuracy or ROUGE-L"
    assert ReportData.of(both[1:]).metric == "ROUGE-L"
    assert ReportData.of(both[:1]).untrained == "zero-shot"
    assert ReportData.of(both).untrained == "zero-shot or untrained"
    assert wording.heading("") == ""


def test_a_certificate_comes_with_delta_and_reason() -> None:
    text = wording.proof(make_audit(epsilons=(0.1, 18.6), noise=1.0))
    assert "claims ε = 0.1 by its own formula" in text
    assert "ε = 18.6 at δ = 1e-5 is proved: one of 1,000 equally likely" in text
    assert "1,000,000 of at most 100 %. Every upload carries noise." in text


def test_noise_of_a_seed_is_repeatable_and_proves_nothing() -> None:
    secret, seeded, nothing = (
        make_audit(epsilons=(0.1, bound), noise=1.0) for bound in (18.6, 18.6, None)
    )
    for audit in (seeded, nothing):
        audit.certificate["randomness"] = "seed"
    assert [wording.certified(a) for a in (secret, seeded, nothing)] == [
        "18.6",
        "(18.6)",
        "none",
    ]
    assert wording.repeatable(secret) == wording.repeatable(nothing) == ""
    text = wording.proof(seeded)
    assert "is proved" not in text
    assert "Repeatable, not private: the run's noise follows from its seed" in text
    assert "Then ε = 18.6 at δ = 1e-5 would be proved against this adversary." in text


@pytest.mark.parametrize(
    ("noise", "claimed", "sort"),
    [
        (0.0, None, "no privacy mechanism"),
        (1.0, 8.0, "adds DP noise"),
        (0.0, 0.0, "trains nothing"),
    ],
)
def test_runs_are_sorted_by_what_they_do_for_privacy(
    noise: float, claimed: float | None, sort: str
) -> None:
    audit = make_audit(noise=noise, epsilons=(claimed, None))
    assert wording.privacy_sort(audit) == sort
