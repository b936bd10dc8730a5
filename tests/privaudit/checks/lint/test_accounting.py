"""Rules of accounting, of what leaks beside updates, and where clients are protected."""

from dataclasses import replace
from typing import Any, get_args

import pytest
import torch

from privaudit.checks.lint.accounting import (
    claim_covers_certificate,
    delta_below_one_record,
    duplicate_records,
    releases_composed,
    steps_counted,
    stored_seeds,
    weights_by_size,
)
from privaudit.checks.lint.clipping import clip_per_record, clipped_norms
from privaudit.checks.lint.evidence import Evidence, fingerprints
from privaudit.checks.lint.linter import lint
from privaudit.checks.lint.noise import (
    client_residuals,
    noise_as_claimed,
    server_residuals,
)
from privaudit.datasets.dataset import Dataset, PixelImages
from privaudit.privacy.certificate import CertifiedView, certify
from privaudit.privacy.events import MechanismEvent
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


@pytest.fixture
def evidence(look: Look) -> Evidence:
    return look(epsilon=8.0, rounds=1)


def test_distinct_records_are_silent(evidence: Evidence) -> None:
    assert duplicate_records(evidence) == []


def test_copies_within_and_across_clients_are_counted(evidence: Evidence) -> None:
    """By hand: record 0 of client-0 twice there and once elsewhere, another pair."""
    members = {client: list(prints) for client, prints in evidence.members.items()}
    members["client-0"][3] = members["client-0"][0]
    members["client-2"][5] = members["client-0"][0]
    members["client-1"][1] = members["client-2"][2]
    (found,) = duplicate_records(replace(evidence, members=members))
    assert found.severity == "error"
    assert "2 records are trained on more than once, 2 of them by" in found.sentence
    assert "the most frequent 3 times (member 0 of client-0" in found.sentence
    assert "at most 2 times by one client" in found.sentence
    assert "3 copies may lose up to 3 times 8" in found.sentence
    assert found.settings == ("dataset=toy",)


def test_a_picture_has_one_fingerprint_whatever_its_label() -> None:
    twice = PixelImages(torch.rand(2, 1, 4, 4)[[0, 0, 1]])
    relabelled = Dataset(twice, torch.tensor([0, 1, 1]), ("one", "other"))
    first, again, other = fingerprints(relabelled.contents)
    assert first == again != other


def weighed(evidence: Evidence, weights: dict[str, float]) -> Evidence:
    messages = [
        replace(m, tensors={**m.tensors, "weight": torch.tensor(weights[m.sender])})
        if m.kind == "update"
        else m
        for m in evidence.messages
    ]
    return replace(evidence, messages=messages)


def test_weights_of_the_members_number_are_an_error(evidence: Evidence) -> None:
    sizes = {client: float(len(p)) for client, p in evidence.members.items()}
    (found,) = weights_by_size(weighed(evidence, sizes))
    assert found.severity == "error"
    assert "1 times the number of their members (9 to 15)" in found.sentence
    total = sum(sizes.values())
    shares = {client: size / total for client, size in sizes.items()}
    assert len(weights_by_size(weighed(evidence, shares))) == 1


def test_equal_or_unrelated_weights_are_silent(evidence: Evidence) -> None:
    ones = dict.fromkeys(evidence.members, 1.0)
    assert weights_by_size(weighed(evidence, ones)) == []
    public = {client: 3.0 * number for number, client in enumerate(evidence.members, 1)}
    assert weights_by_size(weighed(evidence, public)) == []


def test_promptfl_that_claimed_something_would_be_warned_of_its_weights(
    look: Look, evidence: Evidence
) -> None:
    plain = look("promptfl", rounds=1, epochs=1)
    assert len(weights_by_size(replace(plain, claim=evidence.claim))) == 1
    assert weights_by_size(plain) == []


def test_noise_of_a_seed_is_an_error(evidence: Evidence) -> None:
    (found,) = stored_seeds(replace(evidence, seed=7))
    assert found.severity == "error"
    assert "Repeatable, not private" in found.sentence
    assert found.settings == ("seed=7", "randomness=seed")


def test_noise_of_a_key_of_the_system_is_silent(evidence: Evidence) -> None:
    secret = replace(evidence, randomness="system", coin_seed=None)
    assert stored_seeds(secret) == []


