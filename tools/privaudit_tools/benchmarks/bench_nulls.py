"""False alarms, on 1,000 nulls, of what is no attack on records by itself.

Run by ``make bench``: the active server, whole clients, the blind control, PANORAMIA's
bounds, extracted shares of groups, and inferred shares of classes. As in
``bench_new_attacks``, a toss that no score depends on says who is called a member.
"""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from privaudit.auditing.attack import ATTACKS
from privaudit.federation.trainer import Records, Task
from privaudit.runs.ledger import CoinUnits
from privaudit.statistics.comparisons import pooled_paired_auroc_difference
from privaudit.statistics.roc import auroc
from privaudit.trainers.promptfl import PromptFL
from privaudit_labs.active_server.amplified import Amplifier
from privaudit_labs.profiles.class_shares import _regress
from privaudit_labs.profiles.shares import InferredShare, InferredShares
from privaudit_labs.shift.blind_baseline import (
    beyond_blind,
    blind_scores,
    pooled_blind_auroc,
)
from privaudit_labs.shift.panoramia import compared, odds_bound
from privaudit_tools.benchmarks.bench_new_attacks import (
    BASELINES,
    CLIENTS_HOLD,
    FEDERATIONS,
    TOSSES,
    report,
    skewed,
)
from tests.conftest import CLASSES, toy_records, with_noise
from tests.labs.active_server.test_amplified import RECORDS, played
from tests.labs.extraction.test_extracted import null_alarms
from tests.toy_federation import CLIENTS, play_toy

NULLS = FEDERATIONS * TOSSES
ABOVE = 0.025  # of two-sided intervals of 95 %, those that lie above
SITES = 24  # clients, of which a coin says who took part


def noise(count: int, seed: int) -> Records:
    """Draw records whose labels only memory can know."""
    return with_noise(toy_records(count, seed=seed), seed)


def test_false_alarms_of_an_active_server(task: Task) -> None:
    """A client of other records is sent a model that amplifies each candidate."""
    rng, how = np.random.default_rng(0), Amplifier(rounds=16)
    alarms = dict.fromkeys(("AUROC above 0.5", "passive AUROC", "gain above 0"), 0)
    for number in range(FEDERATIONS):
        candidates, own = noise(RECORDS, 2 * number), noise(12, 2 * number + 1)
        found = played(task, own, candidates, how, seed=1000 * number)
        for _ in range(TOSSES):
            coin = rng.random(RECORDS) < 0.5
            sides = found.active, found.passive
            active, passive = (auroc(side[coin], side[~coin]).low for side in sides)
            gain = pooled_paired_auroc_difference([(*sides, coin)]).estimate
            above = active > 0.5, passive > 0.5, gain.low > 0
            for name, alarm in zip(alarms, above, strict=True):
                alarms[name] += alarm
    for name, count in alarms.items():
        report(f"active server, {name}", count / NULLS, NULLS, ABOVE)


def site(rng: np.random.Generator, number: int) -> Records:
    """Draw a client: 10 to 30 records that lie to one side, half of them of one class."""
    records = toy_records(int(rng.integers(10, 31)), seed=number)
    side = torch.from_numpy(rng.normal(size=records.features.shape[1])).float()
    features = normalize(records.features + 0.3 * side, dim=-1)
    own, other = rng.integers(CLASSES), rng.integers(CLASSES, size=len(records))
    labels = np.where(rng.random(len(records)) < 0.5, own, other)
    return Records(features, torch.from_numpy(labels))


@pytest.mark.parametrize("name", ["confidence", "loss-threshold", "modified-entropy"])
def test_false_alarms_about_whole_clients(name: str, task: Task) -> None:
    """Records of a client resemble one another; its mean score counts once."""
    rng, alarms, attack = np.random.default_rng(0), [], ATTACKS.find(name)()
    for number in range(FEDERATIONS):
        shards = {c: noise(20, 100 * number + n) for n, c in enumerate(CLIENTS)}
        trainer = PromptFL(epochs=20, batch_size=0, learning_rate=0.2)
        trained = play_toy(trainer, task=task, shards=shards)
        sites = [site(rng, 100 * number + 50 + n) for n in range(SITES)]
        asked = {CLIENTS[0]: Records.joined(sites)}
        (found,) = attack(*trained.watched("released", asked, seed=number))
        sizes = [len(one) for one in sites]
        first = np.cumsum([0, *sizes[:-1]])
        means = CoinUnits(first, np.repeat(np.arange(SITES), sizes)).mean(found.scores)
        for _ in range(TOSSES):
            coin = rng.random(SITES) < 0.5
            alarms.append(auroc(means[coin], means[~coin]).low > 0.5)
    report(f"whole clients, {name}", float(np.mean(alarms)), len(alarms), ABOVE)


