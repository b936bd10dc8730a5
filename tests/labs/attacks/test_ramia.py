"""Records known up to a radius, against a loop over their samples."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from privaudit.auditing.attack import Attack
from privaudit.core.errors import AttackError
from privaudit.core.tensors import stack
from privaudit.federation.query import ask
from privaudit.federation.trainer import Records
from privaudit.trainers.promptfl import PromptFL
from privaudit_labs.attacks.label_only import LabelOnly
from privaudit_labs.attacks.moved_features import directions
from privaudit_labs.attacks.ramia import Ramia
from tests.toy_federation import Play
from tests.toy_language import toy_dialogues


@pytest.mark.parametrize("samples", [1, 4])
def test_ranges_against_a_loop_over_records(samples: int, play: Play) -> None:
    """Of one sample it is the moved record; of more, the mean of the better half."""
    adversary, targets = play(PromptFL(epochs=2)).watched()
    target, public = targets[0], adversary.task.public
    start = next(m.tensors for m in adversary.view.messages if m.kind == "broadcast")
    ways = 0.3 * directions(adversary, "ramia", samples)

    def log_likelihoods(records: Records) -> np.ndarray:
        """Log-likelihoods after and before, [records, samples, 2]."""
        rows = []
        for feature, label in zip(records.features, records.labels, strict=True):
            centre = normalize(feature + ways[0], dim=0)
            inside = [centre, *(normalize(centre + way, dim=0) for way in ways[1:])]
            samples = Records(torch.stack(inside), label.expand(len(inside)))
            models = stack([{"context": m["context"]} for m in (found, start)])
            said = ask(adversary.trainer, adversary.task, models, samples)
            rows.append(said[:, :, int(label)].T.double().numpy())
        return np.stack(rows)

    found = target.reconstructed.model
    candidates, reference = log_likelihoods(target.candidates), log_likelihoods(public)
    slope = np.polyfit(reference[..., 1].ravel(), reference[..., 0].ravel(), 1)[0]
    gains = np.sort(candidates[..., 0] - slope * candidates[..., 1], axis=1)
    (scores, *_) = Ramia(samples=samples)(adversary, [target])
    half = max(1, samples // 2)
    np.testing.assert_allclose(scores.scores, gains[:, -half:].mean(axis=1), atol=1e-4)


def test_a_range_has_the_trimmed_mean_of_its_samples_by_hand() -> None:
    """Tao and Shokri: the mean of the highest share of the samples' scores."""
    scores = np.array([[1.0, 4.0, 2.0, 3.0], [0.0, 0.0, -8.0, 6.0]])
    for kept, wanted in ((0.25, [4, 6]), (0.5, [3.5, 3]), (1.0, [2.5, -0.5])):
        found = Ramia(samples=4, kept=kept)._of_ranges(scores)
        assert found.tolist() == wanted


@pytest.mark.parametrize("attack", [Ramia(), LabelOnly()])
def test_who_reads_more_than_a_feature_is_refused(attack: Attack, play: Play) -> None:
    adversary, targets = play(PromptFL(epochs=1)).watched()
    words = replace(adversary, task=replace(adversary.task, public=toy_dialogues(4)))
    with pytest.raises(AttackError, match="read parts of records"):
        attack(words, targets)
