"""The rules on runs whose mechanisms hide whole clients."""

from dataclasses import replace
from typing import Any

import pytest

from privaudit.checks.lint.clip_per_record import clip_per_record
from privaudit.checks.lint.clipped_norms import clipped_norms
from privaudit.checks.lint.linter import lint
from privaudit.checks.lint.noise_as_claimed import noise_as_claimed
from privaudit.checks.lint.residuals import client_residuals, server_residuals
from privaudit.checks.lint.small_rules import delta_below_one_record, duplicate_records
from privaudit.privacy.events import MechanismEvent
from tests.privaudit.checks.lint.conftest import Look

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
