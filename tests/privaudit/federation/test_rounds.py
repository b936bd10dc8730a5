from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch

from privaudit import Auditor, train
from privaudit.core.devices import records_at_once, use_memory, use_records_at_once
from privaudit.core.errors import TrainingError
from privaudit.core.seeds import Seeds
from privaudit.datasets.dataset import DATASETS
from privaudit.federation.rounds import (
    Federation,
    RoundRecord,
    Stacking,
    _records_that_fit,
    give_away,
    memory_of_step,
    participants_of,
    run_round,
)
from privaudit.federation.threat_models import peer, server
from privaudit.federation.trainer import Task, Trainer
from privaudit.federation.transcript import SERVER, bytes_sent
from privaudit.privacy.events import MechanismEvent
from privaudit.runs.config import build_trainer
from privaudit.runs.run import trained_clients
from privaudit.trainers.coop import CoOp
from privaudit.trainers.dp_fpl import DPFPL
from privaudit.trainers.fedpt import FedPT
from privaudit.trainers.pfedmoap import PFedMoAP
from privaudit.trainers.prompt_fedamp import PromptFedAMP
from privaudit.trainers.promptfl import PromptFL
from tests.conftest import common_cache, toy_records, train_and_stop
from tests.small_records import text_data
from tests.small_transformers import save
from tests.toy_federation import Play, Shards, assert_close_messages, joined


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
    assert_close_messages(together, alone)


