import numpy as np
import torch

from privaudit.attacks.output_attacks import LossThreshold
from privaudit.auditing.signals import ask_signals
from privaudit.federation.trainer import Task
from privaudit.statistics.roc import auroc
from privaudit.trainers.coop import CoOp
from privaudit.trainers.promptfl import PromptFL
from privaudit_labs.attacks.before_training import slope_of
from privaudit_labs.attacks.difficulty_calibration import DifficultyCalibration
from tests.toy_federation import Play


def test_a_slope_of_one_is_the_published_difference(play: Play) -> None:
    adversary, targets = play(PromptFL()).watched()
    first = next(m for m in adversary.view.messages if m.kind == "broadcast")
    for attack in (DifficultyCalibration(slope=1.0), DifficultyCalibration(slope=0.0)):
        (found, *_), (plain, *_) = (
            one(adversary, targets) for one in (attack, LossThreshold())
        )
        signals = ask_signals(adversary, [first.tensors], targets[0].candidates)
        before = signals.log_likelihood[0].numpy()
        np.testing.assert_allclose(
            found.scores, plain.scores - (attack.slope or 0.0) * before
        )


def test_an_adversary_who_saw_no_broadcast_starts_its_own(play: Play) -> None:
    """Its start has other random numbers than the client's, and the same form."""
    played = play(CoOp(epochs=2))
    adversary, targets = played.watched("released")
    (found, *_) = DifficultyCalibration(slope=1.0)(adversary, targets)
    plain = LossThreshold()(adversary, targets)[0].scores
    assert np.isfinite(found.scores).all()
    assert np.abs(found.scores - plain).max() > 0.01


def test_the_slope_takes_out_what_the_start_explains() -> None:
    """Hard records hide members; what the start says of difficulty brings them back."""
    rng = np.random.default_rng(0)
    difficulty, is_member = 3 * rng.normal(size=600), rng.random(600) < 0.5
    start = -difficulty + 0.3 * rng.normal(size=600)
    end = -0.5 * difficulty + is_member + 0.3 * rng.normal(size=600)
    slope = slope_of(start[~is_member], end[~is_member])
    assert abs(slope - 0.5) < 0.05
    scores = end - slope * start
    found = auroc(scores[is_member], scores[~is_member])
    plain = auroc(end[is_member], end[~is_member])
    assert found.low > 0.95 > 0.75 > plain.high
    assert slope_of(np.ones(5), np.arange(5.0)) == 0.0


def test_a_model_that_was_never_trained_has_nothing_beyond_its_start(
    play: Play, task: Task
) -> None:
    """Its score is then the same for all records."""
    nothing = dict.fromkeys(task.clients, task.public.pick(torch.arange(0)))
    asked = dict.fromkeys(task.clients, task.public)
    played = play(PromptFL(epochs=1), shards=nothing)
    for found in DifficultyCalibration()(*played.watched(candidates=asked)):
        assert np.ptp(found.scores) < 1e-6
