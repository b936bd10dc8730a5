from typing import Any

import pytest
import torch
from torch.nn.functional import cosine_similarity

from privaudit.core.seeds import Seeds
from privaudit.federation.trainer import Task
from privaudit.trainers.dp_fedpgp import DPFedPGP
from tests.toy_federation import Play, Shards, context_loss


def make(**options: Any) -> DPFedPGP:
    return DPFedPGP(**({"learning_rate": 0.05, "batch_size": 5, "rank": 2} | options))


@pytest.mark.parametrize("mode", ["sound", "published-paper"])
def test_the_server_is_drawn_to_the_right_client(
    mode: Any, play: Play, task: Task, shards: Shards
) -> None:
    """Its rebuilt models fit their own client better than the average does."""
    played = play(make(mode=mode, batch_size=8, contrast=0.0))
    gain, average = 0.0, played.server["context"]
    for client, shard in shards.items():
        reconstructed = played.rebuild("server", client)
        assert reconstructed.missing == ("the client's low-rank prompt",)
        gain += float(context_loss(task, average, shard))
        gain -= float(context_loss(task, reconstructed.model["context"], shard))
    assert gain / 3 > 0.02
    assert len(played.rebuild("peer:client-0", "client-2").missing) == 2
    exact = played.rebuild("released", "client-2")
    assert torch.equal(exact.model["context"], played.models["client-2"]["context"])
    assert exact.missing == ()


def test_the_codes_gradients_tell_which_way_a_low_rank_prompt_has_moved(
    play: Play,
) -> None:
    played = play(make(mode="published-code", batch_size=100))
    cosines = []
    for client, kept in played.kept.items():
        reconstructed = played.rebuild("server", client)
        assert reconstructed.estimated
        start = played.trainer.start_client(played.task, client, Seeds(0))
        moved = kept["u"] @ kept["v"] - start["u"] @ start["v"]
        found = reconstructed.model["context"] - played.server["context"]
        cosines.append(cosine_similarity(found.flatten(), moved.flatten(), dim=0))
    assert sum(cosines) / 3 > 0.3
