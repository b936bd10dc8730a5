from typing import Any

import pytest
import torch

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.federated.federation import Federation, give_away, run_round
from privaudit.federated.threat_models import find_threat
from privaudit.federated.trainer import Records, Task
from privaudit.federated.transcript import Message
from privaudit.trainers.prompt_fedamp import PromptFedAMP
from privaudit.tuning.prompts import proximal
from privaudit.tuning.prompts.proximal import pass_messages, pull

Shards = dict[str, Records]
STEPS: dict[str, Any] = {
    "learning_rate": 0.02,
    "momentum": 0.0,
    "epochs": 10,
    "batch_size": 0,
}


def run(
    trainer: PromptFedAMP, task: Task, shards: Shards, rounds: int = 3
) -> tuple[Federation, list[Message]]:
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    messages: list[Message] = []
    for index in range(rounds):
        (record,) = run_round(trainer, task, [federation], index)
        messages += record.messages
    return federation, [*messages, *give_away(trainer, task, federation, rounds)[1]]


def spread(federation: Federation) -> float:
    """How far apart the clients' own prompts are."""
    prompts = torch.stack([kept["context"] for kept in federation.kept.values()])
    return float((prompts - prompts.mean(dim=0)).norm())


def test_everyone_is_sent_its_own_mix_of_the_last_prompts(
    task: Task, shards: Shards
) -> None:
    trainer = PromptFedAMP(sigma=5.0, alpha=1.0, **STEPS)
    federation, messages = run(trainer, task, shards)
    last = {m.receiver: m.tensors["mix"] for m in messages if m.kind == "broadcast"}
    for client in shards:
        own = federation.kept[client]["context"]
        rest = [federation.kept[c]["context"].flatten() for c in shards if c != client]
        want = pass_messages(own.flatten(), torch.stack(rest), 1.0, 5.0)
        torch.testing.assert_close(last[client].flatten(), want)


def test_who_sits_out_keeps_and_lends_its_last_prompt(
    task: Task, shards: Shards
) -> None:
    trainer = PromptFedAMP(**STEPS)
    federation, _ = run(trainer, task, shards, rounds=1)
    before = dict(federation.server)
    (record,) = run_round(trainer, task, [federation], 1, participation=0.34)
    for client in shards:
        changed = not torch.equal(federation.server[client], before[client])
        assert changed == (client in record.at.participants)
        kept = federation.kept[client]["context"]
        assert torch.equal(kept, federation.server[client])


def is_attractive(task: Task, shards: Shards) -> bool:
    """Say whether a strong attraction brings the clients' prompts together."""
    alone, together = (
        run(PromptFedAMP(sigma=50.0, attraction=a, **STEPS), task, shards)[0]
        for a in (0.0, 100.0)
    )
    return spread(together) < 0.8 * spread(alone)


def test_the_penalty_attracts_and_a_detached_one_would_not(
    task: Task, shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Must fail: with the term detached, as in PFLlib, everyone trains alone."""
    assert is_attractive(task, shards)
    monkeypatch.setattr(
        proximal, "pull", lambda c, a, strength: pull(c.detach(), a, strength)
    )
    assert not is_attractive(task, shards)


def test_without_attraction_a_client_trains_as_if_it_were_alone(
    task: Task, shards: Shards
) -> None:
    trainer = PromptFedAMP(attraction=0, **STEPS)
    together, _ = run(trainer, task, shards)
    only = {"client-1": shards["client-1"]}
    alone = Federation.begin(trainer, task, only, Seeds(0))
    alone.server = {"client-1": alone.server["client-1"]}
    for index in range(3):
        run_round(trainer, task, [alone], index)
    torch.testing.assert_close(
        together.kept["client-1"]["context"], alone.kept["client-1"]["context"]
    )


def test_the_server_and_a_buyer_have_the_client_and_a_peer_its_own_mix(
    task: Task, shards: Shards
) -> None:
    trainer = PromptFedAMP(**STEPS)
    federation, messages = run(trainer, task, shards)
    for threat in ("server", "released"):
        reconstructed = trainer.reconstruct(
            task, find_threat(threat)(messages), "client-0"
        )
        own = federation.kept["client-0"]["context"]
        assert torch.equal(reconstructed.model["context"], own)
        assert reconstructed.missing == ()
    peer = trainer.reconstruct(task, find_threat("peer:client-2")(messages), "client-0")
    mine = [m for m in messages if m.receiver == "client-2"][-1].tensors["mix"]
    assert torch.equal(peer.model["context"], mine)
    assert peer.missing == ("the client's own prompt",)


def test_a_step_that_would_not_give_means_is_refused(
    task: Task, shards: Shards
) -> None:
    with pytest.raises(ConfigError, match=r"alpha = 0\.6 .* at most 0\.5"):
        Federation.begin(PromptFedAMP(alpha=0.6), task, shards, Seeds(0))
    assert PromptFedAMP(alpha=0.5).step(3) == 0.5
    assert PromptFedAMP(sigma=2.0).step(4) == 0.5
    assert PromptFedAMP(alpha=0.6).step(1) == 0.6
