from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from privaudit.auditing import shadow_models as shadow_signals_module
from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.shadow_models import (
    NOBODY,
    FederatedShadowSplit,
    ShadowSplit,
    SignalsWithMembership,
    _federated,
    _replay,
    _rounds_to_replay,
    shadow_signals,
)
from privaudit.auditing.signal_cache import SignalStore
from privaudit.auditing.signals import SignalTable, measure_signals
from privaudit.core.tensors import Tensors
from privaudit.federation.trainer import Reconstruction, Records, Task, Trainer
from privaudit.trainers.coop import CoOp
from privaudit.trainers.dp_fpl import DPFPL
from privaudit.trainers.promptfl import PromptFL
from tests.conftest import toy_records
from tests.toy_federation import Play, Shards

FIRST_TEN = torch.arange(10)


Attacked = Callable[..., tuple[Adversary, list[Target]]]


@pytest.fixture
def attacked(task: Task, play: Play) -> Attacked:
    """Train, and return who looks on and what it asks of each client."""
    asked = {client: toy_records(n, 40) for client, n in task.candidates.items()}

    def look(
        trainer: Trainer | None = None, threat: str = "server", **changes: Any
    ) -> tuple[Adversary, list[Target]]:
        played = play(trainer or PromptFL(), task=replace(task, **changes))
        return played.watched(threat, asked, seed=9)

    return look


def test_what_shadows_train_on_is_public_and_follows_the_candidates_classes(
    attacked: Attacked, task: Task
) -> None:
    only_two = toy_records(40).pick(toy_records(40).labels < 2)
    target = Target("client-0", Reconstruction({}), only_two)
    adversary, _ = attacked()
    own = ShadowSplit.draw(adversary, target, shadows=400)
    assert set(own.records.labels.tolist()) == {0, 1}
    public = {tuple(row) for row in task.public.features.tolist()}
    assert {tuple(row) for row in own.records.features.tolist()} <= public
    assert own.is_in.sum(dim=1).float().mean() == pytest.approx(10, abs=0.5)


def test_what_keeps_nothing_is_replayed_for_its_last_round_only(
    attacked: Attacked, play: Play, shards: Shards
) -> None:
    """Beside those who were asked, also where some of their uploads were lost."""
    adversary, _ = attacked()
    assert [at.index for at, _ in _rounds_to_replay(adversary, "client-1", False)] == [
        2
    ]
    rounds = [at.index for at, _ in _rounds_to_replay(adversary, "client-1", True)]
    assert rounds == [0, 1, 2]
    lossy, _ = play(PromptFL(), dropout=0.3, seed=3).watched()
    replayed = _rounds_to_replay(lossy, "client-1", True)
    assert {at.participants for at, _ in replayed} == {tuple(shards)}


@pytest.mark.parametrize("state", ["kept", "new"])
def test_a_shadow_with_the_client_s_own_records_sends_what_it_sent(
    attacked: Attacked, state: Literal["kept", "new"], task: Task, shards: Shards
) -> None:
    """Also where its optimiser goes on across rounds, of which no message tells."""
    trainer = PromptFL(optimizer="adamw", optimizer_state=state, epochs=2)
    adversary, (target, *_) = attacked(trainer)
    own = shards[target.client]
    last = _replay(adversary, target, [own], range(1), 1)[task.rounds - 1][0]
    sent = adversary.view.updates_of(target.client)[-1].tensors
    torch.testing.assert_close(last["context"], sent["context"], rtol=1e-4, atol=1e-4)


def test_what_is_out_is_out_of_the_whole_shadow_federation(
    attacked: Attacked, task: Task
) -> None:
    adversary, targets = attacked(threat="released")
    split = FederatedShadowSplit.draw(adversary, targets[:2], shadows=50)
    own = split.split_of("client-1")
    assert not (own.public_in & own.public_out).any()
    for shadow in range(50):
        held = split.shards(shadow)
        trained = torch.cat([shard.features for shard in held.values()])
        out = task.public.features[own.public_out[shadow]]
        assert len(trained) + int((split.owner[shadow] == NOBODY).sum()) == 80
        assert not (out[:, None] == trained[None]).all(dim=-1).any()
    sizes = (split.owner == 1).sum(dim=1).float().mean()
    assert sizes == pytest.approx(task.candidates["client-1"] / 2, abs=1)


def separation(learned: SignalsWithMembership) -> torch.Tensor:
    """Mean log-probability of the label for records in, less for records out."""
    own = learned.signals.log_likelihood
    return own[learned.is_in].mean() - own[learned.is_out].mean()


