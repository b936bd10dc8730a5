import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked
from privaudit.federation.batches import Batch
from privaudit.federation.threat_models import find_threat
from privaudit.federation.trainer import TRAINERS, Cohort, Records, Task
from privaudit.trainers.dp_fedotp import DPFedOTP
from privaudit.trainers.dp_fedpgp import DPFedPGP
from privaudit.tuning.prompts.contrast import personal_context, prompts_contrast
from privaudit.tuning.prompts.learning import context_losses, pair_texts
from privaudit.tuning.prompts.optimal_transport import transported_losses
from privaudit.tuning.prompts.private_training import PrivateLocalTrainer
from tests.toy_federation import (
    ALL,
    AT,
    FEW,
    Play,
    Shards,
    context_gradient,
    context_loss,
    emptied,
    neighbours,
)


def start(count: int = 3) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    both = torch.randn(2, count, 3, 5, generator=generator) / 10
    return {"global": both[0], "local": both[1]}


def losses_of(task: Task) -> Any:
    def record_losses(parameters: Stacked, batch: Batch) -> torch.Tensor:
        return context_losses(task, parameters["global"] + parameters["local"], batch)

    return record_losses


def square(parameters: Stacked) -> torch.Tensor:
    """A term that no record enters: half the squared global part."""
    return parameters["global"].square().flatten(1).sum(dim=1) / 2


def test_without_noise_the_sound_steps_are_gradient_descent_by_hand(
    task: Task, cohort: Cohort, shards: dict[str, Records]
) -> None:
    """Everyone is in every sample, sums are divided by 12, and the penalty is added."""
    trainer = PrivateLocalTrainer(batch_size=ALL, steps=3, learning_rate=0.2)
    trained, _ = trainer.train(
        task, cohort, start(), losses_of(task), AT, penalty=square
    )
    for row, shard in enumerate(shards.values()):
        one, other = start()["global"][row], start()["local"][row]
        for _ in range(3):
            gradient = context_gradient(task, one + other, shard, "sum") / ALL
            one, other = one - 0.2 * (gradient + one), other - 0.2 * gradient
        torch.testing.assert_close(trained["global"][row], one)
        torch.testing.assert_close(trained["local"][row], other)


@pytest.mark.parametrize("mode", ["sound", "published-paper", "published-code"])
def test_a_clip_norm_beyond_all_gradients_clips_nothing(
    mode: Any, task: Task, cohort: Cohort
) -> None:
    found = [
        PrivateLocalTrainer(mode=mode, epsilon=epsilon, clip_norm=1e6).gradients(
            task, cohort, start(), losses_of(task), AT, square
        )[0]
        for epsilon in (None, 1.0)
    ]
    for name in found[0]:
        torch.testing.assert_close(found[0][name], found[1][name])


@pytest.mark.parametrize("mode", ["published-paper", "published-code"])
def test_a_published_batch_gradient_is_as_long_as_the_clip_norm_allows(
    mode: Any, task: Task, cohort: Cohort
) -> None:
    trainer = PrivateLocalTrainer(mode=mode, epsilon=1.0, clip_norm=0.01)
    found, _ = trainer.gradients(task, cohort, start(), losses_of(task), AT, square)
    for tensor in found.values():
        torch.testing.assert_close(
            tensor.flatten(1).norm(dim=1), torch.full((3,), 0.01)
        )


@FEW
@given(gone=st.integers(0, 8), clip=st.floats(0.05, 20))
def test_one_record_moves_all_parameters_together_by_at_most_the_clip_norm(
    gone: int, clip: float, task: Task, shards: dict[str, Records]
) -> None:
    """The sensitivity that the certificate takes for granted, in mode "sound"."""
    trainer = PrivateLocalTrainer(epsilon=1.0, clip_norm=clip, batch_size=ALL)
    with_it, without = (
        trainer.gradients(task, some, start(1), losses_of(task), AT, square)[0]
        for some in neighbours(shards["client-1"], gone)
    )
    moved = torch.cat([(with_it[n] - without[n]).flatten() for n in with_it])
    assert 0 < float(moved.norm()) * trainer.divisor(task) <= clip * 1.0001


@FEW
@given(gone=st.integers(0, 8), clip=st.floats(0.05, 20), rate=st.floats(0.01, 2))
def test_one_record_moves_a_published_prompt_by_at_most_two_clips_times_the_rate(
    gone: int, clip: float, rate: float, task: Task, shards: dict[str, Records]
) -> None:
    trainer = PrivateLocalTrainer(
        mode="published-paper", clip_norm=clip, learning_rate=rate
    )
    with_it, without = (
        trainer.train(task, some, start(1), losses_of(task), AT)[0]
        for some in neighbours(shards["client-1"], gone)
    )
    for name in with_it:
        moved = float((with_it[name] - without[name]).norm())
        assert moved <= 2 * clip * rate * 1.0001 + 1e-6


