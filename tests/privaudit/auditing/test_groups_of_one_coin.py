"""Records that share a coin are one trial: the audit counts groups."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privaudit import Auditor, Run, split_membership
from privaudit.auditing.parts.leakage_by_round import LEAKAGE_BY_ROUND
from privaudit.auditing.parts.source_inference import SOURCE_INFERENCE
from privaudit.auditing.played_scenario import PlayedScenario
from privaudit.auditing.scenario import find_scenario
from privaudit.core.errors import AttackError
from privaudit.federated.runs.ledger import Ledger
from privaudit.statistics.roc import auroc

TOSSES = 200
NAME = "loss-threshold"


def test_intervals_by_group_cover_and_those_by_record_are_too_narrow() -> None:
    """No leak: only groups differ, as patients do. Truth is 0.5; each toss is anew."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(140), rng.integers(2, 15, 140))
    by_record = by_group = 0
    for toss in range(TOSSES):
        ledger = split_membership(clients=1, groups=groups, seed=toss)
        of = ledger.candidates_of(0)
        scores = rng.normal(size=140)[groups[of]] + rng.normal(size=len(of))
        truth, units = ledger.is_member[of], ledger.units(of)
        found = auroc(scores[truth], scores[~truth])
        by_record += found.low <= 0.5 <= found.high
        means, truth = units.mean(scores), truth[units.first]
        found = auroc(means[truth], means[~truth])
        by_group += found.low <= 0.5 <= found.high
        assert sum(found.n) == len(units.first) == 98
    assert by_group / TOSSES >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / TOSSES)
    assert by_record / TOSSES < 0.75


def paired(ledger: Ledger) -> Ledger:
    """Return the ledger with neighbours in groups that are alike in all else."""
    group = np.arange(len(ledger.owner))
    for owner in np.unique(ledger.owner):
        for member in (False, True):
            rows = np.flatnonzero(
                (ledger.owner == owner) & (ledger.is_member == member)
            )
            rows = rows[: len(rows) // 2 * 2]
            group[rows[1::2]] = rows[::2]
    return replace(ledger, group=group)


@pytest.fixture
def played(whole: Path) -> tuple[PlayedScenario, PlayedScenario]:
    """Three clients under one attack: as they are, and with groups."""
    run, grouped = Run(whole), Run(whole)
    grouped.__dict__["ledger"] = paired(run.ledger)
    plan = find_scenario("update-watch", 0)
    plan = replace(plan, attacks={NAME: plan.attacks[NAME]})
    adversary, targets = Auditor(run).prepare(plan)
    alone, together = (
        PlayedScenario(one, plan, adversary, targets[:3]) for one in (run, grouped)
    )
    return alone, together


def test_an_audit_scores_and_counts_groups(
    played: tuple[PlayedScenario, PlayedScenario],
) -> None:
    before, after = (one.attack(one.scenario, one.targets)[NAME] for one in played)
    group, truth = played[1].run.ledger.group, played[0].run.ledger.is_member
    assert group is not None
    for client, alone in zip(after.clients, before.clients, strict=True):
        rows = [group[alone.records] == record for record in client.records]
        assert sum(int(some.sum()) for some in rows) == len(alone.records)
        means = [alone.scores[some].mean() for some in rows]
        np.testing.assert_allclose(client.scores, means)
        votes = np.array([alone.guesses[some].mean() for some in rows])
        np.testing.assert_array_equal(client.guesses, votes > 0.5)
        np.testing.assert_array_equal(client.is_member, truth[client.records])
    counted = sum(len(client.records) for client in after.clients)
    assert sum(after.auroc.n) == counted < 0.6 * sum(before.auroc.n)
    (rounds,) = LEAKAGE_BY_ROUND.compute(played[1])
    assert [sum(e.n) for e in rounds.by_round.values()] == [counted, counted]
    assert rounds.by_round[1] == after.auroc
    source = SOURCE_INFERENCE.compute(played[1])
    assert source is not None
    assert sum(source.members.n) + sum(source.others.n) == counted


def test_epsilon_of_groups_is_not_held_against_a_claim_about_records(
    whole: Path,
) -> None:
    run = Run(whole)
    run.__dict__["ledger"] = paired(run.ledger)
    with pytest.raises(AttackError, match="groups of records that share a coin"):
        Auditor(run).attack("one-run", shadows=0)
