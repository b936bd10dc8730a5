"""Attacks on what is sent: in federations of others, what carries the verdict and why."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from privaudit.attacks import projection_residual
from privaudit.attacks.joint_regression import JointRegression
from privaudit.attacks.projection_residual import (
    ProjectionResidual,
    StackedLayer,
    promised,
)
from privaudit.auditing import record_gradients
from privaudit.auditing.auditor import Auditor
from privaudit.auditing.parts.closeness import CLOSENESS
from privaudit.auditing.record_gradients import (
    Move,
    chosen_moves,
    gram_blocks,
    layers_of,
    of_one_move,
)
from privaudit.core.errors import AttackError, ViewError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Tensors
from privaudit.federation.masked_sum import SECURE_SUMS
from privaudit.federation.trainer import Round, Task
from privaudit.federation.uploads import quantised, with_numbers
from privaudit.models.layer_factors import LayerFactors
from privaudit.privacy.certificate import batch_share
from privaudit.recording.owner import use_owner
from privaudit.recording.recorder import Recorder
from privaudit.runs.run import load_run
from privaudit.statistics.roc import pooled_auroc
from privaudit.trainers.dp_promptfl import DPPromptFL
from privaudit.trainers.lora_fedavg import LoraFedAvg
from privaudit.trainers.prompt_fedper import PromptFedPer
from privaudit.trainers.promptfl import PromptFL
from tests.conftest import toy_records, with_noise
from tests.privaudit.recording.small_federation import (
    CANDIDATES,
    NAMES,
    REFERENCE,
    ROUNDS,
    Linear,
    Say,
    X,
    audited,
    drawn_start,
    record,
    say_update,
    start,
)
from tests.toy_federation import ALL, CLIENTS, Play, play_toy
from tests.toy_language import toy_shards, toy_writing_task

BOTH = {"joint-regression", "projection-residual"}
DRAWN = torch.Generator().manual_seed(7)
NAMED, TOWER = torch.randn(4, 6, generator=DRAWN), torch.randn(16, 192, generator=DRAWN)


@dataclass
class Hardly(Linear):
    """Clients that take one step, so short that nothing is learned."""

    steps: int = 1

    def local_update(
        self, received: Tensors, positions: np.ndarray, seed: int
    ) -> dict[str, Tensor]:
        sent = super().local_update(received, positions, seed)
        return {n: received[n] + 1e-4 * (t - received[n]) for n, t in sent.items()}


class Inferring(Hardly):
    def query(self, tensors: Tensors, positions: np.ndarray) -> Tensor:
        with torch.inference_mode():
            return super().query(tensors, positions)


class Elsewhere(Hardly):
    def query(self, tensors: Tensors, positions: np.ndarray) -> Any:
        return (
            X[positions].numpy() @ tensors["weight"].numpy().T + tensors["bias"].numpy()
        )


class OfClasses(Hardly):
    """What is sent multiplies texts of classes, which are the same for all records."""

    def query(self, tensors: Tensors, positions: np.ndarray) -> Tensor:
        texts = torch.eye(X.shape[1]).flip(0).expand(len(positions), -1, -1)
        said = X[positions][:, None] @ (texts @ tensors["weight"].T)
        return said[:, 0] + tensors["bias"]


class Begun(PromptFL):
    """Every federation of it starts from the same prompt."""

    def start(self, task: Task, seeds: Seeds) -> Tensors:
        return super().start(task, Seeds(0))


class Keeping(Hardly):
    """What clients do not send is zero in the owner's hands."""

    def query(self, tensors: Tensors, positions: np.ndarray) -> Tensor:
        return super().query({**start(), **tensors}, positions)


class Prompted(Hardly):
    """Learns a prompt, of which a frozen tower makes a text for each class."""

    def query(self, tensors: Tensors, positions: np.ndarray) -> Tensor:
        return X[positions] @ (torch.tanh(NAMED @ tensors["prompt"]) @ TOWER).T


class Asked:
    """An owner's side without training: models can be asked, and nothing replayed."""

    def __init__(self, owner: Linear) -> None:
        self.labels, self.query = owner.labels, owner.query


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("weights") / "run"
    record(place, owner=Hardly(), trainer="SGD", played={"begin": drawn_start(0)})
    return place


