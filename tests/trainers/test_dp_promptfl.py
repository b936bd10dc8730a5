import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from privaudit.core.seeds import Seeds
from privaudit.federation.trainer import Task
from privaudit.privacy.accountant import gaussian_epsilon
from privaudit.privacy.certificate import CertifiedView
from privaudit.trainers.dp_promptfl import DPPromptFL
from privaudit.trainers.prompt_fedprox import PromptFedProx
from privaudit.trainers.promptfl import PromptFL
from tests.toy_federation import (
    ALL,
    Play,
    Shards,
    context_gradient,
    context_loss,
    emptied,
)


def make(**options: Any) -> DPPromptFL:
    return DPPromptFL(**({"learning_rate": 0.05, "batch_size": 5} | options))


@pytest.fixture
def large(task: Task) -> Task:
    """The toy's task as published: T 100, and more records than a batch."""
    return replace(task, rounds=100, candidates=dict.fromkeys(task.clients, 400))


def test_without_noise_sound_clients_take_plain_steps_and_average_plainly(
    play: Play, task: Task, shards: Shards
) -> None:
    """By hand: everyone is in every sample; sums over 12, whatever the size."""
    played = play(make(batch_size=ALL, steps=2), rounds=0)
    start = played.server["context"]
    played.step()
    ends = []
    for shard in shards.values():
        end = start
        for _ in range(2):
            share = len(shard) / ALL
            end = end - 0.05 * share * context_gradient(task, end, shard)
        ends.append(end)
    want = torch.stack(ends).mean(dim=0)
    torch.testing.assert_close(played.server["context"], want)


def test_as_published_without_noise_a_round_is_one_step_of_one_batch(
    play: Play, task: Task, shards: Shards
) -> None:
    trainer = make(mode="published-paper", batch_size=100, clip_norm=1e6)
    played = play(trainer, rounds=0)
    start = played.server["context"]
    played.step()
    ends = [start - 0.05 * context_gradient(task, start, s) for s in shards.values()]
    want = torch.stack(ends).mean(dim=0)
    torch.testing.assert_close(played.server["context"], want)


def test_the_published_codes_server_has_momentum_and_decay(
    play: Play, task: Task, shards: Shards
) -> None:
    played = play(make(mode="published-code", batch_size=100), rounds=0)
    context = played.server["context"]
    velocity = torch.zeros_like(context)
    for _ in range(3):
        gradients = [context_gradient(task, context, s) for s in shards.values()]
        mean = torch.stack(gradients).mean(dim=0)
        played.step()
        velocity = 0.9 * velocity + mean + 5e-4 * context
        context = context - 0.05 * velocity
    torch.testing.assert_close(played.server["context"], context)


@pytest.mark.parametrize("mode", ["published-paper", "published-code"])
def test_published_noise_has_the_published_deviation_on_prompts_and_gradients(
    mode: Any, play: Play, task: Task, shards: Shards
) -> None:
    """Clients without records send what they got, or nothing, and noise."""
    std = math.sqrt(task.rounds * math.log(1e5)) / 2 * 10 / 32
    trainer = DPPromptFL(mode=mode, epsilon=2.0)
    played = play(trainer, rounds=0, shards=emptied(shards))
    noise = []
    for index in range(60):
        down = played.server["context"] if mode == "published-paper" else 0
        played.step()
        for sent in played.uploads(index).values():
            (tensor,) = sent.values()
            noise.append(tensor - down)
    # 2,700 draws: a standard error of 1.4 %.
    assert float(torch.stack(noise).std()) == pytest.approx(std, rel=0.06)


def test_the_codes_server_adds_noise_of_its_own(play: Play, task: Task) -> None:
    trainer = make(mode="published-code", epsilon=2.0, learning_rate=1.0)
    quiet = make(mode="published-code", learning_rate=1.0)
    sums = {"gradient": torch.zeros(3, 5)}
    server = trainer.start(task, Seeds(0))
    federation = play(trainer, rounds=0, shards={}).federation
    noise = []
    for index in range(200):
        at = replace(federation.at(0, 1.0), index=index, participants=task.clients)
        noisy, silent = (
            t.aggregate(task, server, sums, at)[0]["context"] for t in (trainer, quiet)
        )
        noise.append(silent - noisy)
    want = trainer.noise_std(task) / 3
    assert float(torch.stack(noise).std()) == pytest.approx(want, rel=0.06)


@pytest.mark.parametrize("clip", ["batch", "sample"])
def test_noise_on_a_prompt_proves_more_than_is_claimed(
    clip: Any, play: Play, large: Task
) -> None:
    """T 100, C 10, B 32, rate 0.001: noise made for gradients, on a thousandth."""
    trainer = DPPromptFL(
        mode="published-paper", epsilon=0.4, learning_rate=0.001, clip=clip
    )
    played = play(trainer, rounds=1, task=large)
    server, released = played.proved("server", 100), played.proved("released", 100)
    assert server is not None
    assert released is not None
    assert released < server < 0.05


def test_the_published_code_proves_what_a_batch_mean_can(
    play: Play, large: Task
) -> None:
    """By closed form: 2 C per round over the client's own noise, 100 rounds."""
    played = play(DPPromptFL(mode="published-code", epsilon=0.4), rounds=1, task=large)
    std = math.sqrt(100 * math.log(1e5)) / 0.4 * 10 / 32
    rows: list[tuple[CertifiedView, int]] = [("server", 1), ("server-aggregate", 3)]
    for view, parties in rows:
        mu = math.sqrt(100) * 2 * 10 / std / math.sqrt(parties)
        # The grid that noise is drawn on costs a little more than the closed form.
        want = pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-4)
        assert played.proved(view, 100) == want