def test_every_step_has_a_sample_and_noise_of_its_own(
    task: Task, shards: dict[str, Records]
) -> None:
    """A client without records walks at random: its steps' noise adds up."""
    nobody = task.public.pick(torch.zeros(len(task.public)).bool())
    walks = []
    for steps in (1, 4):
        trainer = PrivateLocalTrainer(epsilon=4.0, steps=steps, learning_rate=1.0)
        cohort = Cohort.of([f"c{i}" for i in range(60)], [nobody] * 60)
        begin = {n: p.expand(60, 3, 5) for n, p in start(1).items()}
        done, loss = trainer.train(task, cohort, begin, losses_of(task), AT)
        assert not loss.any()
        moved = torch.cat([(done[n] - begin[n]).flatten() for n in begin])
        walks.append(float(moved.std()) / trainer.noise_std(task))
    # 1,800 draws: a standard error of 1.7 %.
    assert walks == pytest.approx([1.0, 2.0], rel=0.08)


def test_all_steps_of_all_rounds_are_paid_for(task: Task) -> None:
    few, many = (PrivateLocalTrainer(epsilon=2.0, steps=steps) for steps in (1, 4))
    assert many.noise_multiplier(task) > 1.5 * few.noise_multiplier(task)
    (event,) = many.steps_event(task, 3)
    assert (event.release, event.steps, event.sampling) == ("upload", 4, "poisson")
    assert event.sensitivity == 1.0


def test_the_events_of_published_noise_have_the_units_of_what_is_noised(
    task: Task,
) -> None:
    """The same standard deviation; a prompt moves by 0.01 of what its gradient does."""
    paper, code = (
        PrivateLocalTrainer(mode=mode, epsilon=0.4, learning_rate=0.01)
        for mode in ("published-paper", "published-code")
    )
    (prompt,) = paper.noise_event(task, "global", "client", 3)
    (gradient,) = code.noise_event(task, "global", "client", 3)
    std = math.sqrt(task.rounds * math.log(1e5)) / 0.4 * 10 / 32
    assert paper.noise_std(task) == pytest.approx(std)
    assert gradient.noise_multiplier * gradient.clip_norm == pytest.approx(std)
    assert prompt.noise_multiplier * prompt.clip_norm == pytest.approx(std)
    assert prompt.clip_norm == pytest.approx(0.1)
    assert prompt.sensitivity == gradient.sensitivity == 2.0


def test_the_codes_descent_has_momentum_and_decay_by_hand() -> None:
    trainer = PrivateLocalTrainer(mode="published-code", learning_rate=0.1)
    state = trainer.begin({"u": torch.tensor([2.0]), "still": torch.tensor([1.0])})
    velocity, value = 0.0, 2.0
    for gradient in (1.0, -0.5):
        state = trainer.descend(state, {"u": torch.tensor([gradient])})
        velocity = 0.9 * velocity + gradient + 5e-4 * value
        value -= 0.1 * velocity
    assert state["u"].item() == pytest.approx(value)
    assert state["still"].item() == 1.0
    plain = PrivateLocalTrainer(learning_rate=0.1)
    moved = plain.descend(plain.begin({"u": torch.tensor([2.0])}), {"u": torch.ones(1)})
    assert moved == {"u": torch.tensor([1.9])}


def test_what_is_not_clipped_tells_no_mechanism(task: Task) -> None:
    for mode in ("sound", "published-code"):
        trainer = PrivateLocalTrainer(mode=mode)
        assert trainer.steps_event(task, 3) == ()
        assert trainer.noise_event(task, "global", "client", 3) == ()


def test_an_impossible_number_of_steps_is_refused() -> None:
    with pytest.raises((ConfigError, ValueError), match="steps"):
        PrivateLocalTrainer(steps=0)


Leaves = dict[str, Tensor]


def by_transport(trainer: Any, task: Task, leaves: Leaves, batch: Any) -> Tensor:
    texts = pair_texts(task, leaves)
    return transported_losses(task, texts, batch, trainer.transport).sum()


def of_product(trainer: Any, task: Task, leaves: Leaves, batch: Any) -> Tensor:
    """Leave the contrast out: it enters once, whoever has how many records."""
    text = task.prompts(personal_context(leaves))[0]
    logits = task.logit_scale * batch.features[0] @ text.T
    return cross_entropy(logits, batch.labels[0])


