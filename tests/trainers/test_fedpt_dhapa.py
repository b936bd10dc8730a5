from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from privaudit import train as train_run
from privaudit.attacks.update_alignment import UpdateAlignment
from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import stack
from privaudit.federation.client_statistics import (
    EMBEDDING,
    IMPROVEMENT,
    PRESENT,
    SIZE,
    UNCERTAINTY,
    has_records,
    parameters_of,
)
from privaudit.federation.trainer import Cohort, Round, Task
from privaudit.privacy.accountant import gaussian_epsilon
from privaudit.privacy.certificate import certify
from privaudit.trainers.fedpt import FedPT
from privaudit.trainers.fedpt_dhapa import PICKED, FedPTDhapa
from privaudit.tuning.transformers.dhapa import client_weights
from tests.conftest import toy_records, train_and_stop
from tests.toy_federation import CLIENTS, Play, Played, Shards
from tests.toy_language import toy_shards, toy_writing_task

PROMPT = "embedding.weight"
BARE: dict[str, Any] = {"alpha": 0.0, "beta": 0.0, "gamma": 0.0}


def broadcast(played: Played, index: int) -> Mapping[str, Tensor]:
    sent = (m for m in played.messages if m.kind == "broadcast" and m.round == index)
    return next(sent).tensors


def test_the_next_broadcast_is_the_mean_weighted_by_what_was_sent(
    play: Play, shards: Shards
) -> None:
    trainer = FedPTDhapa(alpha=2.0, beta=0.5, gamma=1.5)
    played = play(trainer)
    sent = played.uploads()
    statistics = {
        name: torch.stack([part[name].double() for part in sent.values()])
        for name in (UNCERTAINTY, EMBEDDING, IMPROVEMENT)
    }
    gaps = (statistics[EMBEDDING] - statistics[EMBEDDING].mean(dim=0)).norm(dim=1)
    weights = client_weights(
        statistics[UNCERTAINTY],
        gaps,
        statistics[IMPROVEMENT],
        alpha=2.0,
        beta=0.5,
        gamma=1.5,
    )
    prompts = [part[PROMPT] for part in sent.values()]
    mean = sum(w * p for w, p in zip(weights.tolist(), prompts, strict=True))
    assert isinstance(mean, Tensor)
    assert weights.max() - weights.min() > 0.05  # else nothing was tested
    torch.testing.assert_close(broadcast(played, 1)[PROMPT], mean)


def test_statistics_are_of_all_records_and_improvement_of_those_held_out(
    play: Play, shards: Shards
) -> None:
    trainer = FedPTDhapa()
    played = play(trainer)
    for client, sent in played.uploads().items():
        torch.testing.assert_close(sent[EMBEDDING], shards[client].features.mean(dim=0))
        model = {n: t.unsqueeze(0) for n, t in parameters_of(sent).items()}
        (answers,) = trainer.query(played.task, model, shards[client])
        logs = answers["log_probabilities"][0]
        entropy = -(logs.exp() * logs).sum(dim=1).mean()
        torch.testing.assert_close(sent[UNCERTAINTY], entropy)
    lost = [float(sent[IMPROVEMENT]) for sent in played.uploads().values()]
    assert len(set(lost)) == 3
    none = FedPTDhapa(validation_share=0.0)
    for sent in play(none).uploads().values():
        assert sent[IMPROVEMENT] == 0


def test_by_sizes_and_without_validation_it_is_plain_averaging(play: Play) -> None:
    alike = FedPTDhapa(weighting="sizes", validation_share=0.0)
    plain, found = play(FedPT()), play(alike)
    for index in range(len(plain.rounds) + 1):
        torch.testing.assert_close(
            broadcast(found, index), broadcast(plain, index), rtol=1e-4, atol=1e-5
        )


def test_held_out_records_are_not_trained_on(play: Play, shards: Shards) -> None:
    """A label that is held out moves the improvement, and nothing else."""
    mine = shards["client-0"]
    trainer, moved = FedPTDhapa(), []
    before = play(trainer, rounds=1).uploads()["client-0"]
    for place in range(len(mine)):
        labels = mine.labels.clone()
        labels[place] = (labels[place] + 1) % 4
        other = {**shards, "client-0": replace(mine, labels=labels)}
        after = play(trainer, rounds=1, shards=other).uploads()["client-0"]
        assert not torch.equal(after[IMPROVEMENT], before[IMPROVEMENT])
        moved.append(not torch.equal(after[PROMPT], before[PROMPT]))
    assert moved.count(False) == round(0.2 * len(mine))


