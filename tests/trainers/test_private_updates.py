"""FedPT whose clients are protected as wholes: clipped moves with noise, all or the largest."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, NeighboringRelation, SelfComposedDpEvent
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, norm
from torch import Tensor

from privaudit.core.seeds import Seeds
from privaudit.federation.trainer import Cohort, Records, Round, Task
from privaudit.federation.uploads import COORDINATES, update_deltas
from privaudit.privacy.accountant import gaussian_delta
from privaudit.privacy.certificate import Certificate, CertifiedView, certify
from privaudit.runs.config import build_trainer
from privaudit.statistics.claim import Guarantee, judge_claim
from privaudit.statistics.epsilon.bound import IndependentRuns
from privaudit.statistics.epsilon.many_runs import SplitThreshold
from privaudit.statistics.estimate import clopper_pearson
from privaudit.trainers.dp_fedpt import DPFedPT
from privaudit.trainers.fedpt_top_k import FedPTTopK
from privaudit.tuning.transformers.private_updates import MOVED
from tests.toy_federation import Play, Shards

STILL: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 1e-9, "epochs": 1}
DELTA = 1e-5


def made(**fields: Any) -> Any:
    return build_trainer("dp-fedpt", fields)


def one_round(trainer: DPFedPT, play: Play) -> tuple[list[Tensor], Tensor, Tensor]:
    """Return what clients sent, and the server's numbers before and after."""
    played = play(trainer, rounds=0)
    before = torch.cat([t.flatten() for t in played.server.values()])
    played.step(traced=True)
    after = torch.cat([t.flatten() for t in played.server.values()])
    return [sent[MOVED] for sent in played.uploads().values()], before, after


def certified(
    trainer: Any, task: Task, view: CertifiedView = "server", *numbers: int
) -> Certificate:
    """Return what all rounds prove, of so many numbers that are noised or sent."""
    at = Round(0, Seeds(0), task.clients[:3])
    events = trainer._events(task, at, *(numbers or (100,)))
    return certify([events] * task.rounds, view, DELTA)


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
    proved = certified(trainer, task, "server-aggregate")
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
        return [certified(trainer, task, view).epsilon for view in views]

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
        float(certified(trainer, task, view).epsilon or 0)
        for view in ("server-aggregate", "released")
    ]
    assert 7.9 < all_views[0] <= 8
    assert all_views[1] < 4
    certificate = certified(trainer, task, "released")
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
    proved = certified(trainer, task)
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
    proved = certified(trainer, task)
    stated = Guarantee.stated(proved.epsilon, DELTA, "replace-one", "client")
    verdict = judge_claim(claim, stated, bound)
    assert verdict.kind in kinds
    assert not verdict.alarm


def top_k(**fields: Any) -> Any:
    return build_trainer("fedpt-top-k", fields)


def chosen(trainer: FedPTTopK, task: Task, moved: Tensor) -> tuple[Tensor, Tensor]:
    """Return what clients with these clipped moves send, and where it belongs."""
    names = [f"run-{i}" for i in range(len(moved))]
    nobody = Records(torch.zeros(0, 12), torch.zeros(0, dtype=torch.long))
    cohort = Cohort.of(names, [nobody] * len(moved))
    return trainer.chosen(task, cohort, moved, Round(0, Seeds(0), task.clients))


@pytest.mark.parametrize("choice", ["noised", "private", "largest"])
def test_without_noise_the_largest_numbers_are_sent(choice: str, task: Task) -> None:
    moved = torch.tensor([[0.1, -3.0, 2.0, 0.5], [4.0, 0.0, 0.0, -0.1]])
    values, places = chosen(top_k(choice=choice, top=2), task, moved)
    assert places.tolist() == [[1, 2], [0, 3]]
    assert torch.equal(values, torch.tensor([[-3.0, 2.0], [4.0, -0.1]]))


