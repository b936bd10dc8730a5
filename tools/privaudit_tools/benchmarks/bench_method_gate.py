"""What pairs of real runs differ by: which attack a gate compares, and what it decides.

Federations of the embedded model on digits are trained in pairs with one seed, so with
the same records, clients and coins, and attacked with the same shadow models. Of each
pair and attack: the correlation of the two AUROCs over records, the error of their
difference, over seeds the difference's mean and spread, and what the gates say: that on
two models of each seed, and that on methods. Then the latter is asked of drawn pairs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privaudit import Auditor, train
from privaudit.auditing.attack_result import ClientScores
from privaudit.checks.gate.checks import GateQuestion, judge
from privaudit.evaluation.metrics.auroc import AUROC
from privaudit.statistics.estimate import Estimate, normal_quantile
from privaudit.statistics.paired_t import judge_pairs, planned_looks

SEEDS, SHADOWS = range(600, 608), 8
GATES, KINDS = 2000, ("pass", "regression", "rose, size open", "underpowered")
ATTACKS = ("rmia", "lira", "loss-threshold")
_STEPS = {"rounds": 20}  # of one step each
METHODS: Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "promptfl": ("promptfl", {}, {}),
    "promptfl, learning rate + 10 %": ("promptfl", {"learning_rate": 0.00055}, {}),
    "dp-fpl, no noise": ("dp-fpl", {}, _STEPS),
    "dp-fpl, ε 8": ("dp-fpl", {"epsilon": 8.0}, _STEPS),
    "dp-fpl, ε 8, other noise": (
        "dp-fpl", {"epsilon": 8.0}, {**_STEPS, "randomness": "system"},
    ),
}  # fmt: skip
PAIRS = (
    ("promptfl, learning rate + 10 %", "promptfl"),
    ("dp-fpl, ε 8, other noise", "dp-fpl, ε 8"),
    ("promptfl", "dp-fpl, ε 8"),
    ("promptfl", "dp-fpl, no noise"),
)
Scored = Mapping[str, Sequence[ClientScores]]


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return what each attack scores on a method's run with a seed."""
    folder = tmp_path_factory.mktemp("pairs")

    @cache
    def of(method: str, seed: int) -> Scored:
        trainer, settings, fields = METHODS[method]
        run = train(
            trainer, folder=Path(folder), settings=settings, seed=seed,
            measured_rounds=1, name=f"{len(method)}-{seed}", **fields,
        )  # fmt: skip
        audit = Auditor(run).attack("server-reconstruct", shadows=SHADOWS)
        return {name: audit.results[name].clients for name in ATTACKS}

    return of


def error(estimate: Estimate) -> float:
    return (estimate.high - estimate.low) / (2 * normal_quantile(0.95))


def records_alone(clients: Sequence[ClientScores]) -> list[ClientScores]:
    """Return scores without what says by how much shadow models move them."""
    return [replace(one, left_out=None) for one in clients]


def correlation(first: Sequence[ClientScores], second: Sequence[ClientScores]) -> float:
    """Return that of two AUROCs of the same records."""
    ours, theirs = records_alone(first), records_alone(second)
    a, b = (error(AUROC.interval(one, 0.95)) for one in (ours, theirs))
    both = error(AUROC.paired(ours, theirs).interval_at(0.95))
    return (a * a + b * b - both * both) / (2 * a * b)


@pytest.mark.parametrize("pair", PAIRS, ids=" - ".join)
def test_pairs_of_one_seed(pair: tuple[str, str], scored: Any) -> None:
    """Which attack's difference varies least: over records, and over seeds."""
    for attack in ATTACKS:
        sides = [
            tuple(scored(method, seed)[attack] for method in pair) for seed in SEEDS
        ]
        alike = [correlation(*both) for both in sides]
        compared = [AUROC.paired(*both) for both in sides]
        errors = [error(one.interval_at(0.95)) for one in compared]
        values = np.array([[one.first, one.second] for one in compared])
        apart = values[:, 0] - values[:, 1]
        asked = [
            GateQuestion(
                attack, "leak", "margin", 0.05, one.first, one.second, one.interval_at
            )
            for one in compared
        ]
        models: list[str] = [judge([one])[0].outcome for one in asked]
        both = judge_pairs(values[:, 0].tolist(), values[:, 1].tolist(), 0.05)
        print(
            f"\n| {pair[0]} | {pair[1]} | {attack} | {values[:, 0].mean():.3f} | "
            f"{values[:, 1].mean():.3f} | {np.mean(alike):.2f} "
            f"[{min(alike):.2f}, {max(alike):.2f}] | {np.mean(errors):.3f} | "
            f"{' / '.join(str(models.count(kind)) for kind in KINDS)} | "
            f"{apart.mean():+.3f} | {apart.std(ddof=1):.3f} | {both.kind} |"
        )


@pytest.mark.parametrize("spread", [0.01, 0.025, 0.045])
@pytest.mark.parametrize("pairs", [4, 8, 10, 12])
def test_outcomes_of_drawn_pairs(spread: float, pairs: int) -> None:
    """Errors at the margin of 0.05, and power: normal differences of a spread over seeds."""
    looks, rng = planned_looks(pairs), np.random.default_rng([pairs, int(1e4 * spread)])
    shares = []
    for rise in (0.0, 0.05, 0.1):
        kinds: list[str] = []
        for one in rng.normal(rise, spread, (GATES, pairs)).tolist():
            for look in looks:
                found = judge_pairs(one[:look], [0.0] * look, 0.05, len(looks))
                if found.further is None:
                    break
            kinds.append(found.kind)
        shares.append([kinds.count(kind) / GATES for kind in KINDS])
    wrong = 0.025 + 3 * np.sqrt(0.025 * 0.975 / GATES)
    assert max(shares[1][:2]) <= wrong
    cells = " | ".join(" / ".join(f"{100 * s:.1f}" for s in row) for row in shares)
    print(f"\n| {spread} | {pairs} | {cells} |")
