"""What is particular about the trainers of adapters: baselines, and FedRand."""

from typing import Any

import pytest
import torch

from privaudit.auditing.shadow_models import _replay, _start
from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors, stack
from privaudit.datasets.records import ANSWER
from privaudit.federation.batches import Batch, gradients_of
from privaudit.federation.threat_models import find_threat
from privaudit.federation.trainer import Cohort, Records, Round, Task
from privaudit.federation.transcript import Message, bytes_sent
from privaudit.federation.uploads import RANGE, update_deltas, with_numbers
from privaudit.models.interfaces import Tuning
from privaudit.runs.config import make_config
from privaudit.trainers.fedrand import FedRand
from privaudit.trainers.lora_fedavg import LoraFedAvg
from privaudit.trainers.lora_fedpara import LoraFedPara
from privaudit.trainers.lora_fedper import LoraFedPer
from privaudit.tuning.transformers.objectives import AnswerObjective, objective_of
from tests.toy_federation import CLIENTS, Play, Played, Shards
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
    torch.testing.assert_close(
        dict(reconstructed.model), dict(played.models["client-1"])
    )


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


def at(index: int = 0, seed: int = 0) -> Round:
    return Round(index, Seeds(seed), CLIENTS)


def test_the_servers_step_by_hand() -> None:
    """A comes of 1 and 2 records, added up, and B of 5."""
    server = {"layer0.A": torch.zeros(2, 2), "layer0.B": torch.zeros(2, 2)}
    inbox = {
        "layer0.A": torch.full((2, 2), 1 * 1.1 + 2 * 0.2),
        "weight A": torch.tensor(3.0),
        "layer0.B": torch.full((2, 2), 5 * 2.0),
        "weight B": torch.tensor(5.0),
    }
    after, _ = FedRand().aggregate(toy_writing_task(), server, inbox, at())
    assert after["layer0.A"].unique().item() == 0.5
    assert after["layer0.B"].unique().item() == 2.0
    shrunk, _ = FedRand(normalize=False).aggregate(
        toy_writing_task(), server, inbox, at()
    )
    assert shrunk["layer0.A"].unique().item() == pytest.approx(0.5 * 3 / 8)
    assert shrunk["layer0.B"].unique().item() == pytest.approx(2.0 * 5 / 8)


def test_a_factor_that_nobody_sends_stays_as_it_was(play: Play) -> None:
    messages = play(FedRand(send_a=1.0)).messages
    received = [m.tensors for m in messages if m.kind == "broadcast"]
    for name, tensor in received[0].items():
        if name.endswith(".B"):
            assert not tensor.any()
            assert torch.equal(received[-1][name], tensor)
        else:
            assert not torch.equal(received[-1][name], tensor)


def test_one_coin_decides_for_all_layers_and_the_other_factor_is_in_no_message(
    play: Play,
) -> None:
    for message in play(FedRand()).messages:
        if message.kind == "update":
            lacking = ".B" if "weight A" in message.tensors else ".A"
            assert len(message.tensors) == 4
            assert not any(name.endswith(lacking) for name in message.tensors)


def test_the_coin_follows_its_probability(task: Task) -> None:
    tosses = [
        FedRand(send_a=0.3)._coin(at(index), client)
        for index in range(700)
        for client in CLIENTS
    ]
    assert sum(tosses) / len(tosses) == pytest.approx(0.3, abs=0.04)


def test_sending_a_always_from_the_servers_factors_is_averaging_a_alone(
    play: Play,
) -> None:
    """With past=False both come from the server; what nobody sends is untouched."""
    played = play(FedRand(send_a=1.0, past=False), rounds=0)
    start = dict(played.server)
    played.step()
    assert all("weight A" in sent for sent in played.uploads().values())
    for name, tensor in played.server.items():
        moved = not torch.equal(tensor, start[name])
        assert moved == name.endswith(".A")


