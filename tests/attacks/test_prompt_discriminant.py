from dataclasses import replace

import numpy as np
import pytest
import torch

from privaudit.attacks.prompt_discriminant import (
    PromptDiscriminant,
    _discriminant,
    _pairs,
)
from privaudit.auditing.attack import ATTACKS
from privaudit.core.errors import AttackError, UnknownNameError
from privaudit.federation.trainer import Records, Task
from privaudit.statistics.roc import auroc
from privaudit.trainers.coop import CoOp
from privaudit.trainers.fedpt_dhapa import FedPTDhapa
from privaudit.trainers.promptfl import PromptFL
from tests.toy_federation import Play


def drawn(effect: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs of 20 models and 60 records, one of whose eight inputs follows the coin."""
    generator = torch.Generator().manual_seed(seed)
    coins = torch.rand(10, 60, generator=generator) < 0.5
    coins = torch.stack([coins, ~coins], dim=1).flatten(0, 1)
    known = torch.randn(20, 60, 8, generator=generator).double()
    known[..., 3] += effect * (2.0 * coins - 1)
    return known, coins


def test_what_follows_the_coin_is_learned_and_nothing_else() -> None:
    asked, truth = (part[0] for part in drawn(2.0, seed=1))
    scores = _discriminant(*drawn(2.0), asked)
    assert auroc(scores[truth], scores[~truth]).low > 0.8
    noise = _discriminant(*drawn(0.0), asked)
    assert np.abs(noise).max() < 0.2 < np.abs(scores).max()
    again = _discriminant(*drawn(2.0), asked * 10)
    np.testing.assert_allclose(again, 10 * scores)


def test_pairs_and_discriminant_by_hand() -> None:
    """Products with the own class and the mean other; one weight, sum xy / (sum xx + k).

    Of the paper only the abstract was read, so these are our own formulas.
    """
    text = torch.tensor([[[1.0, 2.0], [4.0, 0.0], [0.0, 8.0]]]).double()
    record = Records(torch.tensor([[3.0, 5.0]]), torch.tensor([0]))
    (pair,) = _pairs(text, record)[0].tolist()
    assert pair == [3 * 1, 5 * 2, 3 * 2, 5 * 4]
    coins = torch.tensor([[True], [False]]).repeat(5, 1)
    known = (2.0 * coins - 1).double().unsqueeze(2)  # the input is the coin itself
    (score,) = _discriminant(known, coins, torch.tensor([[0.5]]).double())
    assert score == pytest.approx(0.5 * 10 / (10 + 1e-3))  # the least penalty is best


def test_its_old_name_is_refused_with_the_new_one() -> None:
    with pytest.raises(UnknownNameError, match="is called 'prompt-discriminant' now"):
        ATTACKS.find("pipra")


def test_no_output_is_asked(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    adversary, targets = play(CoOp(epochs=1)).watched("released")
    monkeypatch.setattr(CoOp, "query", lambda *asked: pytest.fail("was asked"))
    for found, target in zip(
        PromptDiscriminant(shadows=6)(adversary, targets), targets, strict=True
    ):
        assert found.scores.shape == (len(target.candidates),)


def test_models_that_are_no_prompt_are_refused(play: Play, task: Task) -> None:
    adversary, targets = play(PromptFL(epochs=1)).watched()
    with pytest.raises(AttackError, match="hold none in this view"):
        PromptDiscriminant()(replace(adversary, trainer=FedPTDhapa()), targets)
