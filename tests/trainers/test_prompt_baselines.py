"""Baselines of learned prompts: CoOp, fine-tuning, FedProx, FedPer; what views rebuild."""

from typing import Any

import pytest
import torch

from privaudit.federation.batches import gradients_of
from privaudit.federation.trainer import TRAINERS, Cohort, Task
from privaudit.trainers.coop import CoOp
from privaudit.trainers.prompt_fedper import PromptFedPer
from privaudit.trainers.prompt_fedprox import PromptFedProx
from privaudit.trainers.promptfl import PromptFL
from privaudit.trainers.promptfl_ft import FineTunedPromptFL
from privaudit.tuning import optimiser
from privaudit.tuning.optimiser import pull
from privaudit.tuning.prompts.gradients import fixed_batch
from tests.toy_federation import (
    AT,
    Play,
    Shards,
    context_gradient,
    context_loss,
    trained_alone,
)

ALL_VIEWS = {"server": 1, "server-aggregate": 2, "peer:client-0": 2, "released": 0}
PLAIN = {"server": 0, "server-aggregate": 1, "released": 0}
GUESSED = {"server", "server-aggregate", "peer:client-0"}
ROWS: list[tuple[str, dict[str, Any], str, dict[str, int], set[str]]] = [
    ("promptfl", {}, "context", PLAIN, set()),
    ("promptfl-ft", {"epochs": 4}, "context", ALL_VIEWS, set()),
    ("pfedprompt", {"epochs": 4}, "context", ALL_VIEWS, set()),
    ("fedotp", {"epochs": 2}, "global", ALL_VIEWS, set()),
    ("fedpgp", {"epochs": 2}, "context", ALL_VIEWS, {"server"}),
    ("fedpgp", {"contrast": 0.0}, "context", {"server": 1}, set()),
    ("prompt-fedper", {"shared_tokens": 2}, "shared", ALL_VIEWS, GUESSED),
]


@pytest.mark.parametrize(("name", "settings", "shared", "missing", "estimates"), ROWS)
def test_each_view_rebuilds_what_it_can_and_says_what_it_lacks(
    name: str,
    settings: dict[str, Any],
    shared: str,
    missing: dict[str, int],
    estimates: set[str],
    play: Play,
) -> None:
    played = play(TRAINERS.find(name)(**settings), rounds=2)
    own, sent = played.models["client-2"], played.uploads(1)["client-2"]
    upload = sent[shared] / sent["weight"]
    for threat, lacking in missing.items():
        found = played.rebuild(threat, "client-2")
        assert len(found.missing) == lacking
        assert found.estimated == (threat in estimates)
        if threat == "released":
            torch.testing.assert_close(dict(found.model), dict(own), rtol=0, atol=0)
            continue
        parts = ("global", "local") if name == "fedotp" else ("context",)
        assert set(found.model) == set(parts)
        if name == "fedpgp" and found.estimated:
            continue  # fitted to the upload: test_fedpgp says how well
        want = upload if threat == "server" else played.server[shared]
        for part in parts:  # the tokens that are sent come first
            torch.testing.assert_close(found.model[part][: len(want)], want)


def test_a_client_alone_is_the_same_with_or_without_others(
    play: Play, shards: Shards
) -> None:
    """Without federation nothing of the others reaches a client."""
    together = play(CoOp(), rounds=2).kept["client-1"]["context"]
    only = {"client-1": shards["client-1"]}
    alone = play(CoOp(), rounds=2, shards=only).kept["client-1"]["context"]
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_a_buyer_gets_the_prompt_and_the_server_gets_nothing(
    play: Play, task: Task
) -> None:
    played = play(CoOp(), rounds=1)
    bought, seen = played.rebuild("released"), played.rebuild("server")
    assert torch.equal(bought.model["context"], played.kept["client-0"]["context"])
    assert seen.missing == ("the client's prompt",)
    assert torch.equal(seen.model["text"], task.zero_shot)


def fine_tuned(**options: Any) -> FineTunedPromptFL:
    return FineTunedPromptFL(**({"epochs": 4, "tuning_epochs": 6} | options))


def test_full_batches_without_momentum_are_tuned_as_if_trained_for_longer(
    play: Play,
) -> None:
    steps: dict[str, Any] = {"batch_size": 0, "momentum": 0.0, "learning_rate": 0.05}
    tuned = play(fine_tuned(**steps), rounds=1)
    longer = play(PromptFL(epochs=10, **steps), rounds=1)
    for client, sent in longer.uploads().items():
        want = sent["context"] / sent["weight"]
        got = tuned.kept[client]["tuned"]
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_the_release_is_tuned_and_who_never_trained_gets_the_average(
    play: Play,
) -> None:
    played = play(fine_tuned(), rounds=2, participation=0.34)
    seen = {*played.uploads(0), *played.uploads(1)}
    assert 0 < len(seen) < 3
    for client, model in played.models.items():
        is_average = torch.equal(model["context"], played.server["context"])
        assert is_average == (client not in seen)


