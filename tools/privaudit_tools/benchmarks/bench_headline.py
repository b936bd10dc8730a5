"""What the headline is worth: the figures of docs/decisions/0012 and docs/attacks.md.

Each part is a test of its own: pilot, five fresh seeds against the loss threshold, null
runs, other coins of the shadows, and coverage on made-up audits. ``-k`` chooses.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from privaudit import Audit, Auditor, train
from privaudit.attacks.rmia import Rmia
from privaudit.auditing.attack_result import evaluate_scores
from privaudit.auditing.scenario import Scenario, find_scenario
from privaudit.statistics.estimate import mean_with_t
from privaudit_tools.benchmarks.bench_method_gate import records_alone
from tests.other_coins import result_under_other_coins
from tests.privaudit.statistics.test_shadow_comparison import Draw, estimated, truth

TRAINERS: Mapping[str, dict[str, object]] = {
    "promptfl": {},
    "promptfl, stable": {"learning_rate": 0.000125},
    "dp-fpl": {},
}
PILOT, FRESH = range(300, 304), range(321, 326)
SERVER = "server-reconstruct"
NULLS, NULL_SHADOWS, TOSSES = 40, 16, 10


def only(shadows: int, *attacks: str) -> Scenario:
    from dataclasses import replace

    plan = find_scenario(SERVER, shadows).for_task("classification")
    kept = {name: plan.attacks[name] for name in attacks}
    return replace(plan, attacks=kept, dominates=())


def audited(
    name: str, seed: int, folder: Path, shadows: int, *attacks: str, coins: int = 0
) -> Audit:
    trainer, settings = name.partition(",")[0], TRAINERS[name]
    run = train(
        trainer, folder=folder, seed=seed, settings=settings, measured_rounds=1,
        name=f"{trainer}-{len(settings)}-{seed}", resume=True,
    )  # fmt: skip
    return Auditor(run).attack(only(shadows, *attacks), seed=coins)


@pytest.mark.parametrize("shadows", [8, 16, 32])
@pytest.mark.parametrize("name", TRAINERS)
def test_pilot(
    name: str, shadows: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """RMIA and LiRA on seeds that are reported nowhere else: which one is named?"""
    folder = tmp_path_factory.getbasetemp() / "pilot"
    names = ("rmia", "lira", "loss-threshold")
    found = [audited(name, seed, folder, shadows, *names) for seed in PILOT]
    print(f"\n{name}, {shadows} shadows, {len(found)} seeds")
    for attack in names:
        values = [audit.results[attack].auroc.value for audit in found]
        print(f"  {attack}: {mean_with_t(values)}")


def test_five_fresh_seeds(tmp_path: Path) -> None:
    """The headline as a budget of two minutes buys it, against the loss threshold."""
    rows = []
    for seed in FRESH:
        run = train("promptfl", folder=tmp_path, seed=seed, measured_rounds=1)
        audit = Auditor(run).attack()
        loss = audit.results["loss-threshold"]
        assert audit.budget is not None
        print(
            f"\nseed {seed}: {audit.headline.attack} ({audit.budget.shadows} shadows) "
            f"{audit.auroc}, {audit.verdict.kind}; loss-threshold {loss.auroc}, "
            f"{loss.verdict.kind}"
        )
        rows.append((audit.auroc.value, loss.auroc.value))
    for name, values in zip(("headline", "loss"), zip(*rows, strict=True), strict=True):
        print(f"{name}: {mean_with_t(values)}")


def test_null_runs(tmp_path: Path) -> None:
    """Runs, coins of shadows and coins of members anew: how often is "leaks" said?"""
    kinds, widths = [], []
    for seed in range(NULLS):
        run = train(
            "promptfl", folder=tmp_path, seed=500 + seed, measured_rounds=1,
        )  # fmt: skip
        adversary, targets = Auditor(run).prepare(only(5, "rmia"), seed=seed)
        scored = Rmia(shadows=NULL_SHADOWS)(adversary, targets)
        for toss in range(TOSSES):
            coins = 9000 + TOSSES * seed + toss
            leak = result_under_other_coins(run, targets, scored, coins)
            kinds.append(leak.verdict.kind)
            widths.append(leak.auroc.high - leak.auroc.low)
    count = len(kinds)
    limit = count * 0.025 + 3 * np.sqrt(count * 0.025 * 0.975)
    print(
        f"\n{kinds.count('leaks')} of {count} null audits leak (at most {limit:.0f}), "
        f"{kinds.count('reversed')} reversed; mean width {np.mean(widths):.3f}"
    )
    assert kinds.count("leaks") <= limit


@pytest.mark.parametrize("shadows", [8, 16, 32, 64])
def test_other_coins_of_the_shadows(
    shadows: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One run, twelve sets of shadows: what they differ by, and what intervals say."""
    folder = tmp_path_factory.getbasetemp() / "coins"
    found = [
        audited("promptfl", 400, folder, shadows, "rmia", "lira", coins=coins)
        for coins in range(12)
    ]
    for attack in ("rmia", "lira"):
        leaks = [audit.results[attack] for audit in found]
        values = np.array([leak.auroc.value for leak in leaks])
        plain = [
            evaluate_scores("", "", "", records_alone(k.clients)).auroc for k in leaks
        ]
        widths = [float(np.mean([e.high - e.low for e in es])) for es in (
            plain, [leak.auroc for leak in leaks]
        )]  # fmt: skip
        print(
            f"\n{attack}, {shadows} shadows: {values.min():.3f} to {values.max():.3f}, "
            f"standard deviation {values.std(ddof=1):.4f}; mean width of the interval "
            f"{widths[0]:.4f} for records alone, {widths[1]:.4f} with shadows"
        )


@pytest.mark.parametrize("lift", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("shadows", [6, 8, 16, 32, 64])
@pytest.mark.parametrize("common", [0.0, 1.0, 3.0])
def test_coverage(lift: float, shadows: int, common: float) -> None:
    rng, audits = np.random.default_rng(7), 2000
    draw = Draw(lift, shadows, common=common)
    mean = 0.5 if lift == 0 else truth(draw, rng, 20_000)
    found = [draw.audit(rng) for _ in range(audits)]
    from privaudit.statistics.roc import pooled_auroc

    plain = [pooled_auroc(clients) for clients, _ in found]
    knowing = [estimated(*one) for one in found]
    shares = [np.mean([e.low <= mean <= e.high for e in es]) for es in (plain, knowing)]
    widths = [np.mean([e.high - e.low for e in es]) for es in (plain, knowing)]
    print(
        f"\nlift {lift}, {shadows} shadows, common {common}: AUROC {mean:.3f}, records "
        f"alone cover {shares[0]:.3f} (width {widths[0]:.3f}), with shadows "
        f"{shares[1]:.3f} ({widths[1]:.3f})"
    )
    assert shares[1] >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / audits)
