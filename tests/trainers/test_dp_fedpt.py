import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from dp_accounting import GaussianDpEvent, NeighboringRelation, SelfComposedDpEvent
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from scipy.stats import chi2
from torch import Tensor

from privaudit.core.seeds import Seeds
from privaudit.federation.trainer import Cohort, Records, Round, Task
from privaudit.federation.uploads import COORDINATES
from privaudit.privacy.certificate import Certificate, CertifiedView, certify
from privaudit.runs.config import build_trainer
from privaudit.statistics.claim import Guarantee, judge_claim
from privaudit.statistics.epsilon.bound import IndependentRuns
from privaudit.statistics.epsilon.many_runs import SplitThreshold
from privaudit.trainers.dp_fedpt import DPFedPT
from privaudit.tuning.transformers.private_updates import MOVED
from tests.toy_federation import Play, Shards

STILL: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 1e-9, "epochs": 1}
DELTA = 1e-5


def made(**fields: Any) -> DPFedPT:
    trainer = build_trainer("dp-fedpt", fields)
    assert isinstance(trainer, DPFedPT)
    return trainer


def one_round(trainer: DPFedPT, play: Play) -> tuple[list[Tensor], Tensor, Tensor]:
    """Return what clients sent, and the server's numbers before and after."""
    played = play(trainer, rounds=0)
    before = torch.cat([t.flatten() for t in played.server.values()])
    played.step(traced=True)
    after = torch.cat([t.flatten() for t in played.server.values()])
    return [sent[MOVED] for sent in played.uploads().values()], before, after


def certified(
    trainer: DPFedPT, task: Task, view: CertifiedView, rounds: int, took: int = 3
) -> Certificate:
    at = Round(0, Seeds(0), task.clients[:took])
    return certify([trainer._events(task, at, 100)] * rounds, view, DELTA)


def test_all_tensors_of_a_client_are_clipped_as_one(play: Play) -> None:
    trainer = DPFedPT(
        peft_method="lora",
        epsilon=8.0,
        noise_by="server",
        clip_norm=0.05,
        learning_rate=0.1,
    )
    sent, _, _ = one_round(trainer, play)
    lengths = [float(one.norm()) for one in sent]
    assert lengths == pytest.approx([0.05] * 3, rel=1e-5)


def test_every_client_counts_the_same(play: Play, shards: Shards) -> None:
    assert len({len(shard) for shard in shards.values()}) > 1
    sent, before, after = one_round(DPFedPT(), play)
    torch.testing.assert_close(after, before + torch.stack(sent).mean(dim=0))


@pytest.mark.parametrize(
    ("noise_by", "clients", "whole"),
    [("clients-together", 1 / 3, 1.0), ("each-client", 1.0, 3.0), ("server", 0.0, 1.0)],
)
def test_noise_has_the_claimed_variance_wherever_it_is_added(
    noise_by: str, clients: float, whole: float, play: Play, task: Task
) -> None:
    """Clients that learn next to nothing send noise; chi-square bands of 1e-6."""
    trainer = made(epsilon=8.0, noise_by=noise_by, virtual_tokens=80, **STILL)
    sent, before, after = one_round(trainer, play)
    std = trainer.noise_multiplier(task) * trainer.clip_norm
    on_sum = len(sent) * (after - before)
    for shown, variance in [*((one, clients) for one in sent), (on_sum, whole)]:
        square = float((shown / std).square().sum())
        low, high = (float(chi2.ppf(p, len(shown))) for p in (1e-6, 1 - 1e-6))
        assert variance * low <= square + 1e-6 <= variance * high + 1e-5
    assert len(on_sum) > 900


@pytest.mark.parametrize(
    ("adjacency", "moves"), [("replace-one", 2.0), ("add/remove-one", 1.0)]
)
def test_the_certificate_is_dp_accountings(
    adjacency: str, moves: float, task: Task
) -> None:
    trainer = made(epsilon=6.0, adjacency=adjacency)
    task = replace(task, rounds=20)
    proved = certified(trainer, task, "server-aggregate", 20)
    accountant = PLDAccountant(
        neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    noise = trainer.noise_multiplier(task) / moves
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(noise), 20))
    assert proved.epsilon == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-3)
    assert 5.94 <= float(proved.epsilon or 0) <= 6.0
    assert (proved.unit, proved.adjacency) == ("client", adjacency)


