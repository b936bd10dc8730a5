from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Tensors, below, stack
from privaudit.federation.query import ask
from privaudit.federation.trainer import Cohort, Records, Round, Task
from privaudit.federation.transcript import Message
from privaudit.trainers.pfedmoap import PFedMoAP
from privaudit.trainers.promptfl import PromptFL
from privaudit.tuning.prompts.experts import expert_features, gate_part
from tests.conftest import toy_records
from tests.toy_federation import Play, Shards

quick = partial(PFedMoAP, epochs=3)


def broadcasts(messages: Sequence[Message], client: str) -> list[Tensors]:
    return [
        m.tensors for m in messages if m.receiver == client and m.kind == "broadcast"
    ]


def contexts(messages: Sequence[Message]) -> list[Tensor]:
    return [m.tensors["context"] for m in messages if m.kind == "broadcast"]


def test_without_experts_or_alone_a_client_sees_promptfl(
    play: Play, task: Task, shards: Shards
) -> None:
    alone: dict[str, Any] = {
        "task": replace(task, candidates={"client-0": 24}),
        "shards": {"client-0": shards["client-0"]},
    }
    for trainer, world in ((quick(experts=0), {}), (quick(), alone)):
        one, other = play(trainer, **world), play(PromptFL(epochs=3), **world)
        pairs = zip(contexts(one.messages), contexts(other.messages), strict=True)
        for mine, theirs in pairs:
            torch.testing.assert_close(mine, theirs)
        assert all(set(model) == {"context"} for model in one.models.values())
        assert all("experts" not in m.tensors for m in one.messages)


def test_experts_come_from_the_second_round_on_and_are_others_last_prompts(
    play: Play,
) -> None:
    played = play(quick())
    first, second, third, last = broadcasts(played.messages, "client-0")
    assert set(first) == {"context"}
    for index, received in enumerate((second, third, last)):
        sent = played.uploads(index)
        others = [
            sent[c]["context"] / sent[c]["weight"] for c in ("client-1", "client-2")
        ]
        got = {tuple(e.flatten().tolist()) for e in received["experts"]}
        assert got == {tuple(o.flatten().tolist()) for o in others}


def test_the_mean_is_weighted_and_the_pool_replaced_by_hand(task: Task) -> None:
    """Two clients with 1 and 3 records: (1 * 2 + 3 * 6) / 4 = 5."""
    one = {"context": torch.tensor([[2.0]]), "weight": torch.tensor(1.0)}
    other = {"context": torch.tensor([[18.0]]), "weight": torch.tensor(3.0)}
    none = {"context": torch.tensor([[0.0]]), "weight": torch.tensor(0.0)}
    before = {"context": torch.zeros(1, 1), "pool/a": torch.ones(1, 1)}
    at = Round(0, Seeds(0), ("a", "b", "c"))
    after, events = quick().aggregate(
        task, before, {"a": one, "b": other, "c": none}, at
    )
    assert after["context"].item() == 5.0
    assert {c: p.item() for c, p in below("pool/", after).items()} == {
        "a": 2.0,
        "b": 6.0,
    }
    assert events == ()
    assert quick().aggregate(task, before, {"c": none}, at)[0] is before


def cohort_of(shards: Shards) -> Cohort:
    return Cohort.of(list(shards), list(shards.values()))


def received_of(task: Task, clients: int, experts: int, seed: int) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    shape = (task.prompts.context_tokens, task.prompts.width)
    return {
        "context": 0.1 * torch.randn(clients, *shape, generator=generator),
        "experts": 0.1 * torch.randn(clients, experts, *shape, generator=generator),
    }


def kept_of(trainer: PFedMoAP, task: Task, clients: Sequence[str]) -> Tensors:
    return stack([trainer.start_client(task, c, Seeds(0)) for c in clients])


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 1000), st.integers(0, 20))
def test_a_gate_never_changes_by_another_client_s_training(
    task: Task, shards: Shards, seed: int, size: int
) -> None:
    """Other records, prompts, experts and gates of one client: the other's stays."""
    trainer = quick()
    names = ("client-0", "client-1")
    received, kept = received_of(task, 2, 3, seed), kept_of(trainer, task, names)
    at = Round(1, Seeds(seed), names)

    def gate_of(other: Records, down: Tensors, state: Tensors) -> dict[str, Tensor]:
        cohort = Cohort.of(names, [shards["client-0"], other])
        result = trainer.local_update(task, cohort, down, state, at)
        return {name: tensor[0] for name, tensor in gate_part(result.kept).items()}

    disturbed = {n: t.clone() for n, t in {**received, **kept}.items()}
    for tensor in disturbed.values():
        tensor[1] += 1.0
    one = gate_of(shards["client-1"], received, kept)
    other = gate_of(
        toy_records(size, seed),
        {name: disturbed[name] for name in received},
        {name: disturbed[name] for name in kept},
    )
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_who_sits_out_keeps_gate_and_prompt(play: Play, shards: Shards) -> None:
    played = play(quick(), rounds=0, seed=3)
    for _ in range(6):
        before = {c: dict(kept) for c, kept in played.kept.items()}
        record = played.step(participation=0.4)
        for client in set(shards) - set(record.at.participants):
            for name, tensor in played.kept[client].items():
                assert torch.equal(tensor, before[client][name])