def step_from(played: Played, server: float, kept: float) -> None:
    """Play a round from a server's state and clients' pasts of one number each."""
    start = played.server
    played.federation.server = {n: torch.full_like(t, server) for n, t in start.items()}
    for client in CLIENTS:
        played.federation.kept[client] = {
            n: torch.full_like(t, kept) for n, t in start.items()
        }
    played.step()


@pytest.mark.parametrize(("only", "shared"), [((), ".A"), (("layer1",), "layer1.A")])
def test_past_goes_on_with_the_own_last_factor_and_layers_that_are_not_shared(
    only: tuple[str, ...], shared: str, play: Play
) -> None:
    """Without a step, what is kept is half the server's and half one's own."""
    trainer = FedRand(send_a=1.0, only=only, learning_rate=1e-30)
    played = play(trainer, rounds=0)
    step_from(played, server=2.0, kept=7.0)
    for name, tensor in played.kept["client-0"].items():
        assert tensor.unique().item() == (2.0 if name.endswith(shared) else 7.0)


def uploads(*which: tuple[int, str, float]) -> list[Message]:
    """Broadcasts of zeros in every round, and one client's uploads of one factor."""
    server: Tensors = {"layer0.A": torch.ones(1, 1), "layer0.B": torch.zeros(1, 1)}
    down = [
        Message(index, "server", "client-0", "broadcast", server) for index in range(9)
    ]
    up = [
        Message(
            index,
            "client-0",
            "server",
            "update",
            {
                f"layer0.{factor}": torch.full((1, 1), 2 * value),
                f"weight {factor}": torch.tensor(2.0),
            },
        )
        for index, factor, value in which
    ]
    return [*down, *up]


@pytest.mark.parametrize(
    ("pairing", "a", "staleness"), [("last-sent", 3.0, 6), ("second-to-last", 1.0, 0)]
)
def test_a_server_pairs_the_last_upload_with_the_other_factor(
    pairing: str, a: float, staleness: int
) -> None:
    """A was last sent in round 1, then B twice: the round before holds B again."""
    view = find_threat("server")(uploads((1, "A", 3.0), (4, "B", 5.0), (7, "B", 9.0)))
    trainer = FedRand(pairing=pairing)  # type: ignore[arg-type]
    reconstructed = trainer.reconstruct(toy_writing_task(), view, "client-0")
    assert reconstructed.model["layer0.B"].item() == 9.0
    assert reconstructed.model["layer0.A"].item() == a
    assert reconstructed.staleness == staleness
    assert reconstructed.estimated


@pytest.mark.parametrize(("factor", "other", "value"), [("B", "A", 1.0), ("A", "B", 0)])
def test_what_was_never_sent_is_taken_from_the_server(
    factor: str, other: str, value: float
) -> None:
    view = find_threat("server")(uploads((4, factor, 5.0)))
    reconstructed = FedRand().reconstruct(toy_writing_task(), view, "client-0")
    assert reconstructed.model[f"layer0.{other}"].item() == value
    assert reconstructed.staleness == 0


def test_who_never_trained_releases_the_servers_model(play: Play) -> None:
    played = play(FedRand(learning_rate=0.01), rounds=2, participation=1 / 3)
    idle = [c for c in CLIENTS if not played.kept[c]]
    assert idle
    for client in idle:
        for name, tensor in played.server.items():
            assert torch.equal(played.models[client][name], tensor)


def test_a_rebuilt_client_is_nearer_to_itself_than_the_server_is(play: Play) -> None:
    played = play(FedRand(learning_rate=0.01))
    view = find_threat("server")(played.messages)
    for client, true in played.models.items():
        reconstructed = played.rebuild("server", client).model
        server = view.last_broadcast(client).tensors

        def gap(model: Tensors, true: Tensors = true) -> float:
            return float(sum((model[n] - true[n]).square().sum() for n in true))

        assert gap(reconstructed) < gap(server)