def test_a_seed_of_the_coins_is_told_whatever_the_noise(evidence: Evidence) -> None:
    (found,) = stored_seeds(replace(evidence, randomness="system", coin_seed=7))
    assert (found.severity, found.settings) == ("warning", ("seed",))
    assert "anyone with the data and this seed knows every member" in found.sentence
    (both,) = stored_seeds(replace(evidence, seed=7, coin_seed=7))
    assert both.severity == "error"
    assert both.sentence.endswith(found.sentence)


def test_a_folder_that_others_may_enter_is_an_error(evidence: Evidence) -> None:
    found = stored_seeds(replace(evidence, is_open=True))
    assert [f.severity for f in found] == ["error", "error"]


def test_without_noise_no_seed_matters(look: Look) -> None:
    assert stored_seeds(replace(look(rounds=1), coin_seed=None)) == []


FIT = {"epsilon": 8.0, "epochs": 1}
MODES: list[tuple[str, dict[str, Any]]] = [
    ("dp-fedpt", {"noise_by": "each-client"}),
    ("dp-fedpt", {"noise_by": "each-client", "adjacency": "add/remove-one"}),
    ("dp-fedpt", {"noise_by": "each-client", "coordinates": 9}),
    ("fedpt-top-k", {"top": 9}),
    ("fedpt-top-k", {"top": 9, "choice": "private"}),
]


@pytest.mark.parametrize(("name", "settings"), MODES, ids=str)
def test_of_a_sound_run_nothing_is_said_but_that_a_seed_is_stored(
    name: str, settings: dict[str, Any], look: Look
) -> None:
    evidence = look(name, **FIT, **settings)
    assert [found.rule for found in lint(evidence)] == ["stored-seeds"]
    shown = {r.release for r in client_residuals(evidence)}
    assert shown == {event.release for _, event in evidence.events()}


def test_shares_of_noise_are_found_and_the_server_that_sees_uploads_warned_of(
    look: Look,
) -> None:
    evidence = look("dp-fedpt", **FIT)
    assert [(f.rule, f.severity) for f in lint(evidence)] == [
        ("stored-seeds", "error"),
        ("claim-covers-certificate", "warning"),
    ]


@pytest.mark.parametrize("coordinates", [0, 9])
def test_the_servers_noise_is_found_between_two_broadcasts(
    coordinates: int, look: Look
) -> None:
    evidence = look("dp-fedpt", **FIT, noise_by="server", coordinates=coordinates)
    assert noise_as_claimed(evidence) == []
    assert clipped_norms(evidence) == []
    found = list(server_residuals(evidence))
    assert len(found) == 6
    assert {residual.values for residual in found} == {coordinates or 96}


def test_half_of_the_servers_noise_is_too_little(look: Look) -> None:
    evidence = look("dp-fedpt", **FIT, noise_by="server")

    def twice(event: MechanismEvent) -> MechanismEvent:
        return replace(event, noise_multiplier=2 * event.noise_multiplier)

    more = [[twice(event) for event in events] for events in evidence.rounds]
    (found,) = noise_as_claimed(replace(evidence, rounds=more))
    assert found.severity == "error"
    assert "0.5" in found.sentence


def test_an_unclipped_move_is_an_error(look: Look) -> None:
    evidence = look("dp-fedpt", **FIT, mode="published-paper")
    (found,) = clip_per_record(evidence)
    assert found.severity == "error"
    assert "not clipped" in found.sentence


def test_copies_in_one_client_are_hidden_together_and_others_are_not(
    look: Look,
) -> None:
    evidence = look("dp-fedpt", **FIT)
    first, second, *_ = evidence.members
    own = {**evidence.members, first: ["same", "same"]}
    assert duplicate_records(replace(evidence, members=own)) == []
    both = {**own, second: ["same"]}
    assert len(duplicate_records(replace(evidence, members=both))) == 1


def test_delta_is_held_against_the_number_of_clients(look: Look) -> None:
    evidence = look("dp-fedpt", **FIT, delta=0.4)
    (found,) = delta_below_one_record(evidence)
    assert "3 clients" in found.sentence
