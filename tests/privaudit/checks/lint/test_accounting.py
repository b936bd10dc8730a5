"""Rules steps-counted, releases-composed, claim-covers-certificate and delta."""

from dataclasses import replace
from typing import Any, get_args

import pytest

from privaudit.checks.lint.releases_composed import releases_composed
from privaudit.checks.lint.small_rules import (
    claim_covers_certificate,
    delta_below_one_record,
)
from privaudit.checks.lint.steps_counted import steps_counted
from privaudit.privacy.certificate import CertifiedView, certify
from tests.privaudit.checks.lint.conftest import Look

PAPER: dict[str, Any] = {"mode": "published-paper", "epsilon": 0.4}


def test_a_round_that_the_record_leaves_out_is_found(look: Look) -> None:
    evidence = look(**PAPER)
    short = replace(evidence, rounds=[*evidence.rounds[:-1], []])
    (found,) = [f for f in steps_counted(short) if "names a mechanism" in f.sentence]
    assert "in 6 rounds" in found.sentence
    assert "for 5 of them (first without: round 5)" in found.sentence


def test_a_certificate_of_fewer_steps_is_found(look: Look) -> None:
    evidence = look(**PAPER)
    fewer = {
        view: certify(evidence.rounds[:3], view, 1e-5)
        for view in get_args(CertifiedView)
    }
    found = steps_counted(replace(evidence, certified=fewer))
    assert [f.severity for f in found] == ["error", "error"]
    assert "view peer says" in found[0].sentence
    assert "at most 3 steps" in found[0].sentence
    assert "at most 6 steps" in found[0].sentence


def test_more_parties_than_senders_are_found(look: Look) -> None:
    evidence = look(epsilon=8.0, noise_at="distributed")
    more = [[replace(e, parties=10) for e in events] for events in evidence.rounds]
    found = steps_counted(replace(evidence, rounds=more))
    assert "of 10 clients, and 3 sent an update" in found[0].sentence


def test_more_steps_than_the_accountant_counts_are_found(look: Look) -> None:
    evidence = look("dp-promptfl", epsilon=8.0)
    fewer = [[replace(e, steps=1) for e in events] for events in evidence.rounds]
    found = steps_counted(replace(evidence, rounds=fewer))
    assert any(
        "took 2 batches and 2 draws of noise for the upload release" in f.sentence
        for f in found
    )


def test_one_round_of_sound_training_is_counted_in_full(look: Look) -> None:
    assert steps_counted(look(epsilon=8.0, rounds=1)) == []


def test_two_releases_that_each_spend_the_claim_are_found(look: Look) -> None:
    (found,) = releases_composed(look(**PAPER, clip="sample"))
    assert found.severity == "error"
    assert "claimed is 0.4" in found.sentence
    assert found.settings == ("mode=published-paper",)


def test_releases_that_share_the_budget_are_silent(look: Look) -> None:
    for settings in ({}, {"noise_at": "client"}, {"noise_at": "distributed"}):
        assert releases_composed(look(epsilon=8.0, **settings)) == []
    assert releases_composed(look("dp-promptfl", epsilon=8.0)) == []


def test_a_private_part_that_no_mechanism_names_is_found(look: Look) -> None:
    evidence = look(epsilon=8.0)
    shared = [[e for e in some if e.release == "global"] for some in evidence.rounds]
    (found,) = releases_composed(replace(evidence, rounds=shared))
    assert "3 of 3 released models hold more than what was broadcast" in found.sentence
    assert "6 of 6 rounds" in found.sentence


@pytest.mark.parametrize("mode", ["published-paper", "published-code"])
def test_a_published_claim_below_its_certificate_is_an_error(
    mode: str, look: Look
) -> None:
    (found,) = claim_covers_certificate(look(mode=mode, epsilon=0.4))
    assert found.severity == "error"
    assert "Claimed is 0.4 at delta 1e-05" in found.sentence
    assert "server none" in found.sentence
    assert found.sentence.endswith("is proved for peer, released.")
    assert found.settings == (f"mode={mode}",)


def test_noise_at_the_server_is_a_warning_and_at_the_client_silent(look: Look) -> None:
    (found,) = claim_covers_certificate(look(epsilon=8.0))
    assert found.severity == "warning"
    assert "The claim holds for peer, released; nothing is proved" in found.sentence
    assert claim_covers_certificate(look(epsilon=8.0, noise_at="client")) == []


def test_a_claim_that_holds_in_no_view_is_an_error(look: Look) -> None:
    evidence = look(epsilon=8.0)
    none = {v: replace(c, epsilon=None) for v, c in evidence.certified.items()}
    (found,) = claim_covers_certificate(replace(evidence, certified=none))
    assert found.severity == "error"
    assert found.sentence.endswith("is proved for any view.")


def test_shares_of_noise_that_hold_for_the_sum_only_are_a_warning(look: Look) -> None:
    (found,) = claim_covers_certificate(look(epsilon=8.0, noise_at="distributed"))
    assert found.severity == "warning"
    assert "holds for server-aggregate, released; it does not hold" in found.sentence


def test_a_delta_that_may_give_a_record_away_is_a_warning(look: Look) -> None:
    """36 members: a delta of 0.05 lets 1.8 of them go."""
    (found,) = delta_below_one_record(
        look("dp-pfedmoap", epsilon=25.0, delta=0.05, rounds=1)
    )
    assert "36 members: giving away 1.8" in found.sentence
    assert delta_below_one_record(look(epsilon=8.0, rounds=1)) == []