@pytest.mark.parametrize("trainer", [PromptFL(batch_size=0), PFedMoAP(epochs=3)])
def test_federations_side_by_side_equal_each_alone(
    trainer: Trainer, task: Task
) -> None:
    """Only the names of random streams tell shadow federations apart.

    Nor does a gate learn of another federation's clients.
    """

    def begin(number: int) -> Federation:
        held = {
            client: toy_records(count // 2, seed=20 * number + i)
            for i, (client, count) in enumerate(task.candidates.items())
        }
        return Federation.begin(trainer, task, held, Seeds(number), f"shadow-{number}")

    together, alone = [begin(1), begin(2)], [begin(1), begin(2)]
    for index in range(3):
        for side_by_side in (together, alone[:1], alone[1:]):
            run_round(trainer, task, side_by_side, index)
    for one, lone in zip(together, alone, strict=True):
        for found, want in ((one.server, lone.server), (one.kept, lone.kept)):
            torch.testing.assert_close(dict(found), dict(want), rtol=1e-4, atol=1e-5)


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


EPOCHS = 3


@dataclass(frozen=True)
class Watched(PromptFL):
    """Notes how many clients train together, and in how many steps at most."""

    epochs: int = EPOCHS

    def local_update(self, *arguments: Any) -> Any:
        calls.append((len(arguments[1]), arguments[-1].steps))
        return super().local_update(*arguments)


calls: list[tuple[int, int | None]] = []


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


def test_one_step_is_measured_and_numbers_stay(play: Play) -> None:
    together = play(Watched(), rounds=2)
    assert calls == [(3, None)] * 2
    calls.clear()
    with use_memory("1kB"):
        alone = play(Watched(), rounds=1, cohort_size=Stacking(5))
    assert calls == [(1, 1)] + [(1, None)] * 3
    assert_close_messages(together.rounds[0].messages, alone.rounds[0].messages)


def test_what_fits_is_measured_once(play: Play, task: Task, shards: Shards) -> None:
    stacking = Stacking(5)
    with use_memory("1GB"):
        played = play(Watched(), rounds=3, cohort_size=stacking)
    assert calls == [(1, 1)] + [(3, None)] * 3
    assert stacking.fit == 5
    federation = played.federation
    at = federation.at(0, 1.0)
    place = federation.inputs(played.trainer, task, at)[1]
    taken = memory_of_step(played.trainer, task, place, at)
    with use_memory(2 * taken):  # two of three
        calls.clear()
        play(Watched(), rounds=1, cohort_size=Stacking(5))
    assert calls == [(1, 1), (2, None), (1, None)]


def test_what_does_not_fit_for_one_client_is_found_in_parts(play: Play) -> None:
    """To the same numbers, in as large parts as fit; whoever names parts has those."""
    trainer = FedPT(epochs=1, batch_size=0)
    whole = play(trainer, rounds=1)
    at = whole.federation.at(0, 1.0)
    place = whole.federation.inputs(trainer, whole.task, at)[0]
    measure = partial(memory_of_step, trainer, whole.task, place, at)
    taken = measure()
    with use_records_at_once(1):
        least = measure()
    assert least < 0.7 * taken
    stacking, limit = Stacking(5), (least + taken) // 2
    with use_memory(limit):
        parts = play(trainer, rounds=1, cohort_size=stacking)
    assert stacking.fit == 1
    assert 1 < stacking.records < max(whole.task.candidates.values())
    with use_records_at_once(stacking.records):
        assert measure() <= limit
    assert_close_messages(whole.messages, parts.messages, atol=1e-4, rtol=0)
    named = Stacking(5)
    with use_memory(limit):
        play(replace(trainer, micro_batch=2), rounds=1, cohort_size=named)
    assert named.records == 0


def test_parts_are_never_more_than_a_client_has() -> None:
    """Even where every part is measured to fit, as where a measurement wavers."""
    asked: list[int] = []

    def measure() -> int:
        asked.append(records_at_once())
        return 50

    assert _records_that_fit(measure, whole=100, limit=60, most=10) == 8
    assert asked == [1, 2, 4, 8]
    assert _records_that_fit(measure, whole=100, limit=60, most=1) == 1
    assert _records_that_fit(measure, whole=50, limit=40, most=10) == 0
    assert _records_that_fit(measure, whole=100, limit=40, most=10) == 1


def test_what_is_measured_tells_nothing_of_members(
    play: Play, task: Task, shards: Shards
) -> None:
    """Its records are public, and its draws nobody's."""
    trainer = build_trainer("dp-fpl", {"epsilon": 8.0, "batch_size": 4})
    taken = set()
    for count in (2, 9):
        few = {c: shard.pick(torch.arange(count)) for c, shard in shards.items()}
        for key in (1, 2):
            federation = play(trainer, rounds=0, shards=few).federation
            federation = replace(federation, secrets=Seeds(0))
            at = federation.at(0, 1.0)
            place = federation.inputs(trainer, task, at)[key]
            taken.add(memory_of_step(trainer, task, place, at))
    assert len(taken) == 1


SHORT: dict[str, Any] = {"seed": 0, "rounds": 2, "epochs": 1}
OF_FOUR: dict[str, Any] = {**SHORT, "clients": 4, "shots": 6}


@pytest.mark.parametrize("more", [True, False])
def test_a_resumed_run_stacks_as_many_as_before(tmp_path: Path, more: bool) -> None:
    """Whatever memory there is then: so it comes out to the same bytes."""
    options = {**OF_FOUR, "folder": tmp_path}
    plain = train(name="plain", **options)
    with use_memory("700kB"):
        whole = train(name="whole", **options)
        train_and_stop(1, **options)
    with use_memory("1GB" if more else "1kB"):
        cut = train(name="cut", resume=True, **options)
    fit = whole.header["stacked_clients"]
    assert 1 <= fit < 4
    assert cut.header["stacked_clients"] == fit
    assert cut.transcript.head == whole.transcript.head
    assert "stacked_clients" not in plain.header
    assert plain.config.short_hash == whole.config.short_hash
    assert_close_messages(plain.transcript, whole.transcript, rtol=0, atol=1e-3)


def test_a_resumed_run_has_the_parts_that_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DATASETS.names()
    monkeypatch.setitem(DATASETS._entries, "some-texts", text_data)
    options: dict[str, Any] = {**SHORT, "clients": 2, "folder": tmp_path}
    options |= {"model": save(tmp_path / "model", "encoder-bert"), "tested": 4}
    options |= {"dataset": "some-texts", "test_share": 0.2, "public_share": 0.2}
    with use_memory("200kB"):
        whole = train("fedpt", name="whole", **options)
        train_and_stop(1, "fedpt", **options)
    with use_memory("1GB"):
        cut = train("fedpt", name="cut", resume=True, **options)
    assert 1 <= whole.header["records_at_once"] < 20
    assert whole.header["records_at_once"] == cut.header["records_at_once"]
    assert cut.transcript.head == whole.transcript.head


def test_a_run_that_nobody_limited_is_resumed_as_it_was(tmp_path: Path) -> None:
    options = {**OF_FOUR, "folder": tmp_path}
    plain = train(name="plain", **options)
    train_and_stop(1, **options)
    near = copytree(tmp_path / "cut", tmp_path / "near").name
    with use_memory("1kB"):
        cut = train(name="cut", resume=True, **options)
        anew = train(name=near, resume="near", **options)
    assert "stacked_clients" not in cut.header
    assert cut.transcript.head == plain.transcript.head
    assert anew.header["stacked_clients"] == 1


def test_shadow_models_are_stacked_as_memory_holds_them(tmp_path: Path) -> None:
    run = train(
        folder=tmp_path / "runs", rounds=1, epochs=1, clients=2, shots=6, seed=0
    )
    scores = []
    for limit in (None, "700kB"):
        copied = copytree(run.path, tmp_path / str(limit))
        with use_memory(limit):
            audit = Auditor(str(copied)).attack(clients=1, shadows=6)
        scores.append(audit.results["shadow"].clients[0].scores)
    assert abs(scores[0] - scores[1]).max() < 0.1  # 9 sd, over six perturbations


QUICK: dict[str, Any] = {**SHORT, "participation": 0.5}


def senders(record: RoundRecord) -> list[str]:
    return [m.sender for m in record.messages if m.is_update]


def test_without_dropout_nothing_is_lost(play: Play, shards: Shards) -> None:
    rounds = play(PromptFL(epochs=1), rounds=12, dropout=0.0).rounds
    assert all(senders(record) == list(shards) for record in rounds)


def test_about_so_many_are_lost_and_the_mean_is_of_the_others(
    play: Play, shards: Shards
) -> None:
    played = play(PromptFL(epochs=1), rounds=1, dropout=0.5)
    sums = played.uploads().values()
    assert 0 < len(sums) < len(shards)
    mean = sum(s["context"] for s in sums) / sum(s["weight"] for s in sums)
    assert torch.allclose(played.server["context"], torch.as_tensor(mean))
    many = play(PromptFL(epochs=1), rounds=60, dropout=0.5).rounds
    assert 60 < sum(len(senders(r)) for r in many) < 120  # of 180, by the coin


@pytest.mark.parametrize("trainer", [PromptFL(epochs=1), PromptFedAMP(epochs=1)])
def test_a_round_in_which_all_are_lost_changes_nothing(
    trainer: Trainer, play: Play
) -> None:
    before = play(trainer, rounds=0).server
    played = play(trainer, rounds=3, dropout=0.999)
    assert [senders(record) for record in played.rounds] == [[], [], []]
    for name, tensor in before.items():
        assert torch.equal(played.server[name], tensor)


def test_lost_noise_is_missing_in_the_certificate(play: Play, shards: Shards) -> None:
    trainer = DPFPL(epsilon=8.0, noise_at="distributed")
    whole, lossy = (
        play(trainer, rounds=1, dropout=dropout).rounds[0] for dropout in (0.0, 0.5)
    )
    there = len(senders(lossy))
    assert 0 < there < len(shards)
    full, less = _summed(whole), _summed(lossy)
    share = there / len(shards)
    assert less.noise_multiplier == pytest.approx(full.noise_multiplier * share**0.5)
    assert less.parties == there


def _summed(record: RoundRecord) -> MechanismEvent:
    (found,) = (e for e in record.events if e.noise_at == "distributed")
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with common_cache(tmp_path_factory):
        folder: Path = tmp_path_factory.mktemp("runs")
        yield train(folder=folder, dropout=0.4, **QUICK)


def test_a_run_loses_uploads_and_only_those_who_arrived_are_attacked(run: Any) -> None:
    sent = {m.sender for m in run.transcript if m.kind == "update"}
    asked = {m.receiver for m in run.transcript if m.kind == "broadcast"}
    assert set(trained_clients(run, "server")) == sent
    assert sent < asked
    again = train(folder=run.path.parent, name="again", dropout=0.4, **QUICK)
    assert again.header["progress"]["head"] == run.header["progress"]["head"]