@pytest.mark.parametrize("mu", [0.0, 5.0])
def test_epochs_without_noise_are_those_of_promptfl_and_fedprox(
    mu: float, play: Play, shards: Shards
) -> None:
    """Clients of one size, as averages are plain here; and a pull that is felt."""
    alike = {c: s.pick(torch.arange(len(s)) < 8) for c, s in shards.items()}
    same: dict[str, Any] = {"epochs": 2, "batch_size": 3, "learning_rate": 0.05}
    same |= {"momentum": 0.9}
    plain = PromptFedProx(mu=mu, **same) if mu else PromptFL(**same)
    noiseless = DPPromptFL(mode="published-paper", clip_norm=1e6, mu=mu, **same)
    ends = [
        play(trainer, rounds=2, shards=alike).server["context"]
        for trainer in (plain, noiseless, replace(noiseless, mu=mu + 5))
    ]
    torch.testing.assert_close(ends[0], ends[1])
    assert not torch.allclose(ends[1], ends[2], atol=1e-3)


@pytest.mark.parametrize("mu", [0.0, 5.0])
def test_the_code_s_epochs_send_what_they_moved_over_the_rate(
    mu: float, play: Play, task: Task, shards: Shards
) -> None:
    """By hand: two passes of one batch each, whose second feels the pull."""
    trainer = make(mode="published-code", batch_size=100, epochs=2, mu=mu)
    played = play(trainer, rounds=0)
    start = played.server["context"]
    played.step()
    for client, shard in shards.items():
        first = context_gradient(task, start, shard)
        second = context_gradient(task, start - 0.05 * first, shard)
        want = first + second - mu * 0.05 * first
        sent = played.uploads()[client]["gradient"]
        torch.testing.assert_close(sent, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("mode", "momentum", "mu"),
    [
        ("published-paper", None, 0.0),
        ("published-paper", None, 20.0),
        ("published-paper", 0.9, 0.0),
        ("published-code", None, 0.0),
        ("published-code", None, 20.0),
    ],
)
def test_what_epochs_prove_is_what_their_reach_allows(
    mode: Any, momentum: float | None, mu: float, play: Play, large: Task
) -> None:
    """By closed form: 400 records, 13 batches of 32, 2 passes; rate 0.01, clip 0.1.

    Of n steps the one before the last k moves a prompt by the rate times q^k with a
    pull, by the rate times 1 + b + ... + b^k with momentum b.
    """
    trainer = DPPromptFL(
        mode=mode, epsilon=2.0, epochs=2, clip_norm=0.1, learning_rate=0.01,
        momentum=momentum, mu=mu,
    )  # fmt: skip
    behind = range(2 * 13)
    if momentum:
        factors = [(1 - 0.9 ** (k + 1)) / 0.1 for k in behind]
    else:
        factors = [(1 - 0.01 * mu) ** k for k in behind]
    unit = 0.01 if mode == "published-paper" else 1.0
    reach = unit * 0.1 * sum(factors)
    std = math.sqrt(100 * math.log(1e5)) / 2.0 * 0.1 / 32
    played = play(trainer, rounds=1, task=large)
    rows: list[tuple[CertifiedView, int]] = [("server", 1), ("server-aggregate", 3)]
    for view, parties in rows:
        shift = math.sqrt(100) * 2 * reach / std / math.sqrt(parties)
        want = pytest.approx(gaussian_epsilon(shift, 1e-5), rel=1e-3)
        assert played.proved(view, 100) == want


def test_clipped_epochs_stay_within_the_reach(
    play: Play, task: Task, shards: Shards
) -> None:
    """A clip that every step feels, on clients with as many records as any can have."""
    trainer = DPPromptFL(
        mode="published-paper", epochs=6, batch_size=4, clip_norm=1e-3, mu=30.0,
        learning_rate=0.01, momentum=0.5,
    )  # fmt: skip
    played = play(trainer, rounds=0)
    start = played.server["context"]
    played.step()
    reach = trainer._reach(task)
    moves = [float((s["context"] - start).norm()) for s in played.uploads().values()]
    assert 0 < max(moves) <= reach
    assert reach < replace(trainer, mu=0.0)._reach(task)


@pytest.mark.parametrize(
    ("mode", "rounds"), [("sound", 10), ("published-paper", 10), ("published-code", 30)]
)
def test_the_server_is_drawn_to_the_right_client(
    mode: str, rounds: int, play: Play, task: Task, shards: Shards
) -> None:
    """Its rebuilt models fit their own client better than the average does.

    By .05 or more in each of six seeds; gradients with momentum take longest.
    """
    task = replace(task, rounds=rounds)
    played = play(make(mode=mode, batch_size=8), task=task)
    shared = played.server["context"]
    gains = []
    for client, shard in shards.items():
        reconstructed = played.rebuild("server", client)
        average, own = (
            float(context_loss(task, context, shard))
            for context in (shared, reconstructed.model["context"])
        )
        gains.append(average - own)
        assert reconstructed.missing == ()
    assert sum(gains) / 3 > 0.02
    for threat in ("server-aggregate", "peer:client-2", "released"):
        assert torch.equal(played.rebuild(threat).model["context"], shared)
