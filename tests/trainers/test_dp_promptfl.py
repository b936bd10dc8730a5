import math
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.federated.federation import Federation, RoundRecord, give_away, run_round
from privaudit.federated.runs.config import build_trainer
from privaudit.federated.threat_models import peer, released, server, server_aggregate
from privaudit.federated.trainer import Records, Task
from privaudit.federated.transcript import SERVER, Message
from privaudit.privacy.certificate import CertifiedView, certify
from privaudit.statistics.epsilon.gaussian_mechanism import gaussian_epsilon
from privaudit.trainers.dp_promptfl import DPPromptFL

Shards = dict[str, Records]
ALL = 12  # the members a client of the toy task has on average: sampling at rate 1
VIEWS: tuple[CertifiedView, ...] = get_args(CertifiedView)
MODES: list[dict[str, Any]] = [
    {},
    {"epsilon": 8.0},
    {"mode": "published-paper", "epsilon": 8.0},
    {"mode": "published-paper", "epsilon": 8.0, "clip": "sample"},
    {"mode": "published-code", "epsilon": 8.0},
]


def make(**options: Any) -> DPPromptFL:
    return DPPromptFL(**({"learning_rate": 0.05, "batch_size": 5} | options))


def train(
    trainer: DPPromptFL, task: Task, shards: Shards
) -> tuple[Federation, list[RoundRecord]]:
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    records = []
    for index in range(task.rounds):
        records += run_round(trainer, task, [federation], index)
    return federation, records


def proved(
    records: list[RoundRecord], view: CertifiedView, rounds: int = 1
) -> float | None:
    return certify([r.events for r in records] * rounds, view, 1e-5).epsilon


def gradient_mean(task: Task, context: torch.Tensor, shard: Records) -> torch.Tensor:
    """Oracle: a plain backward pass through the mean loss."""
    leaf = context.clone().requires_grad_()
    logits = task.logit_scale * shard.features @ task.prompts(leaf[None])[0].T
    loss = torch.nn.functional.cross_entropy(logits, shard.labels)
    return torch.autograd.grad(loss, leaf)[0]


@pytest.mark.parametrize("view", VIEWS)
def test_sound_noise_is_worth_epsilon_against_everyone(
    view: CertifiedView, task: Task, shards: Shards
) -> None:
    _, records = train(make(epsilon=2.0, steps=3), task, shards)
    epsilon = proved(records, view)
    assert epsilon is not None
    assert 0.98 * 2.0 < epsilon <= 2.0 * (1 + 1e-6)


def test_without_noise_sound_clients_take_plain_steps_and_average_plainly(
    task: Task, shards: Shards
) -> None:
    """By hand: everyone is in every sample; sums over 12, whatever the size."""
    trainer = make(batch_size=ALL, steps=2)
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    start = federation.server["context"]
    run_round(trainer, task, [federation], 0)
    ends = []
    for shard in shards.values():
        end = start
        for _ in range(2):
            share = len(shard) / ALL
            end = end - 0.05 * share * gradient_mean(task, end, shard)
        ends.append(end)
    want = torch.stack(ends).mean(dim=0)
    torch.testing.assert_close(federation.server["context"], want)


def test_as_published_without_noise_a_round_is_one_step_of_one_batch(
    task: Task, shards: Shards
) -> None:
    trainer = make(mode="published-paper", batch_size=100, clip_norm=1e6)
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    start = federation.server["context"]
    run_round(trainer, task, [federation], 0)
    ends = [start - 0.05 * gradient_mean(task, start, s) for s in shards.values()]
    want = torch.stack(ends).mean(dim=0)
    torch.testing.assert_close(federation.server["context"], want)


def test_the_published_codes_server_has_momentum_and_decay(
    task: Task, shards: Shards
) -> None:
    trainer = make(mode="published-code", batch_size=100)
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    context = federation.server["context"]
    velocity = torch.zeros_like(context)
    for index in range(3):
        gradients = [gradient_mean(task, context, s) for s in shards.values()]
        mean = torch.stack(gradients).mean(dim=0)
        run_round(trainer, task, [federation], index)
        velocity = 0.9 * velocity + mean + 5e-4 * context
        context = context - 0.05 * velocity
    torch.testing.assert_close(federation.server["context"], context)


@pytest.mark.parametrize("options", MODES, ids=str)
def test_one_tensor_goes_up_and_one_down_and_no_size(
    options: dict[str, Any], task: Task, shards: Shards
) -> None:
    _, records = train(make(**options), task, shards)
    up = "gradient" if options.get("mode") == "published-code" else "context"
    for message in (m for r in records for m in r.messages):
        assert set(message.tensors) == {"context" if message.sender == SERVER else up}


def test_published_noise_has_the_published_deviation_on_prompts_and_gradients(
    task: Task, shards: Shards
) -> None:
    """Clients without records send what they got, or nothing, and noise."""
    nobody = {c: s.pick(torch.zeros(len(s)).bool()) for c, s in shards.items()}
    std = math.sqrt(task.rounds * math.log(1e5)) / 2 * 10 / 32
    for mode in ("published-paper", "published-code"):
        trainer = DPPromptFL(mode=mode, epsilon=2.0)
        federation = Federation.begin(trainer, task, nobody, Seeds(0))
        noise = []
        for index in range(60):
            down = federation.server["context"]
            (record,) = run_round(trainer, task, [federation], index)
            for message in (m for m in record.messages if m.receiver == SERVER):
                (sent,) = message.tensors.values()
                noise.append(sent - down if mode == "published-paper" else sent)
        # 2,700 draws: a standard error of 1.4 %.
        assert float(torch.stack(noise).std()) == pytest.approx(std, rel=0.06)


