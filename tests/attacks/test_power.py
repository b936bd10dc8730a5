"""Attacks with shadow models against the loss threshold, on models that overfit."""

from dataclasses import replace

import pytest

from privaudit import Audit, Auditor, train
from privaudit.auditing.attack_result import paired_scores
from privaudit.auditing.scenario import find_scenario
from privaudit.statistics.comparisons import Comparison, pooled_paired_auroc_difference


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    """Four clients that train far too long: what each record is like still varies.

    Fifty steps of Adam memorise what two hundred of gradient descent do.
    """
    run = train(
        "promptfl",
        settings={"epochs": 50, "optimizer": "adam", "learning_rate": 0.005},
        folder=tmp_path_factory.mktemp("runs"),
        rounds=1,
        clients=4,
        measured_rounds=1,
        seed=0,
    )
    plan = find_scenario("server-reconstruct", 24)
    compared = {name: plan.attacks[name] for name in ("loss-threshold", "lira", "rmia")}
    return Auditor(run).attack(replace(plan, attacks=compared), clients="all")


def gain(audit: Audit, attack: str) -> Comparison:
    """By how much an attack's AUROC exceeds the loss threshold's, client by client."""
    better, plain = (audit.results[n].clients for n in (attack, "loss-threshold"))
    return pooled_paired_auroc_difference(paired_scores(better, plain))


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["lira", "rmia"])
def test_knowing_each_record_s_difficulty_tells_more_than_its_loss(
    audit: Audit, attack: str
) -> None:
    """The gain's interval is as wide as the gain: its sign and the leak are certain."""
    assert audit.results[attack].auroc.low > 0.5
    assert gain(audit, attack).estimate.value > 0.0


@pytest.mark.slow
def test_guesses_at_a_likelihood_ratio_of_one_are_mostly_right(audit: Audit) -> None:
    assert audit.results["lira"].success_plain.low > 0.5