@pytest.mark.parametrize(
    ("settings", "statistics"),
    [
        ({}, {UNCERTAINTY, EMBEDDING, IMPROVEMENT}),
        ({"alpha": 0.0}, {EMBEDDING, IMPROVEMENT}),
        ({"beta": 0.0}, {UNCERTAINTY, IMPROVEMENT}),
        ({"gamma": 0.0}, {UNCERTAINTY, EMBEDDING}),
        (BARE, set()),
        ({**BARE, "clusters": 2}, {EMBEDDING}),
        ({"weighting": "sizes"}, {SIZE}),
    ],
)
def test_only_what_is_needed_is_sent(
    settings: dict[str, Any], statistics: set[str], play: Play
) -> None:
    statistics = statistics if SIZE in statistics else statistics | {PRESENT}
    for sent in play(FedPTDhapa(**settings)).uploads().values():
        assert set(sent) == {PROMPT, *statistics}


@pytest.mark.parametrize("settings", [{}, {"weighting": "sizes"}, BARE])
def test_who_has_no_records_counts_for_nothing(
    settings: dict[str, Any], play: Play, shards: Shards
) -> None:
    trainer = FedPTDhapa(**settings)
    poor = {**shards, "client-1": toy_records(0)}
    played = play(trainer, shards=poor)
    rich = [part for part in played.uploads().values() if has_records(part)]
    assert len(rich) == 2
    weights = trainer.weights(stack(rich))
    mean = sum(w * p[PROMPT] for w, p in zip(weights.tolist(), rich, strict=True))
    assert isinstance(mean, Tensor)
    torch.testing.assert_close(broadcast(played, 1)[PROMPT], mean)
    assert played.rebuild("server", "client-1").missing
    assert not played.rebuild("server", "client-0").missing


@pytest.mark.parametrize("clusters", [1, 2])
def test_uploads_can_be_watched_one_by_one(
    clusters: int, play: Play, shards: Shards
) -> None:
    some = {**shards, "client-1": toy_records(0)}
    played = play(FedPTDhapa(clusters=clusters), shards=some)
    adversary, asked = played.watched(candidates=dict.fromkeys(shards, toy_records(5)))
    for found in UpdateAlignment(reference=10)(adversary, asked):
        assert torch.isfinite(torch.from_numpy(found.scores)).all()


def test_a_round_without_any_record_changes_nothing(play: Play) -> None:
    empty = dict.fromkeys(CLIENTS, toy_records(0))
    played = play(FedPTDhapa(clusters=2), rounds=0, shards=empty)
    start = played.server
    played.step()
    assert played.server is start


