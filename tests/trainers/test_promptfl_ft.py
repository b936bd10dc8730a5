from typing import Any

import torch

from privaudit.trainers.promptfl import PromptFL
from privaudit.trainers.promptfl_ft import FineTunedPromptFL
from tests.toy_federation import Play


def make(**options: Any) -> FineTunedPromptFL:
    return FineTunedPromptFL(**({"epochs": 4, "tuning_epochs": 6} | options))


def test_full_batches_without_momentum_are_tuned_as_if_trained_for_longer(
    play: Play,
) -> None:
    steps: dict[str, Any] = {"batch_size": 0, "momentum": 0.0, "learning_rate": 0.05}
    tuned = play(make(**steps), rounds=1)
    longer = play(PromptFL(epochs=10, **steps), rounds=1)
    for client, sent in longer.uploads().items():
        want = sent["context"] / sent["weight"]
        got = tuned.kept[client]["tuned"]
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_the_release_is_tuned_and_who_never_trained_gets_the_average(
    play: Play,
) -> None:
    played = play(make(), rounds=2, participation=0.34)
    seen = {*played.uploads(0), *played.uploads(1)}
    assert 0 < len(seen) < 3
    for client, model in played.models.items():
        is_average = torch.equal(model["context"], played.server["context"])
        assert is_average == (client not in seen)


def test_no_tuning_keeps_the_prompt_as_sent(play: Play) -> None:
    played = play(make(tuning_epochs=0), rounds=2)
    for client, model in played.models.items():
        reconstructed = played.rebuild("server", client)
        assert reconstructed.missing == ()
        torch.testing.assert_close(reconstructed.model, dict(model))