def test_who_adds_the_noise_decides_whom_it_protects_against(task: Task) -> None:
    def epsilons(**settings: Any) -> list[float | None]:
        trainer = DPFedPT(epsilon=8.0, **settings)
        views: Sequence[CertifiedView] = ("server", "server-aggregate", "released")
        return [certified(trainer, task, view, 3).epsilon for view in views]

    server, aggregate, released = epsilons()
    assert float(server or 0) > 8  # a third of the variance in each upload
    assert aggregate == released
    assert 7.9 < float(aggregate or 0) <= 8
    server, aggregate, _ = epsilons(noise_by="each-client")
    assert 7.9 < float(server or 0) <= 8
    assert float(aggregate or 9) < 5
    assert epsilons(noise_by="server")[:2] == [None, None]


def test_who_is_drawn_is_a_secret_from_those_with_the_released_model_only(
    task: Task,
) -> None:
    trainer = DPFedPT(epsilon=8.0)
    task = replace(task, candidates={f"client-{i}": 4 for i in range(30)})
    all_views = [
        float(certified(trainer, task, view, task.rounds).epsilon or 0)
        for view in ("server-aggregate", "released")
    ]
    assert 7.9 < all_views[0] <= 8
    assert all_views[1] < 4
    certificate = certified(trainer, task, "released", task.rounds)
    assert "of 0.1 of all clients, drawn without replacement" in certificate.mechanism
    assert certificate.accountant == "dpa-rdp"


def test_as_published_nothing_is_clipped_and_nothing_certified(
    play: Play, task: Task
) -> None:
    trainer = DPFedPT(
        mode="published-paper", epsilon=8.0, clip_norm=1e-4, learning_rate=0.1
    )
    sent, _, _ = one_round(trainer, play)
    assert min(float(one.norm()) for one in sent) > 0.1
    proved = certified(trainer, task, "server", 3)
    assert proved.epsilon is None
    assert "was not clipped" in proved.why
    std = math.sqrt(2 * math.log(1.25 / DELTA)) / 8
    assert trainer.noise_multiplier(task) == pytest.approx(std)


def test_a_round_moves_the_numbers_that_the_server_drew_and_no_others(
    play: Play,
) -> None:
    played = play(DPFedPT(epsilon=8.0, coordinates=7), rounds=0)
    drawn = []
    for index in range(2):
        (before,) = played.server.values()
        sent = played.step().messages
        broadcast = [m.tensors[COORDINATES] for m in sent if m.kind == "broadcast"]
        assert all(torch.equal(places, broadcast[0]) for places in broadcast)
        assert all(up[MOVED].shape == (7,) for up in played.uploads(index).values())
        (after,) = played.server.values()
        moved = (after != before).flatten().nonzero().flatten()
        drawn.append(moved.tolist())
        assert drawn[-1] == broadcast[0].tolist()
    assert drawn[0] != drawn[1]


def neighbours(trainer: DPFedPT, task: Task, runs: int) -> tuple[Tensor, Tensor]:
    """Return one client's upload in many runs, its records replaced in half of them."""
    generator = torch.Generator().manual_seed(4)
    replaced = torch.rand(runs, generator=generator) < 0.5
    some = task.public.pick(torch.arange(12))
    records = Records(some.features, some.labels)
    other = Records(records.features, (records.labels + 1) % 4)
    names = [f"run-{i}" for i in range(runs)]
    cohort = Cohort.of(names, [other if r else records for r in replaced.tolist()])
    start = trainer.start(task, Seeds(0))
    received = {n: t.expand(runs, *t.shape).contiguous() for n, t in start.items()}
    at = Round(0, Seeds(3), ("client-0", "client-1", "client-2"))
    sent = trainer.local_update(task, cohort, received, {}, at).sent[MOVED]
    return sent, replaced


@pytest.mark.parametrize(
    ("mode", "kinds"), [("sound", {"NOT REFUTED"}), ("published-paper", {"REFUTED"})]
)
def test_what_uploads_show_of_a_replaced_client(
    mode: str, kinds: set[str], task: Task
) -> None:
    """The worst adversary knows both uploads without noise, and compares."""
    trainer = made(
        mode=mode,
        epsilon=2.0,
        clip_norm=0.05,
        noise_by="each-client",
        learning_rate=0.1,
    )
    task = replace(task, rounds=1)
    sent, replaced = neighbours(trainer, task, 600)
    clean, other = neighbours(replace(trainer, epsilon=None), task, 20)
    along = clean[other].mean(dim=0) - clean[~other].mean(dim=0)
    scores = (sent @ along).double().numpy()
    bound = SplitThreshold(delta=DELTA)(IndependentRuns(scores, replaced.numpy()))
    bound = replace(bound, adjacency="replace-one", unit="client")
    claim = Guarantee(2.0, DELTA, "replace-one", "client")
    proved = certified(trainer, task, "server", 1)
    stated = Guarantee.stated(proved.epsilon, DELTA, "replace-one", "client")
    verdict = judge_claim(claim, stated, bound)
    assert verdict.kind in kinds
    assert not verdict.alarm
