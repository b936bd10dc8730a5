"""DP-FedOTP and DP-FedPGP: what is particular about each."""

import math
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
import torch
from torch.nn.functional import cosine_similarity

from privaudit.core.seeds import Seeds
from privaudit.federation.query import ask
from privaudit.federation.threat_models import find_threat
from privaudit.federation.trainer import Task
from privaudit.federation.uploads import update_deltas
from privaudit.privacy.accountant import gaussian_epsilon
from privaudit.trainers.dp_fedotp import DPFedOTP
from privaudit.trainers.dp_fedpgp import DPFedPGP
from privaudit.trainers.dp_pfedmoap import DPPFedMoAP
from privaudit.trainers.dp_promptfl import DPPromptFL
from privaudit.trainers.fedpt_top_k import FedPTTopK
from tests.toy_federation import Play, Shards, context_loss


def fedotp(**options: Any) -> DPFedOTP:
    usual = {"learning_rate": 0.05, "batch_size": 5, "iterations": 10}
    return DPFedOTP(**(usual | options))


def fedpgp(**options: Any) -> DPFedPGP:
    return DPFedPGP(**({"learning_rate": 0.05, "batch_size": 5, "rank": 2} | options))


CODE: dict[str, Any] = {"mode": "published-code", "batch_size": 100}


def test_clipped_records_are_accounted_for_with_what_the_local_prompt_learned(
    play: Play, task: Task, shards: Shards
) -> None:
    """By closed form: a peer sees one release, and the other lies under it.

    With batch means no peer need count the local release; with records it must.
    """
    large = replace(task, rounds=100, candidates=dict.fromkeys(shards, 20))
    proofs = {}
    for clip in ("batch", "sample"):
        trainer = fedotp(mode="published-paper", epsilon=0.4, clip=clip, batch_size=32)
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
    trainer = fedotp(mode="published-code", batch_size=100)
    pooled = {c: replace(s, tokens=None) for c, s in shards.items()}
    model = play(trainer, rounds=1, shards=pooled).models["client-0"]
    assert set(model) == {"context"}
    answers = ask(trainer, task, {"context": model["context"][None]}, task.public)
    assert answers.shape == (1, len(task.public), 4)
    assert not trainer.image_tokens
    assert fedotp().image_tokens
    assert fedotp(mode="published-paper").image_tokens


@pytest.mark.parametrize(
    ("trainer", "private", "each", "mean"),
    [
        (fedotp(**CODE), lambda kept: kept["local"], 0.99, 0.99),
        (fedpgp(**CODE), lambda kept: kept["u"] @ kept["v"], -1.0, 0.3),
    ],
    ids=["dp-fedotp", "dp-fedpgp"],
)
def test_the_codes_gradients_tell_which_way_a_private_part_has_moved(
    trainer: Any, private: Any, each: float, mean: float, play: Play
) -> None:
    played, cosines = play(trainer), []
    for client, kept in played.kept.items():
        reconstructed = played.rebuild("server", client)
        assert reconstructed.estimated
        found = reconstructed.model["context"] - played.server[trainer.shared]
        start = trainer.start_client(played.task, client, Seeds(0))
        moved = private(kept) - private(start)
        cosines.append(cosine_similarity(found.flatten(), moved.flatten(), dim=0))
    assert min(cosines) > each
    assert sum(cosines) / 3 > mean


@pytest.mark.parametrize("trainer", [
    fedpgp(mode="published-paper", epsilon=1e9), DPPromptFL(), DPPFedMoAP(),
    FedPTTopK(epsilon=8.0),
])  # fmt: skip
def test_a_clients_own_moves_count_by_whose_uploads_arrived(
    trainer: Any, play: Play
) -> None:
    """Of 2, 3 and 2 clients, of whose mean each has a part; dp-promptfl tells how much."""
    played = play(trainer, dropout=0.3, seed=3)
    view = find_threat("server")(played.messages)
    ((name, found),) = played.rebuild("server", "client-1").model.items()
    expected = view.last_broadcast("client-1").tensors[name]
    parties = [len(r) for r in map(played.uploads, range(3)) if "client-1" in r]
    usual = fmean(parties) ** -0.5 - 1 / fmean(parties)
    for sent, count in zip(view.updates_of("client-1"), parties, strict=True):
        upload = {n: tensor[None] for n, tensor in sent.tensors.items()}
        received = view.received_in("client-1", sent.round).tensors
        (moved,) = update_deltas(upload, received).values()
        share = 1 - 1 / count if isinstance(trainer, DPFedPGP) else usual
        expected = expected + share * moved.view(found.shape)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("mode", ["sound", "published-paper", "published-code"])
def test_each_view_says_what_it_lacks(mode: Any, play: Play) -> None:
    played = play(fedotp(mode=mode, epsilon=8.0))
    for threat in ("server", "peer:client-0"):
        assert played.rebuild(threat, "client-2").missing
    exact = played.rebuild("released", "client-2")
    assert exact.missing == ()
    for name, tensor in played.models["client-2"].items():
        assert torch.equal(exact.model[name], tensor)


@pytest.mark.parametrize("mode", ["sound", "published-paper"])
def test_the_server_is_drawn_to_the_right_client(
    mode: Any, play: Play, task: Task, shards: Shards
) -> None:
    """Its rebuilt models fit their own client better than the average does."""
    played = play(fedpgp(mode=mode, batch_size=8, contrast=0.0))
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
