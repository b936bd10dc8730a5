import math
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from privaudit.core.seeds import Seeds
from privaudit.federated.federation import Federation, RoundRecord, give_away, run_round
from privaudit.federated.query import ask
from privaudit.federated.threat_models import peer, released, server
from privaudit.federated.trainer import Cohort, Records, Round, Task
from privaudit.federated.transcript import SERVER
from privaudit.privacy.certificate import CertifiedView, certify
from privaudit.statistics.epsilon.gaussian_mechanism import gaussian_epsilon
from privaudit.trainers.dp_fedotp import DPFedOTP
from privaudit.tuning.prompts.averaging import pair_texts
from privaudit.tuning.prompts.transported_logits import transported_losses

Shards = dict[str, Records]
ALL = 12  # the members a client of the toy task has on average: sampling at rate 1
AT = Round(0, Seeds(0), ("client-0", "client-1", "client-2"))
VIEWS: tuple[CertifiedView, ...] = get_args(CertifiedView)


def make(**options: Any) -> DPFedOTP:
    usual = {"learning_rate": 0.05, "batch_size": 5, "iterations": 10}
    return DPFedOTP(**(usual | options))


def train(
    trainer: DPFedOTP, task: Task, shards: Shards
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


def prompts(trainer: DPFedOTP, task: Task) -> dict[str, Tensor]:
    kept = trainer.start_client(task, "client-0", Seeds(0))
    both = {**trainer.start(task, Seeds(0)), **kept}
    return {name: both[name][None] for name in ("global", "local")}


@pytest.mark.parametrize("view", VIEWS)
def test_sound_noise_is_worth_epsilon_against_everyone(
    view: CertifiedView, task: Task, shards: Shards
) -> None:
    _, records = train(make(epsilon=2.0, steps=2), task, shards)
    epsilon = proved(records, view)
    assert epsilon is not None
    assert 0.98 * 2.0 < epsilon <= 2.0 * (1 + 1e-6)


def test_without_noise_a_sound_step_descends_the_summed_loss(
    task: Task, shards: Shards
) -> None:
    """Oracle: fedotp's own losses; everyone is in the sample, over 12 whoever has."""
    trainer, shard = make(batch_size=ALL, steps=1), shards["client-0"]
    start = prompts(trainer, task)
    cohort = Cohort.of(["client-0"], [shard])
    done = trainer.local_update(
        task, cohort, {"global": start["global"]}, {"local": start["local"]}, AT
    )
    leaves = {name: t.clone().requires_grad_() for name, t in start.items()}
    batch = trainer.draw_batch(task, cohort, AT)
    loss = transported_losses(
        task, pair_texts(task, leaves), batch, trainer.transport
    ).sum()
    found = {**done.sent, **done.kept}
    for name, gradient in zip(
        leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True
    ):
        want = start[name] - 0.05 * gradient * len(shard) / ALL
        torch.testing.assert_close(found[name], want, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(done.loss, loss.detach()[None])


def test_one_record_moves_both_prompts_by_the_clip_norm_at_most(
    task: Task, shards: Shards
) -> None:
    """Jointly: plans run a fixed number of iterations, so that no other one moves."""
    trainer = make(batch_size=ALL, epsilon=1.0, clip_norm=0.5, steps=1)
    start, shard = prompts(trainer, task), shards["client-0"]
    sums = []
    for count in (len(shard), len(shard) - 1):
        some = shard.pick(torch.arange(count))
        gradients, _ = trainer.gradients(
            task, Cohort.of(["client-0"], [some]), start, trainer.losses(task), AT
        )
        sums.append(torch.cat([g.flatten() for g in gradients.values()]) * ALL)
    moved = float((sums[0] - sums[1]).norm())
    assert moved == pytest.approx(0.5, rel=1e-4)  # its gradient was longer
    assert sums[0].norm() > 1


def test_as_published_clients_noise_the_local_prompt_and_the_server_the_mean(
    task: Task, shards: Shards
) -> None:
    """Clients without records: what is left is noise, of the published deviation."""
    nobody = {c: s.pick(torch.zeros(len(s)).bool()) for c, s in shards.items()}
    trainer = DPFedOTP(mode="published-paper", epsilon=2.0, iterations=1)
    std = math.sqrt(task.rounds * math.log(1e5)) / 2 * 10 / 32
    federation = Federation.begin(trainer, task, nobody, Seeds(0))
    local, shared = [], []
    for index in range(60):
        before, kept = federation.server["global"], dict(federation.kept)
        (record,) = run_round(trainer, task, [federation], index)
        shared.append(federation.server["global"] - before)
        for client in nobody:
            local.append(federation.kept[client]["local"] - kept[client]["local"])
            (up,) = (m for m in record.messages if m.sender == client)
            assert torch.equal(up.tensors["global"], before)
    # 2,700 and 900 draws: standard errors of 1.4 % and 2.4 %.
    assert float(torch.stack(local).std()) == pytest.approx(std, rel=0.06)
    assert float(torch.stack(shared).std()) == pytest.approx(std / 3, rel=0.1)


@pytest.mark.parametrize("mode", ["published-paper", "published-code"])
def test_published_noise_proves_nothing_against_the_server_that_adds_it(
    mode: Any, task: Task, shards: Shards
) -> None:
    _, records = train(make(mode=mode, epsilon=0.4), task, shards)
    assert proved(records, "server") is None
    assert proved(records, "server-aggregate") is None
    others, buyer = proved(records, "peer"), proved(records, "released")
    assert others is not None
    assert buyer is not None
    assert others < buyer


def test_clipped_records_are_accounted_for_with_what_the_local_prompt_learned(
    task: Task, shards: Shards
) -> None:
    """By closed form: a peer sees one release, and the other lies under it.

    With batch means no peer need count the local release; with records it must.
    """
    large = replace(task, rounds=100, candidates=dict.fromkeys(shards, 20))
    proofs = {}
    for clip in ("batch", "sample"):
        trainer = make(mode="published-paper", epsilon=0.4, clip=clip, batch_size=32)
        federation = Federation.begin(trainer, large, shards, Seeds(0))
        record = run_round(trainer, large, [federation], 0)
        proofs[clip] = [proved(record, v, 100) for v in ("peer", "released")]
    noise = math.sqrt(100 * math.log(1e5)) / 0.4 / 32 / 0.05
    one, both = (math.sqrt(100 * releases) / noise for releases in (1, 2))
    assert proofs["batch"] == [
        pytest.approx(gaussian_epsilon(2 * mu, 1e-5)) for mu in (one, both)
    ]
    # The same noise hides one record of 32; its grid costs 2e-7.
    exact = gaussian_epsilon(both / 32, 1e-5)
    assert proofs["sample"] == [pytest.approx(exact, abs=1e-6)] * 2
    assert all(epsilon is not None and epsilon > exact for epsilon in proofs["sample"])


def test_the_published_code_adds_the_prompts_and_needs_no_parts(
    task: Task, shards: Shards
) -> None:
    """By hand: one gradient for both prompts, momentum 0.9, weight decay 5e-4."""
    trainer = make(mode="published-code", batch_size=100)
    pooled = {c: replace(s, tokens=None) for c, s in shards.items()}
    federation = Federation.begin(trainer, task, pooled, Seeds(0))
    shared, kept = federation.server["global"], federation.kept["client-0"]["local"]
    shard = pooled["client-0"]
    leaf = (shared + kept).clone().requires_grad_()
    logits = task.logit_scale * shard.features @ task.prompts(leaf[None])[0].T
    loss = torch.nn.functional.cross_entropy(logits, shard.labels)
    (gradient,) = torch.autograd.grad(loss, leaf)
    (record,) = run_round(trainer, task, [federation], 0)
    ups = [m.tensors["gradient"] for m in record.messages if m.receiver == SERVER]
    torch.testing.assert_close(ups[0], gradient)
    want = kept - 0.05 * (gradient + 5e-4 * kept)
    torch.testing.assert_close(federation.kept["client-0"]["local"], want)
    want = shared - 0.05 * (torch.stack(ups).mean(0) + 5e-4 * shared)
    torch.testing.assert_close(federation.server["global"], want)
    models, _ = give_away(trainer, task, federation, 1)
    assert set(models["client-0"]) == {"context"}
    model = {"context": models["client-0"]["context"][None]}
    assert ask(trainer, task, model, shard).shape == (1, len(shard), 4)


def test_parts_are_needed_where_there_is_transport() -> None:
    assert make().image_tokens
    assert make(mode="published-paper").image_tokens
    assert not make(mode="published-code").image_tokens


def test_the_servers_integral_is_close_to_the_codes_local_prompt(
    task: Task, shards: Shards
) -> None:
    trainer = make(mode="published-code", batch_size=100)
    federation, records = train(trainer, task, shards)
    starts = {c: trainer.start_client(task, c, Seeds(0))["local"] for c in shards}
    messages = [m for r in records for m in r.messages]
    messages += give_away(trainer, task, federation, task.rounds)[1]
    for client in shards:
        reconstructed = trainer.reconstruct(task, server(messages), client)
        assert reconstructed.estimated
        found = reconstructed.model["context"] - federation.server["global"]
        moved = federation.kept[client]["local"] - starts[client]
        assert cosine_similarity(found.flatten(), moved.flatten(), dim=0) > 0.99


@pytest.mark.parametrize("mode", ["sound", "published-paper", "published-code"])
def test_each_view_says_what_it_lacks(mode: Any, task: Task, shards: Shards) -> None:
    trainer = make(mode=mode, epsilon=8.0)
    federation, records = train(trainer, task, shards)
    messages = [m for r in records for m in r.messages]
    models, last = give_away(trainer, task, federation, task.rounds)
    messages += last
    for threat in (server, peer("client-0")):
        assert trainer.reconstruct(task, threat(messages), "client-2").missing
    exact = trainer.reconstruct(task, released(messages), "client-2")
    assert exact.missing == ()
    for name, tensor in models["client-2"].items():
        assert torch.equal(exact.model[name], tensor)