@pytest.mark.parametrize(
    ("what", "count", "columns", "words", "nulls"),
    [
        ("features", 200, 16, 0, NULLS),
        ("features and captions", 100, 8, 6, NULLS),
        ("features, trees too", 1000, 8, 0, 100),  # a second each
    ],
)
def test_false_alarms_of_the_blind_control(
    what: str, count: int, columns: int, words: int, nulls: int
) -> None:
    """Nothing tells members; and an attack that guesses finds nothing beyond that."""
    above, missed, beyond = 0, 0, 0
    for seed in range(nulls):
        rng = np.random.default_rng(seed)
        truth = rng.random(count) < 0.5
        drawn = rng.integers(40, size=(count, words))
        texts = [" ".join(f"w{n}" for n in row) for row in drawn] if words else []
        blind = blind_scores(rng.normal(size=(count, columns)), truth, seed, texts)
        found = pooled_blind_auroc([(blind[truth], blind[~truth])])
        above, missed = above + (found.low > 0.5), missed + found.excludes(0.5)
        guess = rng.random(count)
        beyond += beyond_blind([(guess, blind, truth)]).estimate.low > 0
    report(f"blind control, {what}: above 0.5", above / nulls, nulls, ABOVE)
    report(f"blind control, {what}: misses 0.5", missed / nulls, nulls, 2 * ABOVE)
    report(f"an attack beyond it, {what}", beyond / nulls, nulls, ABOVE)


def test_false_alarms_of_the_bounds_on_odds() -> None:
    """The excess is a difference of two bounds, and so a measure: see a shift."""
    same = [compared(*BASELINES["nothing differs"](seed)) for seed in range(NULLS)]
    for name in ("baseline_bound", "bound", "excess"):
        share = float(np.mean([getattr(one, name) > 0 for one in same]))
        report(f"{name} above 0, nothing differs", share, NULLS, ABOVE)
    shifted = [compared(*BASELINES["a shift"](seed)).excess for seed in range(100)]
    above, most = 100 * np.mean(np.array(shifted) > 0), max(shifted)
    print(
        f"excess under a shift alone: {above:.0f} % of 100 above 0, at most {most:.2f}"
    )


def test_bounds_on_odds_beyond_the_truth() -> None:
    """Guesses that are right with odds of e to 1: the truth is 1."""
    rng, beyond = np.random.default_rng(0), 0
    for _ in range(NULLS):
        truth = rng.random(300) < 0.5
        right = rng.random(300) < math.e / (1 + math.e)
        beyond += odds_bound(np.where(right, truth, ~truth).astype(float), truth) > 1
    report("bound on odds beyond the truth", beyond / NULLS, NULLS, ABOVE)


@pytest.mark.parametrize("often", [0.1, 0.5, 0.9])
def test_false_alarms_of_extracted_groups(often: float) -> None:
    alarms = null_alarms(NULLS, often)
    report(f"groups extracted, {often:g} of them", alarms, NULLS, ABOVE)


@pytest.mark.parametrize("held", ["Dirichlet 0.3", "one class"])
def test_false_alarms_of_inferred_classes(held: str) -> None:
    """Four clients, whose models and 16 shadows each lean to classes by chance alone."""
    rng, alarms, names = np.random.default_rng(0), 0, [f"class {n}" for n in range(10)]
    for _ in range(NULLS):
        by_client = {}
        for client in range(4):
            shares = [rng.multinomial(50, one) / 50 for one in skewed(rng, 16)]
            actual = rng.multinomial(50, CLIENTS_HOLD[held](rng)) / 50
            lean = rng.normal(size=(17, 10))
            found = _regress(lean[:-1], np.stack(shares), lean[-1:])
            pairs = zip(names, found, actual.tolist(), strict=True)
            by_client[str(client)] = {n: InferredShare(e, a) for n, e, a in pairs}
        gain = InferredShares.of(by_client, dict.fromkeys(names, 0.1)).gain
        alarms += gain.low > 0
    report(f"classes of {held}: gain above 0", alarms / NULLS, NULLS, ABOVE)