@dataclass(frozen=True)
class Pair:
    """What differs between the trainers.

    Attributes:
        name: The trainer's.
        quick: Settings of all its runs here.
        own: What a client keeps.
        loss: Oracle: of a client's batch.
        context: What the published code's prompt in training is.
    """

    name: str
    quick: dict[str, Any]
    own: tuple[str, ...]
    loss: Callable[[Any, Task, Leaves, Any], Tensor]
    context: Callable[[Leaves], Tensor]

    def make(self, **options: Any) -> Any:
        usual = {"learning_rate": 0.05, "batch_size": 5}
        return TRAINERS.find(self.name)(**(usual | self.quick | options))

    def start(self, task: Task) -> Leaves:
        """Return one client's parameters, those that can be differentiated by."""
        trainer = self.make()
        kept = trainer.start_client(task, "client-0", Seeds(0))
        both = {**trainer.start(task, Seeds(0)), **kept}
        return {name: both[name][None] for name in (trainer.shared, *self.own)}


PAIRS = [
    Pair(
        "dp-fedotp",
        {"iterations": 10},
        ("local",),
        by_transport,
        lambda leaves: (leaves["global"] + leaves["local"])[0],
    ),
    Pair(
        "dp-fedpgp",
        {"rank": 2},
        ("u", "v"),
        of_product,
        lambda leaves: personal_context(leaves)[0],
    ),
]
pairs = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)


def leaves_of(parameters: Leaves) -> Leaves:
    return {name: t.clone().requires_grad_() for name, t in parameters.items()}


def slopes(loss: Tensor, leaves: Leaves) -> Leaves:
    found = torch.autograd.grad(loss, list(leaves.values()))
    return dict(zip(leaves, found, strict=True))


@pytest.mark.parametrize("contrast", [0.0, 2.0])
@pairs
def test_without_noise_a_sound_step_descends_the_summed_loss(
    pair: Pair, contrast: float, task: Task, shards: Shards
) -> None:
    """Everyone is in the sample, over 12 whoever has; the contrast counts once."""
    has_contrast = "u" in pair.own
    extra = {"contrast": contrast} if has_contrast else {}
    trainer = pair.make(batch_size=ALL, steps=1, **extra)
    start, cohort = pair.start(task), Cohort.of(["client-0"], [shards["client-0"]])
    sent = {trainer.shared: start[trainer.shared]}
    kept = {name: start[name] for name in pair.own}
    done = trainer.local_update(task, cohort, sent, kept, AT)
    leaves = leaves_of(start)
    mean = pair.loss(trainer, task, leaves, trainer.draw_batch(task, cohort, AT))
    loss = mean * len(shards["client-0"]) / ALL
    if has_contrast:
        loss = loss + contrast * prompts_contrast(task, leaves, 0.5).sum()
    found = {**done.sent, **done.kept}
    for name, gradient in slopes(loss, leaves).items():
        want = start[name] - 0.05 * gradient
        torch.testing.assert_close(found[name], want, rtol=1e-4, atol=1e-6)
    if not has_contrast:
        torch.testing.assert_close(done.loss, mean.detach()[None])


@pytest.mark.parametrize(
    ("pair", "extra", "least"), [(PAIRS[0], {}, 1), (PAIRS[1], {"contrast": 50.0}, 10)]
)
def test_one_record_moves_all_prompts_by_the_clip_norm_at_most(
    pair: Pair, extra: dict[str, Any], least: float, task: Task, shards: Shards
) -> None:
    """Jointly: plans run a fixed number of iterations, so that no other one moves.

    The contrast is the same with or without it, and is not clipped.
    """
    trainer = pair.make(batch_size=ALL, epsilon=1.0, clip_norm=0.5, steps=1, **extra)
    start, shard = pair.start(task), shards["client-0"]
    losses, penalty = trainer.losses(task), trainer.penalty(task)
    sums = []
    for count in (len(shard), len(shard) - 1):
        cohort = Cohort.of(["client-0"], [shard.pick(torch.arange(count))])
        found, _ = trainer.gradients(task, cohort, start, losses, AT, penalty)
        sums.append(torch.cat([g.flatten() for g in found.values()]) * ALL)
    moved = float((sums[0] - sums[1]).norm())
    assert moved == pytest.approx(0.5, rel=1e-3)  # its gradient was longer
    assert sums[0].norm() > least


