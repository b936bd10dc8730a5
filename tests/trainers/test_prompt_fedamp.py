from typing import Any

import pytest
import torch

from privaudit.core.errors import ConfigError
from privaudit.trainers.prompt_fedamp import PromptFedAMP
from privaudit.tuning.prompts import proximal
from privaudit.tuning.prompts.proximal import pass_messages, pull
from tests.toy_federation import Play, Played, Shards

STEPS: dict[str, Any] = {
    "learning_rate": 0.02,
    "momentum": 0.0,
    "epochs": 10,
    "batch_size": 0,
}


def spread(played: Played) -> float:
    """How far apart the clients' own prompts are."""
    prompts = torch.stack([kept["context"] for kept in played.kept.values()])
    return float((prompts - prompts.mean(dim=0)).norm())


def test_everyone_is_sent_its_own_mix_of_the_last_prompts(
    play: Play, shards: Shards
) -> None:
    played = play(PromptFedAMP(sigma=5.0, alpha=1.0, **STEPS))
    sent = [m for m in played.messages if m.kind == "broadcast"]
    last = {m.receiver: m.tensors["mix"] for m in sent}
    for client in shards:
        own = played.kept[client]["context"]
        rest = [played.kept[c]["context"].flatten() for c in shards if c != client]
        want = pass_messages(own.flatten(), torch.stack(rest), 1.0, 5.0)
        torch.testing.assert_close(last[client].flatten(), want)


def test_who_sits_out_keeps_and_lends_its_last_prompt(
    play: Play, shards: Shards
) -> None:
    played = play(PromptFedAMP(**STEPS), rounds=1)
    before = dict(played.server)
    record = played.step(participation=0.34)
    for client in shards:
        changed = not torch.equal(played.server[client], before[client])
        assert changed == (client in record.at.participants)
        assert torch.equal(played.kept[client]["context"], played.server[client])


def is_attractive(play: Play) -> bool:
    """Say whether a strong attraction brings the clients' prompts together."""
    alone, together = (
        play(PromptFedAMP(sigma=50.0, attraction=a, **STEPS)) for a in (0.0, 100.0)
    )
    return spread(together) < 0.8 * spread(alone)


def test_the_penalty_attracts_and_a_detached_one_would_not(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Must fail: with the term detached, as in PFLlib, everyone trains alone."""
    assert is_attractive(play)
    monkeypatch.setattr(
        proximal, "pull", lambda c, a, strength: pull(c.detach(), a, strength)
    )
    assert not is_attractive(play)


def test_without_attraction_a_client_trains_as_if_it_were_alone(
    play: Play, shards: Shards
) -> None:
    trainer = PromptFedAMP(attraction=0, **STEPS)
    together = play(trainer)
    alone = play(trainer, rounds=0, shards={"client-1": shards["client-1"]})
    alone.federation.server = {"client-1": alone.server["client-1"]}
    for _ in together.rounds:
        alone.step()
    torch.testing.assert_close(
        together.kept["client-1"]["context"], alone.kept["client-1"]["context"]
    )


def test_the_server_and_a_buyer_have_the_client_and_a_peer_its_own_mix(
    play: Play,
) -> None:
    played = play(PromptFedAMP(**STEPS))
    for threat in ("server", "released"):
        reconstructed = played.rebuild(threat)
        own = played.kept["client-0"]["context"]
        assert torch.equal(reconstructed.model["context"], own)
        assert reconstructed.missing == ()
    peer = played.rebuild("peer:client-2")
    mine = [m for m in played.messages if m.receiver == "client-2"][-1].tensors["mix"]
    assert torch.equal(peer.model["context"], mine)
    assert peer.missing == ("the client's own prompt",)


def test_a_step_that_would_not_give_means_is_refused(play: Play) -> None:
    with pytest.raises(ConfigError, match=r"alpha = 0\.6 .* at most 0\.5"):
        play(PromptFedAMP(alpha=0.6), rounds=0)
    assert PromptFedAMP(alpha=0.5).step(3) == 0.5
    assert PromptFedAMP(sigma=2.0).step(4) == 0.5
    assert PromptFedAMP(alpha=0.6).step(1) == 0.6
