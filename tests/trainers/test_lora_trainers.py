"""What is particular about the adapters' baselines."""

import pytest
import torch

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, stack
from privaudit.datasets.records import ANSWER
from privaudit.federation.batches import Batch, gradients_of
from privaudit.federation.trainer import Cohort, Records, Task
from privaudit.models.interfaces import Tuning
from privaudit.trainers.lora_fedavg import LoraFedAvg
from privaudit.trainers.lora_fedpara import LoraFedPara
from privaudit.trainers.lora_fedper import LoraFedPer
from privaudit.tuning.transformers.objectives import AnswerObjective, objective_of
from tests.toy_federation import Play, Shards
from tests.toy_language import toy_dialogues, toy_language, toy_writing_task


@pytest.fixture
def task() -> Task:
    return toy_writing_task()


@pytest.fixture
def shards(task: Task) -> Shards:
    sizes = zip(task.candidates.items(), (4, 5, 6), strict=True)
    return {c: toy_dialogues(n // 2, seed) for (c, n), seed in sizes}


def whole(records: Records) -> Batch:
    cohort = Cohort.of(["client-0"], [records])
    return Batch(
        cohort.features, cohort.labels, cohort.mask, cohort.tokens, cohort.words
    )


def test_the_loss_is_that_of_the_answers_tokens_one_by_one() -> None:
    records, language = toy_dialogues(5), toy_language()
    assert records.words is not None
    loss = AnswerObjective(language).losses(Tuning(), whole(records))
    batch = whole(records)
    assert batch.tokens is not None
    assert batch.words is not None
    tokens = batch.tokens.read()
    logs = language.logits(tokens, batch.words, Tuning()).log_softmax(dim=-1)[0]
    by_hand = [
        -logs[row, position - 1, records.words.ids[row, position]]
        for row in range(5)
        for position in range(records.words.length)
        if records.words.kinds[row, position] == ANSWER
    ]
    torch.testing.assert_close(loss[0], torch.stack(by_hand).mean())


def test_fedpara_has_a_gradient_before_its_first_step(task: Task) -> None:
    trainer = LoraFedPara()
    start = stack(
        [
            {
                **trainer.start(task, Seeds(0)),
                **trainer.start_client(task, "client-0", Seeds(0)),
            }
        ]
    )

    def objective(parameters: Stacked, batch: Batch) -> torch.Tensor:
        return objective_of(task).losses(trainer.tuning(task, parameters), batch)

    gradients, _ = gradients_of(objective, start, whole(toy_dialogues(8)))
    assert all(gradients[f"layer{i}.B"].abs().max() > 1e-4 for i in range(3))


def test_an_update_of_fedavg_is_the_client(play: Play) -> None:
    played = play(LoraFedAvg())
    reconstructed = played.rebuild("server", "client-1")
    for name, tensor in played.models["client-1"].items():
        torch.testing.assert_close(reconstructed.model[name], tensor)


def test_fedper_sends_all_at_first_and_the_upper_layers_from_then_on(
    play: Play,
) -> None:
    """Down, the lower ones come once more: as the mean that all begin from."""
    everything = {"layer0", "layer1", "layer2"}
    for message in play(LoraFedPer(shared_layers=1)).messages:
        layers = {name.partition(".")[0] for name in message.tensors} - {"weight"}
        full = 1 if message.kind == "broadcast" else 0
        if message.kind != "release":
            assert layers == (everything if message.round <= full else {"layer2"})


def test_fedpers_server_has_all_layers_whoever_has_joined(play: Play) -> None:
    trainer = LoraFedPer(shared_layers=1)
    own = trainer.own_model(play(trainer, rounds=3).server)
    assert set(own) == {f"layer{i}.{factor}" for i in range(3) for factor in "AB"}
    assert own["layer0.B"].any()


def test_a_newcomer_to_fedper_begins_where_the_first_round_ended(
    play: Play, shards: Shards
) -> None:
    trainer = LoraFedPer(shared_layers=1)
    early = {c: shards[c] for c in ("client-0", "client-1")}
    played = play(trainer, rounds=1, shards=early)
    assert not any(played.kept.values())  # the first round is FedAvg's
    first = {n: t for n, t in played.server.items() if n.startswith("first ")}
    played.step()
    later = played.federation.at(2, 1.0)
    received = trainer.broadcast(played.server, "client-2", later)
    known = trainer.broadcast(played.server, "client-0", later)
    assert {n.partition(".")[0] for n in known} == {"layer2"}
    for name, tensor in first.items():
        assert torch.equal(received[name.removeprefix("first ")], tensor)


def test_fedper_that_shares_every_layer_is_refused(task: Task) -> None:
    with pytest.raises(ConfigError, match=r"3 shared layers .* Use at most 2"):
        LoraFedPer(shared_layers=3).start(task, Seeds(0))
