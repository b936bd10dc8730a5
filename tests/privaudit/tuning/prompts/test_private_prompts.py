import math
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from privaudit.core.errors import ConfigError
from privaudit.core.tensors import Stacked
from privaudit.federated.batches import Batch
from privaudit.federated.trainer import Cohort, Records, Task
from privaudit.tuning.prompts.private_prompts import PrivateLocalTrainer, context_losses
from tests.toy_federation import ALL, AT, context_gradient


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


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(gone=st.integers(0, 8), clip=st.floats(0.05, 20))
def test_one_record_moves_all_parameters_together_by_at_most_the_clip_norm(
    gone: int, clip: float, task: Task, shards: dict[str, Records]
) -> None:
    """The sensitivity that the certificate takes for granted, in mode "sound"."""
    trainer = PrivateLocalTrainer(epsilon=1.0, clip_norm=clip, batch_size=ALL)
    shard = shards["client-1"]
    fewer = shard.pick(torch.arange(len(shard)) != gone)
    with_it, without = (
        trainer.gradients(
            task, Cohort.of(["c"], [some]), start(1), losses_of(task), AT, square
        )[0]
        for some in (shard, fewer)
    )
    moved = torch.cat([(with_it[n] - without[n]).flatten() for n in with_it])
    assert 0 < float(moved.norm()) * trainer.divisor(task) <= clip * 1.0001


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(gone=st.integers(0, 8), clip=st.floats(0.05, 20), rate=st.floats(0.01, 2))
def test_one_record_moves_a_published_prompt_by_at_most_two_clips_times_the_rate(
    gone: int, clip: float, rate: float, task: Task, shards: dict[str, Records]
) -> None:
    trainer = PrivateLocalTrainer(
        mode="published-paper", clip_norm=clip, learning_rate=rate
    )
    shard = shards["client-1"]
    fewer = shard.pick(torch.arange(len(shard)) != gone)
    with_it, without = (
        trainer.train(task, Cohort.of(["c"], [some]), start(1), losses_of(task), AT)[0]
        for some in (shard, fewer)
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
    trainer = PrivateLocalTrainer(
        mode="published-paper", epsilon=0.4, learning_rate=0.01
    )
    (prompt,) = trainer.prompt_event(task, "global", "client", 3)
    (gradient,) = trainer.gradient_event(task, "global", "client", 3)
    std = math.sqrt(task.rounds * math.log(1e5)) / 0.4 * 10 / 32
    assert trainer.noise_std(task) == pytest.approx(std)
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
        assert trainer.gradient_event(task, "global", "client", 3) == ()


def test_an_impossible_number_of_steps_is_refused() -> None:
    with pytest.raises((ConfigError, ValueError), match="steps"):
        PrivateLocalTrainer(steps=0)