@pytest.mark.parametrize("learns", [True, False])
def test_labels_that_nobody_knows_are_tried(tmp_path: Path, learns: bool) -> None:
    """Certain where nothing hides; nothing is found where members were not used."""
    folder = recorded(tmp_path, say_update, Linear(learns, steps=1))
    attack = "joint-regression:labels=unknown"
    audit = audited(folder, owner=Asked(Linear()), attacks=[attack])
    found = audit.results[attack].auroc
    assert found.value > 0.99 if learns else found.low < 0.5 < found.high


def test_more_labels_than_memory_holds_are_said(play: Play) -> None:
    adversary, targets = play(PromptFL(epochs=1)).watched(
        candidates={c: toy_records(3000, 60 + n) for n, c in enumerate(CLIENTS)}
    )
    attack = JointRegression(labels="unknown")
    assert "3000 records are to be tried" in attack.why_not(adversary, targets)


@pytest.mark.parametrize(("steps", "share"), [(1, 4 / ALL), (2, 1.0)])
def test_rounds_of_one_private_batch_are_read_as_mixtures(
    play: Play, steps: int, share: float
) -> None:
    played = play(DPPromptFL(steps=steps, batch_size=4, epsilon=4.0))
    made = [event.to_json() for one in played.rounds for event in one.events]
    assert batch_share(made) == pytest.approx(share)
    adversary, targets = played.watched()
    one, other = (
        JointRegression()(replace(adversary, batch_share=q), targets)[0].scores
        for q in (1.0, batch_share(made))
    )
    assert np.array_equal(one, other) == (share == 1)


def test_recorded_prompts_promise_nothing(tmp_path: Path) -> None:
    begin = {"prompt": torch.randn(6, 16, generator=torch.Generator().manual_seed(0))}
    record(tmp_path / "run", owner=Prompted(), played={"begin": begin})
    audit = audited(tmp_path / "run", owner=Asked(Prompted()))
    assert audit.results["joint-regression"].auroc.value > 0.99
    assert audit.headline.attack == "loss-threshold"