def test_the_codes_server_adds_noise_of_its_own(task: Task) -> None:
    trainer = make(mode="published-code", epsilon=2.0, learning_rate=1.0)
    quiet = make(mode="published-code", learning_rate=1.0)
    sums = {"gradient": torch.zeros(3, 5)}
    server = trainer.start(task, Seeds(0))
    federation = Federation.begin(trainer, task, {}, Seeds(0))
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
    clip: Any, task: Task, shards: Shards
) -> None:
    """T 100, C 10, B 32, rate 0.001: noise made for gradients, on a thousandth."""
    large = replace(task, rounds=100, candidates=dict.fromkeys(shards, 400))
    trainer = DPPromptFL(
        mode="published-paper", epsilon=0.4, learning_rate=0.001, clip=clip
    )
    federation = Federation.begin(trainer, large, shards, Seeds(0))
    records = run_round(trainer, large, [federation], 0)
    against_server = proved(records, "server", 100)
    assert against_server is not None
    assert against_server < 0.05
    released = proved(records, "released", 100)
    assert released is not None
    assert released < against_server


def test_the_published_code_proves_what_a_batch_mean_can(
    task: Task, shards: Shards
) -> None:
    """By closed form: 2 C per round over the client's own noise, 100 rounds."""
    large = replace(task, rounds=100, candidates=dict.fromkeys(shards, 400))
    trainer = DPPromptFL(mode="published-code", epsilon=0.4)
    federation = Federation.begin(trainer, large, shards, Seeds(0))
    records = run_round(trainer, large, [federation], 0)
    std = math.sqrt(100 * math.log(1e5)) / 0.4 * 10 / 32
    want = gaussian_epsilon(math.sqrt(100) * 2 * 10 / std, 1e-5)
    # The grid that noise is drawn on costs a little more than the closed form.
    assert proved(records, "server", 100) == pytest.approx(want, rel=1e-4)
    assert proved(records, "server-aggregate", 100) == pytest.approx(
        gaussian_epsilon(math.sqrt(100) * 2 * 10 / std / math.sqrt(3), 1e-5), rel=1e-4
    )


@pytest.mark.parametrize("options", [{}, {"mode": "published-code"}], ids=str)
def test_without_epsilon_nothing_is_certified(
    options: dict[str, Any], task: Task, shards: Shards
) -> None:
    _, records = train(make(**options), task, shards)
    assert all(proved(records, view) is None for view in VIEWS)
    assert make(**options).claim(task).epsilon is None


@pytest.mark.parametrize(
    ("mode", "rounds"),
    [("sound", 10), ("published-paper", 10), ("published-code", 30)],
)
def test_the_server_is_drawn_to_the_right_client(
    mode: str, rounds: int, task: Task, shards: Shards
) -> None:
    """Its rebuilt models fit their own client better than the average does.

    By .05 or more in each of six seeds; gradients with momentum take longest.
    """
    trainer = make(mode=mode, batch_size=8)
    task = replace(task, rounds=rounds)
    federation, records = train(trainer, task, shards)
    _, last = give_away(trainer, task, federation, task.rounds)
    messages: list[Message] = [m for r in records for m in r.messages] + list(last)
    shared = federation.server["context"]
    gains = []
    for client, shard in shards.items():
        reconstructed = trainer.reconstruct(task, server(messages), client)
        losses = [
            torch.nn.functional.cross_entropy(
                task.logit_scale * shard.features @ task.prompts(c[None])[0].T,
                shard.labels,
            )
            for c in (shared, reconstructed.model["context"])
        ]
        gains.append(float(losses[0] - losses[1]))
        assert reconstructed.missing == ()
    assert sum(gains) / 3 > 0.02
    for threat in (server_aggregate, peer("client-2"), released):
        model = trainer.reconstruct(task, threat(messages), "client-0").model
        assert torch.equal(model["context"], shared)


def test_a_client_alone_is_rebuilt_as_the_average_it_is(
    task: Task, shards: Shards
) -> None:
    trainer = make()
    federation, records = train(trainer, task, {"client-0": shards["client-0"]})
    messages = [m for r in records for m in r.messages]
    messages += give_away(trainer, task, federation, task.rounds)[1]
    model = trainer.reconstruct(task, server(messages), "client-0").model
    torch.testing.assert_close(model["context"], federation.server["context"])


def test_impossible_options_are_refused_with_a_reason() -> None:
    for settings, told in (
        ({"steps": 0}, "steps = 0"),
        ({"clip": "batch"}, "'sample' only"),
        ({"noise_at": "server"}, "no parameter 'noise_at'"),
    ):
        with pytest.raises(ConfigError, match=told):
            build_trainer("dp-promptfl", settings)