@pytest.mark.parametrize(
    "trainer", [PromptFL(epochs=30), DPFPL(learning_rate_local=0.1)]
)
def test_replay_and_whole_federations_separate_members_about_alike(
    attacked: Attacked, trainer: Trainer, task: Task
) -> None:
    """Replayed broadcasts carry the target's influence: here it changes little."""
    adversary, targets = attacked(trainer, rounds=6)
    (replayed,) = shadow_signals(adversary, targets[:1], 40)
    split = FederatedShadowSplit.draw(adversary, targets[:1], 40)
    own, models = split.split_of("client-0"), []
    used = torch.isin(task.public.labels, own.records.labels.unique())
    for chunk in _federated(adversary, targets[:1], split):
        models += chunk[0]
    signals = measure_signals(trainer, adversary.task, models, own.records)
    one = float(separation(replayed.training_set))
    other = float(
        separation(
            SignalsWithMembership(signals, own.is_in, own.public_out[:, used], signals)
        )
    )
    assert one > 0
    assert other > 0
    assert one == pytest.approx(other, rel=0.6, abs=0.05)


def test_nothing_seen_needs_no_shadow_training(attacked: Attacked) -> None:
    adversary, targets = attacked(CoOp())
    (table, *_) = shadow_signals(adversary, targets, 5)
    log_likelihoods = table.public.signals.log_likelihood
    one, other = log_likelihoods[0], log_likelihoods[4]
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)  # stacked: rounded


def test_tables_are_trained_once_for_all_attacks(attacked: Attacked) -> None:
    adversary, targets = attacked()
    first = shadow_signals(adversary, targets, 5)
    again = shadow_signals(adversary, targets, 5)
    for one, other in zip(first, again, strict=True):
        assert one.public.signals is other.public.signals
        assert one.candidates.signals is other.candidates.signals


def test_another_target_through_one_adversary_is_asked_anew(attacked: Attacked) -> None:
    """Shadows are the same; what the target says, and of which records, is not."""
    adversary, targets = attacked()
    first = shadow_signals(adversary, targets, 5, "candidates")
    start = {"context": torch.zeros_like(targets[0].reconstructed.model["context"])}
    untuned = [replace(t, reconstructed=Reconstruction(start)) for t in targets]
    other = shadow_signals(adversary, untuned, 5, "candidates")
    fewer = [replace(t, candidates=t.candidates.pick(FIRST_TEN)) for t in targets]
    few = shadow_signals(adversary, fewer, 5, "candidates")
    for one, two, three in zip(first, other, few, strict=True):
        assert one.candidates.signals is two.candidates.signals
        confidence = one.candidates.target.confidence
        assert not torch.equal(confidence, two.candidates.target.confidence)
        assert three.candidates.signals.confidence.shape == (5, 10)


def test_a_shadow_s_candidates_are_its_members_and_as_many_others(
    attacked: Attacked, task: Task
) -> None:
    adversary, targets = attacked(threat="released")
    split = FederatedShadowSplit.draw(adversary, targets[:2], shadows=10)
    for shadow in range(10):
        members = split.shards(shadow)["client-1"]
        candidates = split.candidates(shadow, "client-1")
        have = torch.bincount(members.labels, minlength=4)
        free = task.public.pick(split.owner[shadow] == NOBODY).labels
        others = torch.minimum(have, torch.bincount(free, minlength=4))
        found = torch.bincount(candidates.labels, minlength=4)
        assert torch.equal(found, have + others)
        held = {tuple(row) for row in candidates.features.tolist()}
        assert {tuple(row) for row in members.features.tolist()} <= held


def test_each_candidate_is_in_one_shadow_of_a_pair_and_out_of_the_other(
    attacked: Attacked,
) -> None:
    adversary, targets = attacked()
    own = ShadowSplit.draw(adversary, targets[0], 20, "candidates")
    assert torch.equal(own.is_in[0::2], ~own.is_in[1::2])
    assert not own.public_in.any()
    assert own.public_out.all()
    assert own.is_in[0::2].float().mean() == pytest.approx(0.5, abs=0.1)


def test_a_record_s_coins_follow_it(attacked: Attacked) -> None:
    adversary, targets = attacked()
    order = torch.randperm(len(targets[0].candidates))
    mixed = replace(targets[0], candidates=targets[0].candidates.pick(order))
    first = ShadowSplit.draw(adversary, targets[0], 8, "candidates").is_in
    again = ShadowSplit.draw(adversary, mixed, 8, "candidates").is_in
    assert torch.equal(first[:, order], again)


