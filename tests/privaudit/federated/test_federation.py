from functools import reduce
from typing import Any

import pytest
import torch

from privaudit.core.errors import ConfigError, TrainingError
from privaudit.core.seeds import Seeds
from privaudit.federated.federation import (
    Federation,
    give_away,
    participants_of,
    run_round,
)
from privaudit.federated.trainer import Task
from privaudit.federated.transcripts.threat_models import peer, server
from privaudit.federated.transcripts.transcript import SERVER, bytes_sent
from privaudit.trainers.coop import CoOp
from privaudit.trainers.promptfl import PromptFL
from tests.toy_federation import Play, Shards, joined


def test_one_full_batch_step_everywhere_is_one_step_on_the_union(
    play: Play, shards: Shards
) -> None:
    """With one local step, federated averaging is plain gradient descent."""
    trainer = PromptFL(epochs=1, batch_size=0, learning_rate=0.1)
    split = play(trainer)
    whole = play(trainer, shards={"client-0": reduce(joined, shards.values())})
    torch.testing.assert_close(split.server["context"], whole.server["context"])


@pytest.mark.parametrize("trainer", [PromptFL(batch_size=4), CoOp(batch_size=4)])
def test_training_a_cohort_equals_training_its_clients_one_by_one(
    trainer: PromptFL | CoOp, play: Play
) -> None:
    together, alone = (
        play(trainer, rounds=2, seed=3, cohort_size=size).messages for size in (64, 1)
    )
    for one, other in zip(together, alone, strict=True):
        assert (one.sender, one.receiver) == (other.sender, other.receiver)
        for name in one.tensors:
            torch.testing.assert_close(one.tensors[name], other.tensors[name])


def test_federations_side_by_side_equal_each_alone(task: Task, shards: Shards) -> None:
    """Only the names of random streams tell shadow federations apart."""
    trainer = PromptFL(batch_size=0)
    pair = [
        Federation.begin(trainer, task, shards, Seeds(n), name=f"s{n}")
        for n in range(2)
    ]
    lone = Federation.begin(trainer, task, shards, Seeds(1), name="s1")
    run_round(trainer, task, pair, 0)
    run_round(trainer, task, [lone], 0)
    torch.testing.assert_close(pair[1].server["context"], lone.server["context"])


def test_a_round_records_what_went_down_and_what_came_up(play: Play) -> None:
    record = play(PromptFL(), rounds=0).step(participation=0.7)
    asked = record.at.participants
    assert len(asked) == 2
    assert [m.sender for m in record.messages] == [SERVER, SERVER, *asked]


def test_who_sends_nothing_leaves_no_message(play: Play) -> None:
    assert play(CoOp(), rounds=0).step().messages == ()


def test_personal_models_are_published_only_on_demand(
    play: Play, task: Task, shards: Shards
) -> None:
    federation = play(PromptFL(), rounds=0).federation
    models, messages = give_away(PromptFL(), task, federation, 3, publish=False)
    assert set(models) == set(shards)
    assert {m.kind for m in messages} == {"broadcast"}


class Counted(PromptFL):
    """Notes for how many clients a personal model is computed."""

    def release(self, *arguments: Any) -> Any:
        counts.append(len(arguments[1]))
        return super().release(*arguments)


counts: list[int] = []


def test_equal_personal_models_are_computed_once_and_are_one_object(play: Play) -> None:
    models = play(Counted()).models
    assert counts == [1]
    assert len(models) == 3
    assert len({id(model) for model in models.values()}) == 1


def test_private_state_begins_when_a_client_first_takes_part(play: Play) -> None:
    played = play(CoOp(), rounds=0)
    start = played.kept
    assert not played.federation.kept
    (client,) = played.step(participation=0.34).at.participants
    assert set(played.federation.kept) == set(played.federation.losses) == {client}
    for other, state in played.kept.items():
        same = torch.equal(state["context"], start[other]["context"])
        assert same == (other != client)


def test_a_loss_that_is_not_finite_stops_the_round_and_keeps_the_state(
    play: Play,
) -> None:
    played = play(PromptFL(learning_rate=1e38), rounds=0)
    before = played.server["context"].clone()
    with pytest.raises(TrainingError, match="Round 0, client-0: the loss or an update"):
        played.step()
    assert torch.equal(played.server["context"], before)


def test_participation_draws_a_fixed_number_anew_in_each_round() -> None:
    clients = [f"client-{i}" for i in range(10)]
    draws = [participants_of(clients, 0.3, Seeds(0), i) for i in range(20)]
    assert {len(draw) for draw in draws} == {3}
    assert len(set(draws)) > 10
    assert all(list(draw) == sorted(draw) for draw in draws)


def test_no_participation_is_refused() -> None:
    with pytest.raises(ConfigError, match="above 0 and at most 1"):
        participants_of(["a"], 0.0, Seeds(0), 0)


def test_a_transcript_says_what_the_rule_was_and_who_was_sent_something_else(
    play: Play,
) -> None:
    played = play(PromptFL(epochs=1), rounds=1)
    rule = dict(played.server)
    crafted = {"context": rule["context"] + 1}
    sent = played.step(crafted={"client-1": crafted}).messages
    received = {m.receiver: m.tensors for m in sent if m.kind == "broadcast"}
    (beside,) = [m for m in sent if m.kind == "rule"]
    assert beside.receiver == "client-1"
    assert torch.equal(beside.tensors["context"], rule["context"])
    assert torch.equal(received["client-1"]["context"], crafted["context"])
    assert beside in server(sent).messages
    assert beside not in peer("client-1")(sent).messages
    without = [m for m in sent if m is not beside]
    assert bytes_sent(sent) == bytes_sent(without)


def test_without_anything_crafted_a_round_is_as_it_was(play: Play) -> None:
    first, second = (play(PromptFL(epochs=1), rounds=1) for _ in range(2))
    first.step()
    second.step(crafted={})
    for one, other in zip(first.messages, second.messages, strict=True):
        assert one.describe() == other.describe()
