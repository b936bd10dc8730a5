from collections.abc import Sequence
from dataclasses import dataclass, replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from privaudit.attacks.output_attacks import LossThreshold
from privaudit.auditing import signals
from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.linkage import link, link_targets
from privaudit.auditing.shadow_models import ShadowSignals, shadow_signals
from privaudit.core.seeds import Seeds
from privaudit.federation.threat_models import View, find_threat
from privaudit.federation.trainer import Reconstruction, Records, Task, Trainer
from privaudit.federation.transcript import Message
from privaudit.statistics.estimate import Estimate
from privaudit.trainers.pfedmoap import PFedMoAP
from privaudit.trainers.promptfl import PromptFL
from tests.conftest import ToyPrompts, noisy_candidates, toy_records, with_noise
from tests.toy_federation import auroc_of, play_toy

CANDIDATES = 12


def suspects(count: int) -> tuple[dict[str, torch.Tensor], ...]:
    generator = torch.Generator().manual_seed(0)
    contexts = torch.randn(count, 3, 5, generator=generator)
    return tuple({"context": context} for context in contexts)


def named_by(task: Task, context: torch.Tensor, seed: int) -> Records:
    """Records whose labels are what a prompt says of them."""
    records = toy_records(30, seed)
    text = task.prompts(context.unsqueeze(0))[0]
    return Records(records.features, (records.features @ text.T).argmax(dim=-1))


def test_each_client_is_linked_to_the_model_that_explains_its_candidates(
    task: Task,
) -> None:
    models = suspects(5)
    reconstructed = [
        Reconstruction({"context": torch.zeros(3, 5)}, suspects=models)
    ] * 2
    candidates = [named_by(task, models[i]["context"], i) for i in (3, 1)]
    linked = link(PromptFL(), task, reconstructed, candidates)
    assert linked[0].model is models[3]
    assert linked[1].model is models[1]
    assert linked[0].suspects == models


def test_without_suspects_a_model_stays(task: Task) -> None:
    reconstructed = [Reconstruction({"context": torch.zeros(3, 5)})]
    assert link(PromptFL(), task, reconstructed, [toy_records(8)]) == reconstructed


@dataclass(frozen=True)
class Looked:
    adversary: Adversary
    targets: Sequence[Target]
    messages: Sequence[Message]
    truth: dict[str, np.ndarray]


def look(
    trainer: Trainer, task: Task, rounds: int = 2, clients: int = 3, seen: int = 9
) -> Looked:
    """Train on noise, and let client-0 look on up to some round."""
    generator = torch.Generator().manual_seed(5)
    weight = 3 * torch.randn(60, 48, generator=generator)
    prompts = ToyPrompts(weight, torch.zeros(48), context_tokens=12)  # remembers all
    world = replace(
        task,
        backbone=replace(task.classifier, prompts=prompts),
        public=with_noise(toy_records(200, 99), 99),
        candidates={f"client-{i}": CANDIDATES for i in range(clients)},
        rounds=rounds,
    )
    truth = {
        client: np.random.default_rng(i).permutation(CANDIDATES) < CANDIDATES // 2
        for i, client in enumerate(world.clients)
    }
    candidates = noisy_candidates(world.clients, CANDIDATES, 0)
    shards = {c: candidates[c].pick(torch.from_numpy(truth[c])) for c in truth}
    peer = find_threat("peer:client-0")
    messages = play_toy(trainer, task=world, shards=shards).messages
    sent = peer(messages).messages
    view = View("peer", tuple(m for m in sent if m.round <= seen))
    adversary = Adversary(trainer, world, peer, view, Seeds(5))
    targets = [
        Target(c, adversary.reconstruct(c), candidates[c]) for c in world.clients[1:]
    ]
    return Looked(adversary, link_targets(adversary, targets), messages, truth)


memory = PFedMoAP(learning_rate=0.002, epochs=60, gate_learning_rate=1e-6)


def auroc_of_losses(looked: Looked) -> Estimate:
    scores = LossThreshold()(looked.adversary, looked.targets)
    return auroc_of(scores, [looked.truth[one.client] for one in looked.targets])


def test_a_peer_finds_members_of_an_overtrained_prompt_among_its_experts(
    task: Task,
) -> None:
    assert auroc_of_losses(look(memory, task, clients=8)).low > 0.7


def test_a_peer_that_saw_the_start_only_learns_nothing(task: Task) -> None:
    looked = look(PromptFL(learning_rate=0.2, epochs=60), task, rounds=1, seen=0)
    assert not auroc_of_losses(looked).excludes(0.5)


def test_a_model_that_clients_share_is_asked_about_public_records_once(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, asked = look(PromptFL(), task), Mock(side_effect=signals.ask_signals)
    monkeypatch.setattr(signals, "ask_signals", asked)
    LossThreshold()(looked.adversary, looked.targets)
    records = [call.args[2] for call in asked.call_args_list]
    assert [one is looked.adversary.task.public for one in records] == [1, 0, 0]


def test_shadow_federations_are_linked_as_the_targets_are_and_trained_once(
    task: Task,
) -> None:
    looked = look(replace(memory, epochs=5), task)
    mean = looked.adversary.reconstruct("client-1")  # the same of all
    alone = [
        replace(t, reconstructed=replace(mean, suspects=())) for t in looked.targets
    ]
    linked = shadow_signals(looked.adversary, looked.targets, 6)
    trained = [key for key in looked.adversary.shared if "federations" in str(key)]
    average = shadow_signals(looked.adversary, alone, 6)
    assert trained == [k for k in looked.adversary.shared if "federations" in str(k)]
    for one, other in zip(linked, average, strict=True):
        assert torch.equal(one.public.is_in, other.public.is_in)
        assert not torch.allclose(public(one), public(other))
    # Averages are the same for all targets of a federation; linked models are not.
    assert torch.equal(public(average[0]), public(average[1]))
    assert not torch.equal(public(linked[0]), public(linked[1]))


def public(table: ShadowSignals) -> torch.Tensor:
    """What the shadows say of public records."""
    return table.public.signals.log_likelihood
