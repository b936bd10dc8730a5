import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from privaudit.federation.trainer import Records
from privaudit.models.interfaces import Classifier
from privaudit.statistics.roc import pooled_auroc
from privaudit.trainers.coop import CoOp
from privaudit_tools.benchmarks.one_prompt import (
    DIM,
    Bank,
    Contrast,
    DrawnTower,
    Game,
    Shown,
)

CLASSES, EACH, WIDE = 4, 12, 24


def drawn(count: int, seed: int) -> Records:
    generator = torch.Generator().manual_seed(seed)
    features = normalize(torch.randn(count, WIDE, generator=generator), dim=-1)
    return Records(features, torch.arange(count) % CLASSES)


def prompt(records: Records, is_in: Tensor) -> Tensor:
    """Text features that are nothing but the sums of what was trained on."""
    own = [records.features[is_in & (records.labels == k)] for k in range(CLASSES)]
    return normalize(torch.stack([one.sum(dim=0) for one in own]), dim=-1)


@pytest.mark.parametrize("attack", ["contrast", "linear"])
def test_both_tell_members_where_a_prompt_is_its_records_and_no_others(
    attack: str,
) -> None:
    """Learned on other records, and asked about new ones."""
    rng = np.random.default_rng(0)
    size = CLASSES * EACH
    records = [drawn(size, seed) for seed in range(40)]
    coins = np.stack([rng.random(size) < 0.5 for _ in records])
    text = torch.stack(
        [prompt(r, torch.from_numpy(c)) for r, c in zip(records, coins, strict=True)]
    )
    known = Shown(text[:30], records[:30], coins[:30])
    contrast = Contrast.fit(known, 0) if attack == "contrast" else None
    found: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for place in range(30, 39):
        for side, one in zip(found, (text[place], text[place + 1]), strict=True):
            asked = one, records[place]
            side.append(contrast.scores(*asked) if contrast else known.linear(*asked))
    truth = coins[30:39]
    true, control = (
        pooled_auroc([(s[t], s[~t]) for s, t in zip(side, truth, strict=True)])
        for side in found
    )
    assert true.low > 0.65
    assert control.low < 0.5 < control.high


def test_a_game_asks_about_as_many_members_as_others() -> None:
    features = normalize(
        torch.randn(400, DIM, generator=torch.Generator().manual_seed(0)), dim=-1
    )
    records = Records(features, torch.arange(400) % CLASSES)
    means = normalize(torch.eye(CLASSES, DIM), dim=-1)
    is_test = np.arange(400) >= 200
    bank = Bank(Classifier(DrawnTower(means), 30.0, means), records, is_test)
    for by_coin in (True, False):
        game = Game(bank, CoOp(epochs=2), shots=2, by_coin=by_coin, shadows=4)
        found, asked_about = game.play(owners=2, seed=0)
        assert list(found) == ["contrast", "linear", "linear, own coins", "loss"]
        for sides in found.values():
            for members, others in (pair for side in sides for pair in side):
                assert len(members) == len(others) == 2 * CLASSES
                assert np.isfinite([*members, *others]).all()
        for owner in asked_about:
            assert len(np.unique(owner)) == 4 * CLASSES
            assert by_coin or (is_test[owner[1]].all() and not is_test[owner[0]].any())