def test_copies_of_a_record_share_its_coins(attacked: Attacked) -> None:
    adversary, targets = attacked()
    twice = torch.cat([torch.arange(6), torch.arange(6)])
    target = replace(targets[0], candidates=targets[0].candidates.pick(twice))
    is_in = ShadowSplit.draw(adversary, target, 40, "candidates").is_in
    assert torch.equal(is_in[:, :6], is_in[:, 6:])


def test_crafted_canaries_stand_beside_bystanders_that_have_none(
    attacked: Attacked, task: Task
) -> None:
    adversary, targets = attacked(threat="released")
    shape = task.prompts.context_tokens, task.prompts.width
    crafted = torch.ones(len(targets[0].candidates), *shape)
    canaries = replace(targets[0].candidates, crafted=crafted)
    planted = replace(targets[0], candidates=canaries)
    (table,) = shadow_signals(adversary, [planted], 6, "candidates")
    assert torch.isfinite(table.public.signals.confidence).all()


@pytest.mark.parametrize("threat", ["server", "released"])
def test_shadows_on_candidates_remember_them(attacked: Attacked, threat: str) -> None:
    trainer = PromptFL(epochs=60, learning_rate=0.05)
    adversary, targets = attacked(trainer, threat, rounds=1)
    for table in shadow_signals(adversary, targets[:2], 12, "candidates"):
        assert table.training_set is table.candidates
        assert separation(table.candidates) > 0
        assert not (table.public.is_in).any()


def test_kept_tables_are_the_trained_ones(attacked: Attacked, tmp_path: Path) -> None:
    adversary, targets = attacked()
    store = SignalStore(tmp_path, {"run": "one"})
    for source in ("public", "candidates"):
        plain = shadow_signals(replace(adversary), targets, 6, source)
        trained = shadow_signals(replace(adversary, store=store), targets, 6, source)
        kept = shadow_signals(replace(adversary, store=store), targets, 6, source)
        for tables in zip(plain, trained, kept, strict=True):
            for name in ("candidates", "public"):
                one, *others = (getattr(table, name) for table in tables)
                for other in others:
                    assert torch.equal(one.is_in, other.is_in)
                    assert torch.equal(one.is_out, other.is_out)
                    logs = other.signals.log_probabilities
                    assert torch.equal(one.signals.log_probabilities, logs)


@pytest.mark.parametrize("threat", ["server", "released"])
def test_a_killed_attack_keeps_the_targets_it_had_finished(
    attacked: Attacked, threat: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replays go target by target; in whole federations all are finished at once."""
    asked: list[int] = []
    killed_at = 3 if threat == "server" else 99

    def ask(adversary: Adversary, models: list[Tensors], some: Records) -> SignalTable:
        asked.append(len(models))
        if len(asked) == killed_at:  # the second target's candidates
            raise KeyboardInterrupt
        return measure_signals(adversary.trainer, adversary.task, models, some)

    adversary, targets = attacked(threat=threat)
    kept = replace(adversary, store=SignalStore(tmp_path, {}))
    monkeypatch.setattr(shadow_signals_module, "ask_signals", ask)
    if threat == "server":
        with pytest.raises(KeyboardInterrupt):
            shadow_signals(kept, targets[:2], 6)
        assert len(list(tmp_path.iterdir())) == 1
    resumed = shadow_signals(replace(kept), targets[:2], 6)
    assert len(asked) == (5 if threat == "server" else 4)
    for one, other in zip(
        shadow_signals(replace(adversary), targets[:2], 6), resumed, strict=True
    ):
        assert torch.equal(one.public.signals.loss, other.public.signals.loss)
        assert torch.equal(one.candidates.signals.loss, other.candidates.signals.loss)


def test_chunks_of_federations_do_not_change_what_they_say(
    attacked: Attacked, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    adversary, targets = attacked(threat="released")
    (whole,) = shadow_signals(replace(adversary), targets[:1], 7)
    monkeypatch.setattr(
        "privaudit.auditing.shadow_models.REPLAY_CHUNK", 2 * len(task.clients)
    )
    (parts,) = shadow_signals(replace(adversary), targets[:1], 7)
    torch.testing.assert_close(
        whole.public.signals.log_likelihood,
        parts.public.signals.log_likelihood,
        rtol=1e-4,  # stacks of other sizes round otherwise, in float32
        atol=1e-5,
    )