@pairs
def test_as_published_clients_noise_what_they_keep_and_the_server_the_mean(
    pair: Pair, play: Play, task: Task, shards: Shards
) -> None:
    """Clients without records: what is left is noise, of the published deviation."""
    still = {"iterations": 1} if pair.own == ("local",) else {"contrast": 0.0}
    trainer = pair.make(
        **{"mode": "published-paper", "epsilon": 2.0, "batch_size": 32} | still
    )
    std = math.sqrt(task.rounds * math.log(1e5)) / 2 * 10 / 32
    played = play(trainer, rounds=0, shards=emptied(shards))
    own, shared = [], []
    for index in range(60):
        before, kept = played.server[trainer.shared], dict(played.kept)
        played.step()
        shared.append(played.server[trainer.shared] - before)
        for client, sent in played.uploads(index).items():
            moved = [played.kept[client][n] - kept[client][n] for n in pair.own]
            own += [one.flatten() for one in moved]
            assert torch.equal(sent[trainer.shared], before)
    # 2,700 draws at least, and 900: standard errors of 1.4 % and 2.4 %.
    assert float(torch.cat(own).std()) == pytest.approx(std, rel=0.06)
    assert float(torch.stack(shared).std()) == pytest.approx(std / 3, rel=0.1)


@pytest.mark.parametrize("mode", ["published-paper", "published-code"])
@pairs
def test_published_noise_proves_nothing_against_the_server_that_adds_it(
    pair: Pair, mode: str, play: Play
) -> None:
    """Two factors, each clipped by itself, cost a buyer sqrt(2) times one."""
    played = play(pair.make(mode=mode, epsilon=0.4))
    assert played.proved("server") is None
    assert played.proved("server-aggregate") is None
    others, buyer = played.proved("peer"), played.proved("released")
    assert others is not None
    assert buyer is not None
    assert others < buyer
    (local,) = (e for e in played.rounds[0].events if e.release == "local")
    assert local.sensitivity == pytest.approx(2 * math.sqrt(len(pair.own)))


@pairs
def test_the_published_code_descends_cross_entropy_alone(
    pair: Pair, play: Play, task: Task, shards: Shards
) -> None:
    """By hand: no transport, no contrast; momentum 0.9, decay 5e-4 on either side."""
    extra = {"contrast": 5.0} if "u" in pair.own else {}
    trainer = pair.make(mode="published-code", batch_size=100, **extra)
    pooled = {c: Records(s.features, s.labels) for c, s in shards.items()}
    played = play(trainer, rounds=0, shards=pooled)
    shared, kept = played.server[trainer.shared], played.kept["client-0"]
    own = {name: kept[name][None] for name in pair.own}
    leaves = leaves_of({trainer.shared: shared[None], **own})
    loss = context_loss(task, pair.context(leaves), pooled["client-0"])
    gradients = slopes(loss, leaves)
    played.step()
    ups = [sent["gradient"] for sent in played.uploads().values()]
    torch.testing.assert_close(ups[0], gradients[trainer.shared][0])
    for name in pair.own:
        want = kept[name] - 0.05 * (gradients[name][0] + 5e-4 * kept[name])
        torch.testing.assert_close(played.kept["client-0"][name], want)
    want = shared - 0.05 * (torch.stack(ups).mean(0) + 5e-4 * shared)
    torch.testing.assert_close(played.server[trainer.shared], want)


@pytest.mark.parametrize("threat", ["server", "server-aggregate"])
@pytest.mark.parametrize("kind", [DPFedOTP, DPFedPGP])
@pytest.mark.parametrize("mode", ["published-paper", "published-code"])
def test_a_server_follows_the_sums_before_its_own_noise(
    kind: Any, mode: str, threat: str, play: Play
) -> None:
    """With next to no noise that leads to its last broadcast, with noise elsewhere."""
    for epsilon, is_there in ((1e9, True), (0.1, False)):
        trainer = kind(mode=mode, epsilon=epsilon)
        view = find_threat(threat)(play(trainer).messages)
        clean = trainer.without_own_noise(view)
        last = view.last_broadcast("client-0").tensors[trainer.shared]
        assert torch.allclose(clean, last, atol=1e-4) == is_there


def test_without_noise_of_its_own_there_is_nothing_to_leave_out(play: Play) -> None:
    for options, threat in (
        ({}, "server"),
        ({"mode": "published-paper"}, "peer:client-2"),
    ):
        trainer = DPFedPGP(epsilon=8.0, **options)  # type: ignore[arg-type]
        view = find_threat(threat)(play(trainer).messages)
        assert trainer.without_own_noise(view) is None