def test_half_of_what_goes_up_is_saved_and_nothing_of_what_comes_down(
    play: Play,
) -> None:
    ours, all_ = (
        bytes_sent(play(trainer, rounds=1).rounds[0].messages)
        for trainer in (FedRand(), LoraFedAvg())
    )
    assert ours["down"] == all_["down"]
    share = sum(ours.values()) / sum(all_.values())
    assert share == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize(
    "settings", [{}, {"sublayers": 0.5}, {"upload_bits": 4, "sublayers": 0.5}]
)
def test_shadows_take_the_factors_that_the_target_took_from_the_public_start(
    settings: dict[str, Any], play: Play
) -> None:
    """What an upload shows, and what everybody saw at the start, is not drawn anew."""
    adversary, targets = play(FedRand(**settings)).watched(seed=77)
    first = adversary.view.broadcasts_to("client-1")[0].tensors
    start = _start(adversary, ["shadow-0", "shadow-1"])
    for name, tensor in first.items():
        assert torch.equal(start[name], tensor.expand(2, *tensor.shape))
    own = [targets[1].candidates] * 2
    sent = _replay(adversary, targets[1], own, range(2), 2)
    for message in adversary.view.updates_of("client-1"):
        for shadow in sent[message.round]:
            assert shadow.keys() == message.tensors.keys()


def test_a_shadow_with_the_target_s_own_records_sends_nearly_what_it_sent(
    play: Play,
) -> None:
    """Batches are shuffled by other seeds: whole shards leave nothing to chance."""
    adversary, targets = play(FedRand(batch_size=0)).watched(seed=77)
    sent = _replay(adversary, targets[1], [targets[1].candidates], range(1), 1)
    for message in adversary.view.updates_of("client-1"):
        for name, tensor in message.tensors.items():
            torch.testing.assert_close(
                sent[message.round][0][name], tensor, rtol=1e-3, atol=1e-4
            )


def test_one_step_of_a_lone_record_begins_at_the_server_s_factors() -> None:
    single = FedRand(epochs=3).single_step()
    assert (single.epochs, single.batch_size, single.past) == (1, 0, False)


def test_with_sublayers_a_client_shares_one_factor_of_some_layers(play: Play) -> None:
    """Two of three layers, drawn anew; what a layer weighs stands beside it."""
    played, drawn = play(FedRand(sublayers=0.5), rounds=6), set()
    for index in range(6):
        for sent in played.uploads(index).values():
            names = sorted(n for n in sent if n.startswith("layer"))
            assert len(names) == 2
            assert len({name[-1] for name in names}) == 1
            assert sent.keys() == {"weight", *names, *(f"weight {n}" for n in names)}
            drawn.add(tuple(names))
    assert len(drawn) == 6


def test_each_layer_is_averaged_over_those_who_sent_it() -> None:
    server = {f"layer{i}.{f}": torch.zeros(1, 1) for i in (0, 1) for f in "AB"}
    inbox = {
        "layer0.A": torch.tensor([[3 * 1.0 + 1 * 5.0]]),
        "weight layer0.A": torch.tensor(4.0),
        "layer1.B": torch.tensor([[2 * 7.0]]),
        "weight layer1.B": torch.tensor(2.0),
        "weight": torch.tensor(8.0),
    }
    for normalize, expected in ((True, (2.0, 7.0)), (False, (1.0, 1.75))):
        trainer = FedRand(sublayers=0.5, normalize=normalize)
        after, _ = trainer.aggregate(toy_writing_task(), server, inbox, at())
        assert (after["layer0.A"].item(), after["layer1.B"].item()) == expected
        assert not after["layer0.B"].any()
        assert not after["layer1.A"].any()