@pytest.fixture
def far_apart() -> Shards:
    """Two kinds of clients: of two classes each, far from one another."""
    whole = toy_records(200, 3)
    low, high = (whole.pick(whole.labels // 2 == kind) for kind in (0, 1))
    return {
        "client-0": low.pick(torch.arange(20)),
        "client-1": high.pick(torch.arange(20)),
        "client-2": low.pick(torch.arange(20, 40)),
    }


def test_each_cluster_has_a_prompt_and_each_client_picks_one(
    play: Play, far_apart: Shards
) -> None:
    played = play(FedPTDhapa(clusters=2), rounds=4, shards=far_apart)
    first, second, third = (model[PROMPT] for model in played.models.values())
    assert torch.equal(first, third)
    assert not torch.equal(first, second)
    last = broadcast(played, 4)[PROMPT]
    assert last.shape == (2, 8, 12)  # both are sent to everyone
    sent = played.uploads(3)["client-1"][PROMPT]
    alone = [torch.equal(prompt, sent) for prompt in last]
    assert alone.count(True) == 1
    assert torch.equal(second, last[alone.index(True)])


def test_clients_begin_where_their_validation_part_does_best(
    play: Play, far_apart: Shards
) -> None:
    """The second prompt is a trained one, the first is noise; in equal ones: first."""
    trainer = FedPTDhapa(clusters=2, **BARE)
    plain = play(replace(trainer, clusters=1), rounds=2, shards=far_apart)
    good = plain.server[PROMPT][0]
    played = play(trainer, rounds=1, shards=far_apart)
    assert all(kept[PICKED] == 0 for kept in played.kept.values())
    noise = 30 * torch.randn(good.shape, generator=torch.Generator().manual_seed(1))
    both = torch.stack([noise, good])
    played.federation.server = {**played.server, PROMPT: both}
    played.step()
    assert all(kept[PICKED] == 1 for kept in played.kept.values())


def test_more_clusters_than_clients_are_refused(task: Task) -> None:
    with pytest.raises(ConfigError, match="4 clusters of 3 clients"):
        FedPTDhapa(clusters=4).start(task, Seeds(0))


def test_more_clusters_than_participants_share_one_mean_until_they_are_known(
    play: Play, far_apart: Shards
) -> None:
    trainer = FedPTDhapa(clusters=3, **BARE)
    played = play(trainer, rounds=1, shards=far_apart, participation=0.67)
    first, second, third = played.server[PROMPT]
    assert torch.equal(first, second)
    assert torch.equal(second, third)
    played.step()
    apart = played.server[PROMPT]
    assert len({tuple(prompt.flatten().tolist()) for prompt in apart}) == 3
    played.step(participation=0.34)
    pairs = zip(played.server[PROMPT], apart, strict=True)
    changed = [not torch.equal(*pair) for pair in pairs]
    assert changed.count(True) == 1


def test_noise_has_the_size_that_its_event_claims(task: Task) -> None:
    trainer = FedPTDhapa(gamma=0.0, statistics_noise=2.0)
    plain = replace(trainer, statistics_noise=0.0)
    records = toy_records(30, 4)
    cohort = Cohort.of(["client-0"], [records])
    alone = replace(task, candidates={"client-0": 40})
    noised, exact = [], None
    for seed in range(40):
        at = Round(0, Seeds(seed), ("client-0",))
        down = stack([trainer.broadcast(trainer.start(alone, at.seeds), "", at)])
        noised.append(trainer.local_update(alone, cohort, down, {}, at).sent[EMBEDDING])
        exact = plain.local_update(alone, cohort, down, {}, at).sent[EMBEDDING]
    assert exact is not None
    expected = alone.expected_members  # 20, whatever the client has
    noise = torch.stack(noised) * expected - exact * len(records)
    want = trainer.noise_std(alone)[EMBEDDING]
    assert want == pytest.approx(2.0 * 2**0.5)
    assert float(noise.std()) == pytest.approx(want, rel=0.1)
    assert abs(float(noise.mean())) < 0.3


def test_what_noise_proves_is_about_the_statistics_and_not_about_the_run(
    play: Play, task: Task
) -> None:
    trainer = FedPTDhapa(gamma=0.0, statistics_noise=4.0)
    found = trainer.certify_statistics(task)
    assert found.epsilon == pytest.approx(gaussian_epsilon(task.rounds**0.5 / 4, 1e-5))
    record = play(trainer, rounds=0).step(traced=True)
    whole = certify([record.events], "server", 1e-5)
    assert whole.epsilon is None
    assert "upload release of round 0 has no noise" in whole.why
    assert all(trace.noise for trace in record.trace.values())


def test_models_that_write_are_weighed_too(play: Play) -> None:
    task = toy_writing_task()
    trainer = FedPTDhapa(peft_method="lora", clusters=2)
    played = play(trainer, rounds=2, task=task, shards=toy_shards(task))
    for sent in played.uploads(1).values():
        assert 0 < sent[UNCERTAINTY] < torch.log(torch.tensor(11.0))
        assert torch.isfinite(sent[IMPROVEMENT])
    own = trainer.own_model(trainer.start(task, Seeds(0)))
    assert own.keys() == parameters_of(sent).keys()


@pytest.mark.slow
def test_a_run_that_was_cut_ends_with_the_same_bytes(tmp_path: Path) -> None:
    quick: dict[str, Any] = {"seed": 0, "rounds": 3, "clients": 4, "folder": tmp_path}
    quick |= {"participation": 0.75, "settings": {"epochs": 1, "clusters": 2}}
    whole = train_run("fedpt-dhapa", name="whole", **quick)
    train_and_stop(2, "fedpt-dhapa", **quick)
    again = train_run("fedpt-dhapa", name="cut", resume=True, **quick)
    assert again.transcript.head == whole.transcript.head