def test_the_server_adds_up_what_was_sent_where_it_belongs(play: Play) -> None:
    played = play(top_k(top=5), rounds=0)
    ((name, before),) = played.server.items()
    played.step()
    row = torch.zeros(before.numel())
    for sent in played.uploads().values():
        for place, value in zip(sent[COORDINATES], sent[MOVED], strict=True):
            row[place] += value / 3
    moved = (played.server[name] - before).flatten()
    torch.testing.assert_close(moved, row, atol=1e-6, rtol=1e-4)
    assert 5 <= int((moved != 0).sum()) <= 15


def test_what_is_sent_has_the_claimed_noise(task: Task) -> None:
    """Where all numbers are sent nothing is selected, and nothing biased."""
    trainer = top_k(epsilon=4.0, choice="private", top=1000)
    values, _ = chosen(trainer, task, torch.zeros(4, 1000))
    std = trainer._noise_multiplier(task) * trainer.clip_norm
    assert float(values.std()) == pytest.approx(std, rel=0.05)
    assert std == pytest.approx(math.sqrt(2) * trainer.noise_multiplier(task) * 0.5)


@pytest.mark.parametrize("adjacency", ["replace-one", "add/remove-one"])
@pytest.mark.parametrize("choice", ["noised", "private"])
def test_choice_and_values_together_cost_what_was_asked(
    choice: str, adjacency: str, task: Task
) -> None:
    trainer = top_k(epsilon=8.0, choice=choice, adjacency=adjacency, choice_share=0.3)
    found = certified(trainer, task, "server", 4, 2)
    assert 7.9 < float(found.epsilon or 0) <= 8
    assert (found.unit, found.adjacency) == ("client", adjacency)
    for view in ("peer", "released"):  # sets differ: nobody else's noise counts
        assert certified(trainer, task, view, 4, 2).epsilon == found.epsilon


@pytest.mark.parametrize("mode", ["sound", "published-paper"])
def test_a_choice_that_follows_from_the_data_is_certified_nothing(
    mode: str, task: Task
) -> None:
    found = certified(
        top_k(epsilon=8.0, mode=mode, choice="largest"), task, "server", 4, 2
    )
    assert found.epsilon is None
    why = "choice release of round 0 has no noise" if mode == "sound" else "not clipped"
    assert why in found.why


Row = st.lists(st.floats(-1, 1, width=32), min_size=3, max_size=3)


@settings(max_examples=200, deadline=None)
@given(Row, Row)
def test_lengths_of_entries_move_by_no_more_than_the_square_root_of_two(
    first: list[float], second: list[float]
) -> None:
    rows = torch.tensor([first, second], dtype=torch.float64)
    rows = rows / rows.norm(dim=1, keepdim=True).clamp(min=1)
    assert float((rows[0].abs() - rows[1].abs()).norm()) <= math.sqrt(2) + 1e-9
    assert (
        float((rows[0].abs() - rows[1].abs()).norm())
        <= float((rows[0] - rows[1]).norm()) + 1e-9
    )


def test_a_choice_of_one_in_two_leaks_as_computed_and_within_its_budget(
    task: Task,
) -> None:
    """The worst neighbours, C in one place or in the other: 4,000 choices of each.

    The first place wins with chance Phi(C / (sqrt(2) s C)); the set may differ between
    the two by no more than the Gaussian curve of the choice's own multiplier allows.
    """
    task = replace(task, rounds=1)
    trainer = top_k(epsilon=3.0, choice="private", top=1)
    noise, runs = trainer._choice_multiplier(task), 4000
    shares = []
    for place in (0, 1):
        moved = torch.zeros(runs, 2)
        moved[:, place] = trainer.clip_norm
        _, places = chosen(trainer, task, moved)
        shares.append(int((places == 0).sum()))
    expected = float(norm.cdf(1 / (math.sqrt(2) * noise)))
    low, high = clopper_pearson(np.array(shares, float), runs, 1 - 1e-6)
    assert low[0] <= expected <= high[0]
    for epsilon in (0.1, 0.5, 1.0, 2.0):
        shown = low[0] - math.exp(epsilon) * high[1]
        assert shown <= gaussian_delta(math.sqrt(2) / noise, epsilon)


