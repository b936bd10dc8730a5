import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import cosine_similarity

from privaudit.core.seeds import Seeds
from privaudit.federation.query import ask
from privaudit.federation.trainer import Task
from privaudit.privacy.accountant import gaussian_epsilon
from privaudit.trainers.dp_fedotp import DPFedOTP
from tests.toy_federation import Play, Shards


def make(**options: Any) -> DPFedOTP:
    usual = {"learning_rate": 0.05, "batch_size": 5, "iterations": 10}
    return DPFedOTP(**(usual | options))


def test_clipped_records_are_accounted_for_with_what_the_local_prompt_learned(
    play: Play, task: Task, shards: Shards
) -> None:
    """By closed form: a peer sees one release, and the other lies under it.

    With batch means no peer need count the local release; with records it must.
    """
    large = replace(task, rounds=100, candidates=dict.fromkeys(shards, 20))
    proofs = {}
    for clip in ("batch", "sample"):
        trainer = make(mode="published-paper", epsilon=0.4, clip=clip, batch_size=32)
        played = play(trainer, rounds=1, task=large)
        proofs[clip] = [played.proved(view, 100) for view in ("peer", "released")]
    noise = math.sqrt(100 * math.log(1e5)) / 0.4 / 32 / 0.05
    one, both = (math.sqrt(100 * releases) / noise for releases in (1, 2))
    assert proofs["batch"] == [
        pytest.approx(gaussian_epsilon(2 * mu, 1e-5)) for mu in (one, both)
    ]
    # The same noise hides one record of 32; its grid costs 2e-7.
    exact = gaussian_epsilon(both / 32, 1e-5)
    assert proofs["sample"] == [pytest.approx(exact, abs=1e-6)] * 2
    assert all(epsilon is not None and epsilon > exact for epsilon in proofs["sample"])


def test_the_published_code_releases_the_sum_and_needs_no_parts(
    play: Play, task: Task, shards: Shards
) -> None:
    trainer = make(mode="published-code", batch_size=100)
    pooled = {c: replace(s, tokens=None) for c, s in shards.items()}
    model = play(trainer, rounds=1, shards=pooled).models["client-0"]
    assert set(model) == {"context"}
    answers = ask(trainer, task, {"context": model["context"][None]}, task.public)
    assert answers.shape == (1, len(task.public), 4)
    assert not trainer.image_tokens
    assert make().image_tokens
    assert make(mode="published-paper").image_tokens


def test_the_servers_integral_is_close_to_the_codes_local_prompt(play: Play) -> None:
    played = play(make(mode="published-code", batch_size=100))
    for client, kept in played.kept.items():
        reconstructed = played.rebuild("server", client)
        assert reconstructed.estimated
        found = reconstructed.model["context"] - played.server["global"]
        start = played.trainer.start_client(played.task, client, Seeds(0))["local"]
        moved = kept["local"] - start
        assert cosine_similarity(found.flatten(), moved.flatten(), dim=0) > 0.99


@pytest.mark.parametrize("mode", ["sound", "published-paper", "published-code"])
def test_each_view_says_what_it_lacks(mode: Any, play: Play) -> None:
    played = play(make(mode=mode, epsilon=8.0))
    for threat in ("server", "peer:client-0"):
        assert played.rebuild(threat, "client-2").missing
    exact = played.rebuild("released", "client-2")
    assert exact.missing == ()
    for name, tensor in played.models["client-2"].items():
        assert torch.equal(exact.model[name], tensor)