def test_a_server_completes_layer_by_layer(play: Play) -> None:
    """Each tensor is as the client last sent it, and the server's where it never did."""
    played = play(FedRand(sublayers=0.4, learning_rate=0.01), rounds=5)
    sent = [played.uploads(index)["client-0"] for index in range(5)]
    rebuilt = played.rebuild("server")
    down = next(m for m in played.rounds[4].messages if m.receiver == "client-0")
    oldest = 4
    for name, tensor in down.tensors.items():
        rounds = [index for index in range(5) if name in sent[index]]
        if rounds:
            upload = sent[rounds[-1]]
            tensor = upload[name] / upload[f"weight {name}"]
            oldest = min(oldest, rounds[-1])
        assert torch.equal(rebuilt.model[name], tensor)
    assert rebuilt.staleness == 4 - oldest


def test_no_such_layer_is_refused(task: Task) -> None:
    with pytest.raises(
        ConfigError, match=r"'layer9' was named in only.*layer0, layer1"
    ):
        FedRand(only=("layer9",)).start(task, Seeds(0))


def test_many_bits_are_nearly_those_of_plain_uploads(play: Play) -> None:
    """Rounds that go on from rounded uploads stay within some steps of the grid."""
    plain = play(FedRand(learning_rate=1e-4), rounds=3)
    fine = play(FedRand(learning_rate=1e-4, upload_bits=16), rounds=3)
    torch.testing.assert_close(dict(fine.server), dict(plain.server), rtol=0, atol=1e-4)


@pytest.mark.parametrize("bits", [8, 4])
def test_bytes_are_those_of_the_bits(bits: int, play: Play) -> None:
    """Three tensors of 64 numbers, the range and bits of each, and one weight."""
    rounds = play(FedRand(upload_bits=bits), rounds=1).rounds
    up = [bytes_sent([m])["up"] for m in rounds[0].messages if m.sender != "server"]
    assert up == [3 * (64 * bits // 8 + 12) + 4] * 3
    assert all(m.kind == "individual-update" for m in rounds[0].messages[3:])


def test_the_server_reads_exactly_what_was_sent(play: Play) -> None:
    """Its mean, its reconstruction and what moved, all from the codes alone."""
    played = play(FedRand(upload_bits=2, send_a=1.0, learning_rate=0.01), rounds=1)
    start = play(FedRand(upload_bits=2, send_a=1.0), rounds=0).server
    numbers, sizes = {}, {}
    for client, sent in played.uploads().items():
        stacked = {n: t.unsqueeze(0) for n, t in sent.items()}
        codes = {n: t for n, t in stacked.items() if n != "weight A"}
        numbers[client] = with_numbers(codes, start)["layer0.A"][0]
        assert len(numbers[client].unique()) <= 4
        sizes[client] = sent["weight A"]
        moved = update_deltas(stacked, start)["layer0.A"][0]
        torch.testing.assert_close(moved, numbers[client] - start["layer0.A"])
    mean = sum(sizes[c] * numbers[c] for c in sizes) / sum(sizes.values())
    torch.testing.assert_close(played.server["layer0.A"], mean)
    model = played.rebuild("server").model
    torch.testing.assert_close(model["layer0.A"], numbers["client-0"])
    assert torch.equal(model["layer0.B"], start["layer0.B"])


def test_stochastic_rounding_is_drawn_from_the_seed(play: Play) -> None:
    def sent(seed: int, **settings: Any) -> Tensors:
        trainer = FedRand(upload_bits=4, send_a=1.0, learning_rate=1e-30, **settings)
        start = play(trainer, rounds=0).server
        played = play(trainer, rounds=0, seed=seed)
        played.federation.server = start
        played.step()
        return played.uploads()["client-0"]

    first, again, other = (sent(seed)["layer0.A"] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    near = [sent(seed, rounding="nearest") for seed in (1, 2)]
    assert torch.equal(near[0]["layer0.A"], near[1]["layer0.A"])
    assert RANGE + "layer0.A" in near[0]


def test_masks_over_codes_are_refused() -> None:
    with pytest.raises(ConfigError, match="uses each of them by itself"):
        make_config(
            "fedrand", secure_aggregation="masked", settings={"upload_bits": "8"}
        )
