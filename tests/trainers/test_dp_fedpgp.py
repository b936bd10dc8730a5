import math
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy

from privaudit.core.seeds import Seeds
from privaudit.federated.federation import Federation, RoundRecord, give_away, run_round
from privaudit.federated.threat_models import peer, released, server
from privaudit.federated.trainer import Cohort, Records, Round, Task
from privaudit.federated.transcript import SERVER
from privaudit.privacy.certificate import CertifiedView, certify
from privaudit.trainers.dp_fedpgp import DPFedPGP
from privaudit.tuning.prompts.contrast import personal_context, prompts_contrast

Shards = dict[str, Records]
ALL = 12  # the members a client of the toy task has on average: sampling at rate 1
AT = Round(0, Seeds(0), ("client-0", "client-1", "client-2"))
VIEWS: tuple[CertifiedView, ...] = get_args(CertifiedView)


def make(**options: Any) -> DPFedPGP:
    return DPFedPGP(**({"learning_rate": 0.05, "batch_size": 5, "rank": 2} | options))


def train(
    trainer: DPFedPGP, task: Task, shards: Shards
) -> tuple[Federation, list[RoundRecord]]:
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    records = []
    for index in range(task.rounds):
        records += run_round(trainer, task, [federation], index)
    return federation, records


def proved(records: list[RoundRecord], view: CertifiedView) -> float | None:
    return certify([r.events for r in records], view, 1e-5).epsilon


def start(trainer: DPFedPGP, task: Task) -> dict[str, Tensor]:
    kept = trainer.start_client(task, "client-0", Seeds(0))
    state = {**trainer.start(task, Seeds(0)), **kept}
    return {name: state[name][None] for name in ("context", "u", "v")}


def leaves_of(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.clone().requires_grad_() for name, t in parameters.items()}


def cross_entropy_of(task: Task, leaves: dict[str, Tensor], shard: Records) -> Tensor:
    text = task.prompts(personal_context(leaves))[0]
    return cross_entropy(task.logit_scale * shard.features @ text.T, shard.labels)


@pytest.mark.parametrize("view", VIEWS)
def test_sound_noise_is_worth_epsilon_against_everyone(
    view: CertifiedView, task: Task, shards: Shards
) -> None:
    _, records = train(make(epsilon=2.0, steps=2), task, shards)
    epsilon = proved(records, view)
    assert epsilon is not None
    assert 0.98 * 2.0 < epsilon <= 2.0 * (1 + 1e-6)


@pytest.mark.parametrize("weight", [0.0, 2.0])
def test_without_noise_a_sound_step_descends_loss_and_contrast(
    weight: float, task: Task, shards: Shards
) -> None:
    """Oracle: everyone is in the sample, over 12; the contrast counts once."""
    trainer = make(batch_size=ALL, steps=1, contrast=weight)
    shard, before = shards["client-0"], start(make(), task)
    done = trainer.local_update(
        task,
        Cohort.of(["client-0"], [shard]),
        {"context": before["context"]},
        {name: before[name] for name in ("u", "v")},
        AT,
    )
    leaves = leaves_of(before)
    share = len(shard) / ALL
    loss = share * cross_entropy_of(task, leaves, shard)
    loss = loss + weight * prompts_contrast(task, leaves, 0.5).sum()
    found = {**done.sent, **done.kept}
    for name, gradient in zip(
        leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True
    ):
        want = before[name] - 0.05 * gradient
        torch.testing.assert_close(found[name], want, rtol=1e-4, atol=1e-6)


def test_one_record_moves_all_three_by_the_clip_norm_at_most(
    task: Task, shards: Shards
) -> None:
    """The contrast is the same with or without it, and is not clipped."""
    trainer = make(batch_size=ALL, epsilon=1.0, clip_norm=0.5, contrast=50.0)
    before, shard = start(trainer, task), shards["client-0"]
    sums = []
    for count in (len(shard), len(shard) - 1):
        some = shard.pick(torch.arange(count))
        gradients, _ = trainer.gradients(
            task,
            Cohort.of(["client-0"], [some]),
            before,
            trainer.losses(task),
            AT,
            trainer.penalty(task),
        )
        sums.append(torch.cat([g.flatten() for g in gradients.values()]) * ALL)
    assert float((sums[0] - sums[1]).norm()) == pytest.approx(0.5, rel=1e-3)
    assert sums[0].norm() > 10  # the contrast's


