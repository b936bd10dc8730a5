"""False alarms of attacks on 1,000 nulls, and whether intervals of shares hold them.

Run by ``make bench``. Each attack scores the candidates of toy federations that never
saw one of them; 40 federations, and for each 25 tosses of who is called a member, which
no score depends on. Of shares, 1,000 clients are drawn.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest

from privaudit.attacks.prompt_discriminant import PromptDiscriminant
from privaudit.attacks.rmia import Rmia
from privaudit.auditing.attack import ATTACKS, Attack
from privaudit.federation.trainer import Records, Task
from privaudit.statistics.roc import pooled_auroc
from privaudit.trainers.lora_fedavg import LoraFedAvg
from privaudit.trainers.promptfl import PromptFL
from privaudit_labs.attacks.label_only import LabelOnly
from privaudit_labs.attacks.ramia import Ramia
from privaudit_labs.profiles.class_shares import SKEW, _regress
from privaudit_labs.profiles.shares import estimated_usage
from privaudit_labs.shift.panoramia import compared
from tests.conftest import toy_records, with_noise
from tests.labs.profiles.test_shares import signals
from tests.labs.shift.test_panoramia import drawn, spread
from tests.privaudit.auditing.parts.test_exposure import null_bounds, null_exposures
from tests.toy_federation import CLIENTS, play_toy
from tests.toy_language import toy_dialogues, toy_writing_task

LEVELS = 0.025, 0.05, 0.05  # of one end, and of both
FEDERATIONS, TOSSES, EACH = 40, 25, 40
ATTACKED: tuple[Attack, ...] = (
    LabelOnly(),
    Ramia(),
    PromptDiscriminant(shadows=16),
    ATTACKS.find("gradient-norm")(),
    ATTACKS.find("neighbourhood")(),
    ATTACKS.find("difficulty-calibration")(),
    ATTACKS.find("quantile-regression")(),
    ATTACKS.find("fedmia")(),
    ATTACKS.find("whitened-alignment")(),
    Rmia(shadows=4),
    Rmia(shadows=1, mode="offline"),
    ATTACKS.find("upload-inversion")(),
    ATTACKS.find("extraction")(),
)


def nulls(attack: Attack, task: Task) -> Iterator[list[np.ndarray]]:
    """Yield the scores of each federation's clients."""
    writes = attack.task == "generation"
    for number in range(FEDERATIONS):
        make = toy_dialogues if writes else _classified
        seeds = [1000 * number + n for n in range(6)]
        asked = {c: make(EACH, s) for c, s in zip(CLIENTS, seeds, strict=False)}
        shards = {
            c: make(EACH // 2, s) for c, s in zip(CLIENTS, seeds[3:], strict=True)
        }
        if writes:
            world = replace(toy_writing_task(), rounds=1)
            played = play_toy(
                LoraFedAvg(epochs=20, batch_size=0, learning_rate=0.02),
                task=world,
                shards=shards,
            )
        else:
            trainer = PromptFL(epochs=20, batch_size=0, learning_rate=0.2)
            played = play_toy(trainer, task=task, shards=shards)
        adversary, targets = played.watched("server", asked, seed=number)
        yield [found.scores for found in attack(adversary, targets)]


def _classified(count: int, seed: int) -> Records:
    return with_noise(toy_records(count, seed=seed), seed)


@pytest.mark.parametrize("attack", ATTACKED, ids=str)
def test_false_alarms_of_attacks(attack: Attack, task: Task) -> None:
    rng, alarms = np.random.default_rng(0), []
    public = with_noise(toy_records(160, seed=1), 99)
    for scores in nulls(attack, replace(task, public=public)):
        for _ in range(TOSSES):
            coins = [rng.random(len(s)) < 0.5 for s in scores]
            groups = [(s[c], s[~c]) for s, c in zip(scores, coins, strict=True)]
            alarms.append(pooled_auroc(groups).low > 0.5)
    report(f"{attack}: AUROC above 0.5", float(np.mean(alarms)), len(alarms), 0.025)


Table = tuple[np.ndarray, np.ndarray, np.ndarray]  # known, with scores, the truth


def many_columns(seed: int, count: int = 200) -> Table:
    """64 features, one of which is shifted and given by the score."""
    rng = np.random.default_rng(seed)
    truth = rng.random(count) < 0.5
    known = rng.normal(size=(count, 64))
    known[:, 0] += truth
    score = known[:, 0] + rng.normal(size=count)
    return known, np.column_stack([known, score]), truth


def in_clusters(seed: int, count: int = 300) -> tuple[*Table, np.ndarray]:
    """Records of 60 patients, whose scores and coins resemble one another."""
    rng = np.random.default_rng(seed)
    patient = np.repeat(np.arange(60), count // 60)
    truth = rng.random(count) < rng.beta(0.5, 0.5, 60)[patient]
    known = rng.normal(size=(count, 1))
    score = 0.9**0.5 * rng.normal(size=60)[patient] + 0.1**0.5 * rng.normal(size=count)
    return known, np.column_stack([known, score]), truth, patient


BASELINES: Mapping[str, Callable[[int], tuple[np.ndarray, ...]]] = {
    "nothing differs": lambda seed: drawn(0.0, 0.0, seed, count=200),
    "a shift": lambda seed: drawn(1.0, 0.0, seed, count=200),
    "a spread": lambda seed: spread(seed, count=200),
    "64 columns, one shifted": many_columns,
    "clusters, correlation 0.9": in_clusters,
}


@pytest.mark.parametrize("name", BASELINES)
def test_false_alarms_beyond_a_baseline(name: str) -> None:
    found = [compared(*BASELINES[name](seed)) for seed in range(1000)]
    alarms = float(np.mean([one.gain.low > 0 for one in found]))
    report(f"beyond a baseline, {name}", alarms, len(found), 0.025)


def test_false_alarms_of_secrets() -> None:
    what = (
        "members' first ranks beyond others'",
        "others' exposure",
        "others' first ranks",
    )
    for name, share, level in zip(what, null_exposures(1000), LEVELS, strict=True):
        report(name, float(share), 1000, level)
    report("a bound by secrets above 0", null_bounds(1000), 1000, 0.05)


@pytest.mark.parametrize("effect", [0.0, 1.0, 3.0])
def test_intervals_of_usage(effect: float) -> None:
    for share in (0.0, 0.1, 0.5, 0.9, 1.0):
        drawn_ones = [signals(share, effect, seed) for seed in range(1000)]
        found = [(estimated_usage(*d[:3]), float(d[3].mean())) for d in drawn_ones]
        missed = float(np.mean([one.excludes(truth) for one, truth in found]))
        width = np.mean([one.high - one.low for one, _ in found])
        report(
            f"share {share:g}, effect {effect:g}, width {width:.2f}", missed, 1000, 0.05
        )


CLIENTS_HOLD: Mapping[str, Callable[[np.random.Generator], np.ndarray]] = {
    "as shadows do": lambda rng: skewed(rng, 1)[0],
    "all classes alike": lambda rng: np.full(10, 0.1),
    "one class": lambda rng: np.eye(10)[rng.integers(10)],
    "Dirichlet 0.3": lambda rng: rng.dirichlet(np.full(10, 0.3)),
}


def skewed(rng: np.random.Generator, count: int) -> np.ndarray:
    """Draw shares of ten classes as shadow clients have them."""
    weights = np.log(rng.random((count, 10))) ** SKEW
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("held", CLIENTS_HOLD)
def test_intervals_of_class_shares(held: str, noise: float) -> None:
    """Models lean to their classes, and as much to others by chance; 16 shadows."""
    rng, missed, large, widths = np.random.default_rng(0), [], [], []
    for _ in range(100):
        drawn = [*skewed(rng, 16), CLIENTS_HOLD[held](rng)]
        shares = np.stack([rng.multinomial(50, one) / 50 for one in drawn])
        lean = shares + noise * rng.normal(size=shares.shape)
        found = _regress(lean[:-1], shares[:-1], lean[-1:])
        for one, actual in zip(found, shares[-1], strict=True):
            missed.append(not one.low - 1e-3 <= actual <= one.high + 1e-3)
            large += [missed[-1]] if actual > 0.3 else []
            widths.append(one.high - one.low)
    few = (
        f"{100 * np.mean(large):.0f} % of {len(large)} above 0.3 missed, "
        if large
        else ""
    )
    what = f"a client of {held}, noise {noise:g}, {few}width {np.mean(widths):.2f}"
    report(what, float(np.mean(missed)), 1000, 0.05)


def report(what: str, share: float, count: int, nominal: float) -> None:
    """Print a share, and fail where it is above nominal by three standard errors."""
    most = nominal + 3 * (nominal * (1 - nominal) / count) ** 0.5
    print(f"{what}: {100 * share:.1f} % of {count} (at most {100 * most:.1f})")
    assert share <= most