def test_a_choice_without_noise_is_recognised_at_a_look(task: Task) -> None:
    trainer = top_k(epsilon=3.0, choice="largest", top=1)
    moved = torch.tensor([[0.5, 0.0], [0.0, 0.5]]).repeat(50, 1)
    _, places = chosen(trainer, task, moved)
    assert places.flatten().tolist() == [0, 1] * 50


def test_who_watches_uploads_sees_numbers_where_they_belong(
    task: Task, shards: Shards
) -> None:
    """A single record's step is sent in full, and meets what was sent of others'."""
    start = top_k().start(task, Seeds(0))
    (name,) = start
    at = Round(0, Seeds(0), task.clients)
    received = {n: t.unsqueeze(0) for n, t in start.items()}
    cohort = Cohort.of(["client-0"], [shards["client-0"]])
    few, whole = (
        update_deltas(trainer.local_update(task, cohort, received, {}, at).sent, start)[
            MOVED
        ]
        for trainer in (
            replace(top_k(top=4), epochs=1, batch_size=0),
            top_k().single_step(),
        )
    )
    assert few.shape == whole.shape == (1, start[name].numel())
    seen = few != 0
    assert int(seen.sum()) == 4
    torch.testing.assert_close(few[seen], whole[seen])
    smallest = float(whole[seen].abs().min())  # but for rounding
    assert float(whole[~seen].abs().max()) <= smallest * (1 + 1e-4)


def test_what_was_not_sent_is_sent_later(play: Play) -> None:
    """Two numbers of equal size in turn: nothing that training moved is lost."""
    played = play(top_k(top=5, error_feedback=True), rounds=1)
    before = {name: dict(kept) for name, kept in played.kept.items()}
    assert all((kept["unsent"] != 0).sum() > 0 for kept in before.values())
    first = played.uploads()
    for name, sent in first.items():
        assert not before[name]["unsent"][sent[COORDINATES]].any()
    plain = play(top_k(top=5), rounds=1)
    assert plain.kept == {} or not any(plain.kept.values())


def test_feedback_adds_to_the_next_move_before_it_is_clipped(task: Task) -> None:
    """A client that moves nowhere sends the rest of what it owed, C at the most."""
    trainer = top_k(top=1, error_feedback=True, clip_norm=1.0, epsilon=1e6)
    object.__setattr__(trainer, "moves", lambda *_: (torch.zeros(1, 4), torch.zeros(1)))
    nobody = Records(torch.zeros(0, 12), torch.zeros(0, dtype=torch.long))
    cohort = Cohort.of(["run-0"], [nobody])
    owed = {"unsent": torch.tensor([[3.0, 4.0, 0.0, 0.0]])}
    at = Round(0, Seeds(0), task.clients)
    result = trainer.local_update(task, cohort, {}, owed, at)
    assert result.sent[COORDINATES].tolist() == [[1]]
    assert float(result.sent[MOVED]) == pytest.approx(0.8, abs=1e-3)
    kept = result.kept["unsent"]
    torch.testing.assert_close(kept, torch.tensor([[0.6, 0, 0, 0]]))


@pytest.mark.parametrize(
    "fields", [{"error_feedback": True}, {"optimizer_state": "kept"}]
)
def test_what_clients_keep_tells_who_was_drawn(
    fields: dict[str, Any], task: Task
) -> None:
    """So the draw of participants makes no certificate smaller."""
    some = Round(0, Seeds(0), tuple(task.clients)[:1])

    def released(trainer: FedPTTopK) -> float:
        events = [trainer._events(task, some, 4, 2)] * task.rounds
        return float(certify(events, "released", trainer.delta).epsilon or 0)

    assert released(top_k(epsilon=8.0)) < released(top_k(epsilon=8.0, **fields)) <= 8