def test_first_rounds_train_no_gate_and_release_none(play: Play) -> None:
    played = play(quick(), rounds=0)
    start = {c: kept["gate/key_weight"] for c, kept in played.kept.items()}
    played.step()
    for client, kept in played.kept.items():
        assert torch.equal(kept["gate/key_weight"], start[client])
        assert set(played.models[client]) == {"context"}
    played.step()
    for client, kept in played.kept.items():
        assert not torch.equal(kept["gate/key_weight"], start[client])
        assert len(played.models[client]["experts"]) == 2


@pytest.mark.parametrize("gate", ["attention", "linear"])
def test_a_large_mixing_leaves_the_local_prompt_s_logits(
    gate: Literal["attention", "linear"], task: Task
) -> None:
    trainer = quick(gate=gate, mixing=1e6)
    model = {**received_of(task, 1, 2, 5), **kept_of(trainer, task, ["client-0"])}
    experts = torch.cat(
        [
            task.prompts(model["context"]).unsqueeze(2),
            expert_features(task, model["experts"]),
        ],
        dim=2,
    )
    images = task.public.features.unsqueeze(0)
    logits = trainer.logits(task, gate_part(model), experts, images) / 1e6
    local = task.logit_scale * images[0] @ task.prompts(model["context"])[0].T
    torch.testing.assert_close(logits[0], local, rtol=1e-4, atol=1e-4)
    assert torch.equal(logits[0].argmax(dim=-1), local.argmax(dim=-1))


def test_a_query_is_the_softmax_of_the_trained_logits(
    task: Task, shards: Shards
) -> None:
    """The loss that training reports for a full batch is what the model answers."""
    trainer = quick(epochs=1, learning_rate=1e-9, gate_learning_rate=1e-9)
    received = received_of(task, 3, 2, 1)
    kept = kept_of(trainer, task, list(shards))
    at = Round(1, Seeds(0), tuple(shards))
    result = trainer.local_update(task, cohort_of(shards), received, kept, at)
    models = trainer.release(task, list(shards), received, result.kept)
    for i, shard in enumerate(shards.values()):
        model = {name: tensor[i : i + 1] for name, tensor in models.items()}
        answers = ask(trainer, task, model, shard)[0]
        loss = -answers.gather(1, shard.labels.unsqueeze(1)).mean()
        assert float(loss) == pytest.approx(float(result.loss[i]), rel=1e-4)


def test_a_linear_gate_is_blind_to_the_order_of_arrival(
    task: Task, shards: Shards
) -> None:
    trainer = quick(gate="linear", experts=3)
    received = received_of(task, 3, 3, 1)
    shuffled = {**received, "experts": received["experts"][:, [2, 0, 1]]}
    kept = kept_of(trainer, task, list(shards))
    at = Round(1, Seeds(0), tuple(shards))
    one, other = (
        trainer.local_update(task, cohort_of(shards), down, kept, at)
        for down in (received, shuffled)
    )
    torch.testing.assert_close(dict(one.kept), dict(other.kept))


def test_an_aggregated_gate_is_everybody_s_and_averaged(play: Play) -> None:
    played = play(quick(gate="aggregated"))
    assert not any(name.startswith("gate/") for name in played.kept["client-0"])
    sent = played.uploads(2).values()
    total = sum(t["gate/key_weight"] for t in sent) / sum(t["weight"] for t in sent)
    torch.testing.assert_close(played.server["gate/key_weight"], total)
    models = played.models
    for model in models.values():
        torch.testing.assert_close(model["gate/key_weight"], total)
    reconstructed = played.rebuild("server", "client-1")
    assert reconstructed.missing == ()
    torch.testing.assert_close(dict(reconstructed.model), dict(models["client-1"]))


def test_a_peer_has_the_mean_and_every_other_s_prompts_without_names(
    play: Play,
) -> None:
    played = play(quick())
    reconstructed = played.rebuild("peer:client-0", "client-1")
    last = broadcasts(played.messages, "client-0")[-1]
    assert torch.equal(reconstructed.model["context"], last["context"])
    assert len(reconstructed.suspects) == 6  # two others, three rounds
    suspects = [suspect["context"] for suspect in reconstructed.suspects]
    for index in range(3):
        for sender, sent in played.uploads(index).items():
            prompt = sent["context"] / sent["weight"]
            found = any(torch.equal(prompt, suspect) for suspect in suspects)
            assert found == (sender != "client-0")


def test_a_server_takes_the_last_upload_that_no_gate_has_shaped(play: Play) -> None:
    played = play(quick())
    upload = played.uploads(0)["client-1"]
    reconstructed = played.rebuild("server", "client-1")
    first = upload["context"] / upload["weight"]
    assert torch.equal(reconstructed.model["context"], first)
    assert reconstructed.staleness == 2
    assert "the gate" in reconstructed.missing[0]
    played = play(quick(experts=0))
    reconstructed = played.rebuild("server", "client-1")
    torch.testing.assert_close(
        reconstructed.model["context"], played.models["client-1"]["context"]
    )
    assert reconstructed.staleness == 0
    assert reconstructed.missing == ()
