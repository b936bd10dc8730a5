"""Rules duplicate-records, weights-by-size and stored-seeds."""

from dataclasses import replace

import pytest
import torch

from privaudit.checks.lint.evidence import Evidence, fingerprints
from privaudit.checks.lint.small_rules import (
    duplicate_records,
    stored_seeds,
    weights_by_size,
)
from privaudit.datasets.dataset import Dataset, PixelImages
from tests.privaudit.checks.lint.conftest import Look


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