def test_attacks_share_moves_while_there_is_room(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    adversary, _ = play(PromptFL(epochs=1)).watched()
    one, again = (chosen_moves(adversary, CLIENTS[0], 8) for _ in range(2))
    assert one is again
    assert chosen_moves(adversary, CLIENTS[1], 8) is not one
    monkeypatch.setattr(record_gradients, "KEPT_NUMBERS", 0)
    one, again = (chosen_moves(adversary, CLIENTS[0], 7) for _ in range(2))
    assert one is not again


@pytest.mark.parametrize("scenario", ["server-reconstruct", "server-aggregate"])
def test_weights_carry_the_verdict_where_models_learned_nothing(
    folder: Path, scenario: str
) -> None:
    audit = audited(folder, scenario, owner=Asked(Hardly()))
    assert audit.headline.attack in BOTH
    assert audit.auroc.value > 0.99
    assert audit.results["loss-threshold"].auroc.value < 0.8


def test_public_records_are_shown_to_a_model_once_for_each_broadcast(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And candidates once a move; at the last, gradients of one text of each layout."""
    asked = Counter[tuple[int, bool]]()

    def counted(*given: Any, has_gradients: bool = True) -> Any:
        asked[len(given[2]), has_gradients] += 1
        return layers_of(*given, has_gradients=has_gradients)

    with use_owner(Asked(Hardly())):
        auditor = Auditor(load_run(folder))
        prepared = auditor.prepare(auditor.plan("server-reconstruct", [], 0))
        monkeypatch.setattr(projection_residual, "layers_of", counted)
        ProjectionResidual()(*prepared)
    assert asked == {
        (REFERENCE, False): ROUNDS,
        (CANDIDATES, False): len(NAMES) * ROUNDS,
        (REFERENCE, True): 1,
        (CANDIDATES, True): len(NAMES),
    }
    task = toy_writing_task()
    played = play_toy(LoraFedAvg(), task=task, shards=toy_shards(task))
    ProjectionResidual()(*played.watched())
    assert asked[3, True] == 1 + len(task.clients)


def test_gradients_of_models_that_write_are_taken_where_moves_begin() -> None:
    task = toy_writing_task()
    watched = play_toy(LoraFedAvg(), task=task, shards=toy_shards(task)).watched()
    adversary, (target, *_) = watched
    move = chosen_moves(adversary, target.client, 1)[0]
    farther = replace(move, deltas={n: 2 * d for n, d in move.deltas.items()})
    blocks = [gram_blocks(adversary, m, target.candidates) for m in (move, farther)]
    assert all(torch.equal(a.gram, b.gram) for a, b in zip(*blocks, strict=True))
    assert {len(s.by_round) for s in JointRegression(rounds=3)(*watched)} == {3}
    last = torch.arange(len(target.candidates)).flip(0)  # of several lengths
    both = target.candidates, target.candidates.pick(last)
    one, other = [layers_of(adversary, move.received, r, move.deltas) for r in both]
    for name, layer in one.items():
        torch.testing.assert_close(layer.inputs[last], other[name].inputs)


def test_clients_that_send_other_layers_are_attacked_together(tmp_path: Path) -> None:
    """One sends a layer's weight alone, and the others its bias, too."""

    def say(
        recorder: Recorder, index: int, client: str, sent: Tensors, count: int
    ) -> None:
        say_some = without("bias") if client == NAMES[0] else say_update
        say_some(recorder, index, client, sent, count)

    place = recorded(tmp_path, say, Hardly())
    audit = audited(place, owner=Asked(Keeping()), attacks=["projection-residual"])
    assert audit.results["projection-residual"].auroc.value > 0.9


def test_a_view_without_moves_is_an_error(folder: Path) -> None:
    with use_owner(Asked(Hardly())):
        auditor = Auditor(load_run(folder))
        adversary, targets = auditor.prepare(auditor.plan("server-reconstruct", [], 0))
        sent = tuple(m for m in adversary.view.messages if m.kind == "broadcast")[:1]
        blind = replace(adversary, view=replace(adversary.view, messages=sent))
        with pytest.raises(ViewError):
            ProjectionResidual()(blind, targets)


def test_inputs_that_all_records_share_are_no_attack(folder: Path) -> None:
    audit = audited(folder, owner=Asked(OfClasses()))
    assert "projection-residual" not in audit.results
    assert "is the same for all records" in audit.scenario.notes["attacks"]


def test_without_gradients_inputs_are_enough(folder: Path) -> None:
    audit = audited(folder, owner=Asked(Inferring()))
    assert "joint-regression" not in audit.results
    assert "joint-regression was left out: " in audit.scenario.notes["attacks"]
    assert not audit.part(CLOSENESS).missing  # of what the view does not show
    assert audit.results["projection-residual"].auroc.low > 0.5  # of 12 members


def test_models_outside_of_torch_leave_both_out(folder: Path) -> None:
    audit = audited(folder, owner=Asked(Elsewhere()))
    assert not BOTH & audit.results.keys()
    assert audit.headline.attack == "loss-threshold"
    with pytest.raises(AttackError, match="multiplies no layer's inputs"):
        audited(folder, owner=Asked(Elsewhere()), attacks=["projection-residual"])


def without(*names: str) -> Say:
    """Let clients send all but some tensors."""

    def say(
        recorder: Recorder, index: int, client: str, sent: Tensors, count: int
    ) -> None:
        kept = {n: t for n, t in sent.items() if n not in names}
        recorder.update(index, client, kept, weight=count)

    return say


def in_half(
    recorder: Recorder, index: int, client: str, sent: Tensors, count: int
) -> None:
    halved = {n: t.half() for n, t in sent.items()}
    recorder.update(index, client, halved, weight=count)


def recorded(place: Path, say: Say, owner: Linear) -> Path:
    record(place / "run", owner=owner, played={"say": say, "rounds": 1})
    return place / "run"


@pytest.mark.parametrize("say", [without("bias"), in_half])
def test_what_is_sent_without_a_bias_or_in_half_precision_tells_as_much(
    say: Say, tmp_path: Path
) -> None:
    audit = audited(recorded(tmp_path, say, Linear(steps=1)), owner=Asked(Keeping()))
    assert audit.headline.attack in BOTH
    assert audit.auroc.value > 0.99


def test_uploads_without_the_layer_leave_the_span_out(tmp_path: Path) -> None:
    folder = recorded(tmp_path, without("weight"), Linear(steps=1))
    audit = audited(folder, owner=Asked(Keeping()))
    assert audit.headline.attack not in BOTH
    said = audit.scenario.notes["attacks"]
    assert "projection-residual was left out: What was sent" in said


def test_a_client_who_sends_no_layer_leaves_the_others_attacked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does whose coin chose other tensors; nothing is known of its records."""

    def chosen(adversary: Any, client: str, most: int) -> Sequence[Move]:
        moves = chosen_moves(adversary, client, most)
        if client != "client-0":
            return moves
        return [replace(m, deltas={"bias": m.deltas["bias"]}) for m in moves]

    monkeypatch.setattr(projection_residual, "chosen_moves", chosen)
    found = audited(folder, owner=Asked(Hardly())).results["projection-residual"]
    scores = {one.client: one.scores for one in found.clients}
    assert not scores.pop("client-0").any()
    assert all(each.all() for each in scores.values())


def test_a_tuple_in_place_of_logits_is_refused(folder: Path) -> None:
    class Pairs(Hardly):
        def query(self, tensors: Tensors, positions: np.ndarray) -> Any:
            return super().query(tensors, positions), None

    with pytest.raises(AttackError, match="A tuple was given in place of a tensor"):
        audited(folder, owner=Asked(Pairs()))


@pytest.mark.parametrize("trainer", [PromptFL(epochs=1, batch_size=0), DPPromptFL()])
def test_masked_uploads_are_read_as_their_sum(trainer: Any, play: Play) -> None:
    """Which moves as the mean does, whether uploads say a weight or not."""
    masking = SECURE_SUMS.find("masked")(bytes(32), 0.0, "all")
    adversary, targets = play(trainer, masking=masking).watched()
    sent = [m.tensors["context"] for m in adversary.view.broadcasts_to(CLIENTS[0])]
    with pytest.raises(ViewError, match="masked"):
        adversary.view.updates_of(CLIENTS[0])
    ours, *others = (m.deltas for m in chosen_moves(adversary, CLIENTS[0], 0))
    same = [m.deltas for m in chosen_moves(adversary, CLIENTS[1], 0)]
    assert all(torch.equal(ours[n], same[0][n]) for n in ours)
    assert len(others) == len(same) - 1
    torch.testing.assert_close(ours["context"], sent[1] - sent[0], rtol=0, atol=1e-5)
    scores = JointRegression(rounds=1)(adversary, targets)
    assert [one.expected for one in scores] == [0.0] * len(CLIENTS)  # of a prompt


def test_a_number_s_rounding_is_that_of_the_format_in_which_it_was_sent() -> None:
    weights = torch.randn(400, 50, generator=torch.Generator().manual_seed(0))
    start, at = {"w": torch.zeros_like(weights)}, Round(0, Seeds(0), ())
    codes = quantised("w", weights[None], 8, None)
    for sent, given in (
        ({"w": weights.half()}, weights.half().float()),
        ({"w": weights.bfloat16().float()}, weights.bfloat16().float()),
        ({n: t[0] for n, t in codes.items()}, with_numbers(codes, start)["w"][0]),
    ):
        error = float((given - weights).square().mean().sqrt())
        assert Move.of(sent, start, at).floors["w"] == pytest.approx(error, rel=0.05)
    assert Move.of({"w": weights}, start, at).floors["w"] < 1e-7


def test_more_records_than_numbers_have_no_power(play: Play) -> None:
    played = play(PromptFL(epochs=1, batch_size=0))
    many = {c: toy_records(200, 60 + n) for n, c in enumerate(CLIENTS)}
    adversary, targets = played.watched(candidates=many)
    assert "200 records" in JointRegression(rounds=1).why_not(adversary, targets)


def test_numbers_that_are_not_finite_are_said(play: Play) -> None:
    adversary, targets = play(PromptFL(epochs=1)).watched()
    broken = tuple(
        replace(m, tensors={n: t * torch.nan for n, t in m.tensors.items()})
        for m in adversary.view.messages
    )
    blind = replace(adversary, view=replace(adversary.view, messages=broken))
    assert "not finite" in JointRegression().why_not(blind, targets)


def test_twins_and_sums_of_members_are_in_the_span_and_nothing_is_promised() -> None:
    """One-hot records: of e1, e2 and e1 + e2 no span tells who was trained on."""
    places = torch.eye(8, 16)
    candidates = torch.cat([places, places[::2], places[:-1] + places[1:]])
    public = torch.randn(40, 16, generator=torch.Generator().manual_seed(0))
    layer = StackedLayer([LayerFactors(one[:, None]) for one in (candidates, public)])
    deltas = torch.randn(12, 8, generator=torch.Generator().manual_seed(1))
    layer.add((deltas @ places).double(), 0.0)
    scores = layer.scores()[: len(candidates)]
    assert np.ptp(scores) < 1e-6 < scores.min() - layer.scores()[-40:].max()
    assert promised(scores) == 0


@pytest.mark.parametrize("rows", [2, 12])
def test_inputs_that_are_alike_or_nothing_tell_nothing(rows: int) -> None:
    update = torch.randn(rows, 8, generator=torch.Generator().manual_seed(0))
    alike = torch.full((30, 1, 8), 0.1)
    alike += 1e-9 * torch.arange(30)[:, None, None]  # but for rounding
    drawn = torch.randn(30, 1, 8, generator=torch.Generator().manual_seed(1))
    drawn[0] = 0
    found = []
    for inputs in (alike, drawn):
        layer = StackedLayer([LayerFactors(inputs)])
        layer.add(update, 0.0)
        found.append(layer.scores())
    assert not found[0].any()
    assert np.isfinite(found[1]).all()


def test_prompts_multiply_no_inputs(play: Play) -> None:
    adversary, targets = play(PromptFL(epochs=1)).watched()
    assert ProjectionResidual().why_not(adversary, targets)
    assert not ProjectionResidual.applies_to(PromptFL(), None)


def test_coins_that_nobody_used_are_not_found(play: Play) -> None:
    """Members are trained on; other coins are tossed for the same candidates."""
    asked = {c: with_noise(toy_records(24, 50 + n), n) for n, c in enumerate(CLIENTS)}
    shards = {c: records.pick(torch.arange(0, 24, 2)) for c, records in asked.items()}
    played = play(PromptFL(learning_rate=1e-3, epochs=2, batch_size=0), shards=shards)
    scores = JointRegression()(*played.watched(candidates=asked))
    found = []
    for seed in range(200):
        coins = np.random.default_rng(seed).random((len(scores), 24)) < 0.5
        pairs = zip(scores, coins, strict=True)
        groups = [(s.scores[c], s.scores[~c]) for s, c in pairs]
        found.append(pooled_auroc(groups).value)
    # Their standard deviation is 0.07, that of the mean of 200 0.005.
    assert abs(np.mean(found) - 0.5) < 4 * 0.005


class Published(Asked):
    """Says from which public model the federation started."""

    base = start()


@pytest.fixture(scope="module", params=[True, False])
def released(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[bool, Path]:
    """Whether three steps learned of members, and the recorded federation."""
    owner = Linear(request.param, steps=3)
    place = tmp_path_factory.mktemp("released")
    return request.param, recorded(place, say_update, owner)


def test_a_released_average_less_its_public_base_tells_members(
    released: tuple[bool, Path],
) -> None:
    """Certain of 35 members among 72; of members that nobody used, nothing."""
    learns, folder = released
    audit = audited(folder, "prompt-release", owner=Published(Linear()), shadows=0)
    found = [audit.results[name].auroc for name in BOTH]
    assert all(
        one.value > 0.95 if learns else one.low < 0.5 < one.high for one in found
    )
    assert (audit.headline.attack in BOTH) == learns


def test_a_recorded_base_that_nobody_declared_leaves_both_out(
    released: tuple[bool, Path],
) -> None:
    owner = Asked(Linear())
    audit = audited(released[1], "prompt-release", owner=owner, shadows=0)
    assert not BOTH & audit.results.keys()
    assert audit.scenario.notes["attacks"].count("no public base") == 2


def test_released_models_are_compared_with_what_starts_alike(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt that the seed drew has no public base; one that is public has."""
    drawn = play(PromptFL(epochs=1)).watched("released")
    assert "the server's seed drew it" in JointRegression().why_not(*drawn)
    adversary, targets = play(Begun(epochs=1)).watched("released")
    assert [*map(len, of_one_move(adversary, targets))] == [len(CLIENTS)]
    assert len(JointRegression()(adversary, targets)) == len(targets)
    (move,) = chosen_moves(adversary, CLIENTS[0], 0)
    given = targets[0].reconstructed.model["context"]
    assert torch.equal(move.received["context"] + move.deltas["context"], given)
    own = play(PromptFedPer(shared_tokens=1)).watched("released")
    assert [*map(len, of_one_move(*own))] == [1] * len(CLIENTS)
    monkeypatch.delattr(record_gradients, "distinct")  # digested once
    assert [*map(len, of_one_move(adversary, targets))] == [len(CLIENTS)]
    assert [*map(len, of_one_move(*own))] == [1] * len(CLIENTS)
