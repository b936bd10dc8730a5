from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privaudit.core.errors import ConfigError
from privaudit.trainers.prompt_fedamp import PromptFedAMP, attention, pass_messages
from privaudit.tuning import optimiser
from privaudit.tuning.optimiser import pull
from tests.golden import golden_tensors
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
        optimiser, "pull", lambda c, a, strength: pull(c.detach(), a, strength)
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


def others(prompts: torch.Tensor, row: int) -> torch.Tensor:
    return torch.cat([prompts[:row], prompts[row + 1 :]])


@pytest.mark.parametrize("case", range(6))
def test_mixes_are_those_of_the_formula(case: int) -> None:
    """By formula in float64: xi, U, and the client's penalty with its gradient."""
    known = golden_tensors("fedamp", f"c{case}_")
    prompts = known["W"]
    alpha, sigma, lam = (float(known[n]) for n in ("alpha", "sigma", "lam"))
    for row, own in enumerate(prompts):
        rest = others(prompts, row)
        weights = attention(own, rest, alpha, sigma)
        torch.testing.assert_close(
            weights, others(known["xi"][row], row), rtol=0, atol=1e-12
        )
        mix = pass_messages(own, rest, alpha, sigma)
        torch.testing.assert_close(mix, known["U"][row], rtol=0, atol=1e-12)
    leaf = prompts.clone().requires_grad_()
    penalty = pull(leaf, known["U"], lam / alpha)
    (slope,) = torch.autograd.grad(penalty.sum(), leaf)
    torch.testing.assert_close(
        penalty.detach(), known["prox_penalty_at_W"], rtol=0, atol=1e-12
    )
    torch.testing.assert_close(slope, known["prox_grad_at_W"], rtol=0, atol=1e-12)


def test_two_prompts_by_hand() -> None:
    """Distance 2, squared 4; 0.5 exp(-4 / 4) / 4 of the way to the other."""
    own, other = torch.zeros(1), torch.full((1, 1), 2.0)
    share = 0.5 * np.exp(-1) / 4
    assert pass_messages(own, other, 0.5, 4.0).item() == pytest.approx(2 * share)


@given(count=st.integers(1, 6), seed=st.integers(0, 99), sigma=st.floats(0.1, 50.0))
@settings(deadline=None, max_examples=40)
def test_a_bounded_step_gives_a_mean(count: int, seed: int, sigma: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    prompts = torch.randn(count + 1, 4, generator=generator, dtype=torch.float64)
    mix = pass_messages(prompts[0], prompts[1:], sigma / count, sigma)
    assert bool((mix <= prompts.max(dim=0).values + 1e-9).all())
    assert bool((mix >= prompts.min(dim=0).values - 1e-9).all())


def test_those_far_away_are_ignored() -> None:
    own, far = torch.ones(3), torch.full((2, 3), 100.0)
    assert torch.equal(pass_messages(own, far, 0.5, 1.0), own)