def test_no_tuning_keeps_the_prompt_as_sent(play: Play) -> None:
    played = play(fine_tuned(tuning_epochs=0), rounds=2)
    for client, model in played.models.items():
        reconstructed = played.rebuild("server", client)
        assert reconstructed.missing == ()
        torch.testing.assert_close(reconstructed.model, dict(model))


STEPS: dict[str, Any] = {"learning_rate": 0.05, "momentum": 0.0, "batch_size": 0}


def distance(mu: float, play: Play) -> float:
    """How far one round moves the prompt."""
    trainer = PromptFedProx(mu=mu, epochs=60, **STEPS | {"learning_rate": 0.01})
    before, after = (
        play(trainer, rounds=rounds).server["context"] for rounds in (0, 1)
    )
    return float((after - before).norm())


def test_without_mu_it_is_promptfl_exactly(play: Play) -> None:
    prox, plain = (
        play(trainer, rounds=2).server["context"]
        for trainer in (PromptFedProx(mu=0, epochs=5), PromptFL(epochs=5))
    )
    assert torch.equal(prox, plain)


def test_two_full_steps_have_the_penaltys_gradient_by_hand(
    task: Task, shards: Shards
) -> None:
    """The first step leaves the anchor, the second is pulled back by mu times that."""
    trainer = PromptFedProx(mu=3.0, epochs=2, **STEPS)
    shard, anchor = shards["client-0"], torch.full((3, 5), 0.1)
    first = anchor - 0.05 * context_gradient(task, anchor, shard)
    slope = context_gradient(task, first, shard) + 3.0 * (first - anchor)
    found, _ = trained_alone(trainer, task, shard, {"context": anchor}, {})
    second = (first - 0.05 * slope)[None]
    torch.testing.assert_close(found["context"], second)


def test_the_penalty_holds_back_and_a_detached_one_would_not(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Must fail: with the term detached, as published in four places, nothing pulls."""
    assert distance(8.0, play) < 0.9 * distance(0.0, play)
    monkeypatch.setattr(
        optimiser, "pull", lambda c, a, strength: pull(c.detach(), a, strength)
    )
    assert distance(8.0, play) >= 0.9 * distance(0.0, play)


def test_more_mu_stays_closer(play: Play) -> None:
    moved = [distance(mu, play) for mu in (0.0, 1.0, 4.0, 16.0)]
    assert moved == sorted(moved, reverse=True)


def test_the_pulls_gradient_leads_to_the_anchor(cohort: Cohort) -> None:
    contexts, anchors = torch.randn(
        2, 3, 3, 5, generator=torch.Generator().manual_seed(0)
    )
    gradients, losses = gradients_of(
        lambda p, batch: pull(p["context"], anchors, 0.5),
        {"context": contexts},
        batch=fixed_batch(cohort, AT, 4),
    )
    torch.testing.assert_close(gradients["context"], 0.5 * (contexts - anchors))
    torch.testing.assert_close(
        losses, 0.25 * (contexts - anchors).pow(2).sum(dim=(1, 2))
    )


def fedper(tokens: int, **options: Any) -> PromptFedPer:
    return PromptFedPer(shared_tokens=tokens, **({"epochs": 5} | options))


@pytest.mark.parametrize("tokens", [3, 8])
def test_all_tokens_shared_is_promptfl_exactly(tokens: int, play: Play) -> None:
    whole = play(fedper(tokens), rounds=2)
    plain = play(PromptFL(epochs=5), rounds=2)
    assert torch.equal(whole.server["shared"], plain.server["context"])
    assert not any(whole.kept.values())


@pytest.mark.parametrize("tokens", [1, 2])
def test_first_tokens_are_sent_and_the_others_kept(tokens: int, play: Play) -> None:
    played = play(fedper(tokens), rounds=2)
    for message in played.messages:
        if message.kind != "release":
            assert message.tensors["shared"].shape == (tokens, 5)
    for client, kept in played.kept.items():
        assert kept["private"].shape == (3 - tokens, 5)
        own = played.models[client]["context"]
        assert torch.equal(own[:tokens], played.server["shared"])
        assert torch.equal(own[tokens:], kept["private"])


def test_public_records_teach_the_tokens_that_are_missing(
    play: Play, task: Task
) -> None:
    played = play(fedper(2, epochs=30, learning_rate=0.02), rounds=2)
    reconstructed, again = (
        played.rebuild("server", "client-1").model["context"] for _ in range(2)
    )
    untrained = torch.cat([reconstructed[:2], torch.zeros(1, 5)])
    taught, before = (
        float(context_loss(task, context, task.public))
        for context in (reconstructed, untrained)
    )
    assert taught < before - 0.05
    assert torch.equal(again, reconstructed)