def test_as_published_factors_are_noised_at_home_and_sigma_at_the_server(
    task: Task, shards: Shards
) -> None:
    """Clients without records: what is left is noise, of the published deviation."""
    nobody = {c: s.pick(torch.zeros(len(s)).bool()) for c, s in shards.items()}
    trainer = make(mode="published-paper", epsilon=2.0, contrast=0.0, batch_size=32)
    std = math.sqrt(task.rounds * math.log(1e5)) / 2 * 10 / 32
    federation = Federation.begin(trainer, task, nobody, Seeds(0))
    own, shared = [], []
    for index in range(60):
        before, kept = federation.server["context"], dict(federation.kept)
        (record,) = run_round(trainer, task, [federation], index)
        shared.append(federation.server["context"] - before)
        for client in nobody:
            for name in ("u", "v"):
                moved = federation.kept[client][name] - kept[client][name]
                own.append(moved.flatten())
            (up,) = (m for m in record.messages if m.sender == client)
            assert torch.equal(up.tensors["context"], before)
    # 2,880 and 900 draws: standard errors of 1.3 % and 2.4 %.
    assert float(torch.cat(own).std()) == pytest.approx(std, rel=0.06)
    assert float(torch.stack(shared).std()) == pytest.approx(std / 3, rel=0.1)


@pytest.mark.parametrize("mode", ["published-paper", "published-code"])
def test_published_noise_proves_nothing_against_the_server_that_adds_it(
    mode: Any, task: Task, shards: Shards
) -> None:
    """Two factors, each clipped by itself, cost a buyer sqrt(2) times one."""
    _, records = train(make(mode=mode, epsilon=0.4), task, shards)
    assert proved(records, "server") is None
    others, buyer = proved(records, "peer"), proved(records, "released")
    assert others is not None
    assert buyer is not None
    assert others < buyer
    (local,) = (e for e in records[0].events if e.release == "local")
    assert local.sensitivity == pytest.approx(2 * math.sqrt(2))


def test_the_published_code_leaves_the_contrast_out(task: Task, shards: Shards) -> None:
    """By hand: momentum 0.9 and weight decay 5e-4 on either side."""
    trainer = make(mode="published-code", batch_size=100, contrast=5.0)
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    shared, kept = federation.server["context"], federation.kept["client-0"]
    leaves = leaves_of(
        {"context": shared[None], "u": kept["u"][None], "v": kept["v"][None]}
    )
    loss = cross_entropy_of(task, leaves, shards["client-0"])
    gradients = dict(
        zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True)
    )
    (record,) = run_round(trainer, task, [federation], 0)
    ups = [m.tensors["gradient"] for m in record.messages if m.receiver == SERVER]
    torch.testing.assert_close(ups[0], gradients["context"][0])
    for name in ("u", "v"):
        want = kept[name] - 0.05 * (gradients[name][0] + 5e-4 * kept[name])
        torch.testing.assert_close(federation.kept["client-0"][name], want)
    want = shared - 0.05 * (torch.stack(ups).mean(0) + 5e-4 * shared)
    torch.testing.assert_close(federation.server["context"], want)


def loss_of(task: Task, context: Tensor, shard: Records) -> float:
    logits = task.logit_scale * shard.features @ task.prompts(context[None])[0].T
    return float(cross_entropy(logits, shard.labels))


@pytest.mark.parametrize("mode", ["sound", "published-paper"])
def test_the_server_is_drawn_to_the_right_client(
    mode: Any, task: Task, shards: Shards
) -> None:
    """Its rebuilt models fit their own client better than the average does."""
    trainer = make(mode=mode, batch_size=8, contrast=0.0)
    federation, records = train(trainer, task, shards)
    messages = [m for r in records for m in r.messages]
    models, last = give_away(trainer, task, federation, task.rounds)
    messages += last
    gain, average = 0.0, federation.server["context"]
    for client, shard in shards.items():
        reconstructed = trainer.reconstruct(task, server(messages), client)
        assert reconstructed.missing == ("the client's low-rank prompt",)
        gain += loss_of(task, average, shard)
        gain -= loss_of(task, reconstructed.model["context"], shard)
    assert gain / 3 > 0.02
    assert (
        len(trainer.reconstruct(task, peer("client-0")(messages), "client-2").missing)
        == 2
    )
    exact = trainer.reconstruct(task, released(messages), "client-2")
    assert torch.equal(exact.model["context"], models["client-2"]["context"])
    assert exact.missing == ()


def test_the_codes_gradients_tell_which_way_a_low_rank_prompt_has_moved(
    task: Task, shards: Shards
) -> None:
    trainer = make(mode="published-code", batch_size=100)
    federation, records = train(trainer, task, shards)
    messages = [m for r in records for m in r.messages]
    messages += give_away(trainer, task, federation, task.rounds)[1]
    cosines = []
    for client in shards:
        reconstructed = trainer.reconstruct(task, server(messages), client)
        assert reconstructed.estimated
        kept, start = (
            federation.kept[client],
            trainer.start_client(task, client, Seeds(0)),
        )
        moved = kept["u"] @ kept["v"] - start["u"] @ start["v"]
        found = reconstructed.model["context"] - federation.server["context"]
        cosines.append(
            float(cosine_similarity(found.flatten(), moved.flatten(), dim=0))
        )
    assert sum(cosines) / 3 > 0.3
