"""Optimisers, schedules and what is remembered across rounds, against torch.optim."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from privaudit import train
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked
from privaudit.federation.batches import Batch, Batches, epochs_of_batches
from privaudit.federation.rounds import OPTIMIZER
from privaudit.federation.trainer import TRAINERS, Cohort, Records, Round, Task
from privaudit.runs.config import make_config
from privaudit.trainers.dp_fpl import DPFPL
from privaudit.trainers.dp_promptfl import DPPromptFL
from privaudit.trainers.promptfl import PromptFL
from privaudit.tuning.optimiser import Optimised, Optimiser, fit
from tests.conftest import common_cache, train_and_stop
from tests.toy_federation import Play

TORCHS: dict[str, Any] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def shard(count: int, seed: int) -> Records:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 3, generator=generator)
    return Records(features, torch.zeros(count, dtype=torch.long))


def squares(parameters: Stacked, batch: Batch) -> Tensor:
    gaps = torch.einsum("kbd,kd->kb", batch.features, parameters["w"]) - 1
    return (gaps**2 * batch.mask).sum(dim=1) / batch.mask.sum(dim=1).clamp(min=1)


def two_clients() -> tuple[Cohort, Batches]:
    """Return two clients, of whom one has fewer batches than the other."""
    cohort = Cohort.of(["client-0", "client-1"], [shard(9, 0), shard(4, 1)])
    at = Round(0, Seeds(0), cohort.clients)
    return cohort, epochs_of_batches(cohort, at, epochs=2, batch_size=2)


def torchs(kind: str, weight: Tensor, rate: float, **options: float) -> Any:
    if "momentum" in options and kind != "sgd":
        options["betas"] = (options.pop("momentum"), 0.999)  # type: ignore[assignment]
    return TORCHS[kind]([weight], lr=rate, **options)


@pytest.mark.parametrize("kind", TORCHS)
@pytest.mark.parametrize(("momentum", "decay"), [(0.9, 0.0), (0.5, 0.1), (0.0, 0.1)])
def test_it_is_torchs_optimiser_for_each_client(
    kind: Any, momentum: float, decay: float
) -> None:
    """Stacked rows against one by one; twice, for what is remembered in between."""
    cohort, batches = two_clients()
    start = torch.randn(2, 3, generator=torch.Generator().manual_seed(4))
    ours, slots = {"w": start}, dict[str, Tensor]()
    optimiser = Optimiser(kind, momentum, decay)
    for _ in range(2):
        ours, _ = fit(cohort, ours, batches, squares, optimiser, 0.05, slots=slots)
    for row in range(2):
        weight = start[row].clone().requires_grad_()
        theirs = torchs(kind, weight, 0.05, momentum=momentum, weight_decay=decay)
        plan = list(zip(batches.chosen[:, row], batches.mask[:, row], strict=True))
        for chosen, mask in plan * 2:
            if mask.any():
                theirs.zero_grad()
                gaps = cohort.features[row, chosen[mask]] @ weight - 1
                (gaps**2).mean().backward()
                theirs.step()
        torch.testing.assert_close(ours["w"][row], weight.detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", TORCHS)
def test_who_has_no_record_stays_and_remembers_nothing(kind: Any) -> None:
    cohort = Cohort.of(["client-0", "client-1"], [shard(3, 0), shard(0, 1)])
    at = Round(0, Seeds(0), cohort.clients)
    batches = epochs_of_batches(cohort, at, epochs=1, batch_size=2)
    slots: dict[str, Tensor] = {}
    ours, loss = fit(
        cohort, {"w": torch.ones(2, 3)}, batches, squares, Optimiser(kind, 0.9, 0.1),
        0.05, slots=slots,
    )  # fmt: skip
    assert ours["w"][1].tolist() == [1, 1, 1]
    assert loss[1] == 0
    assert slots
    assert all(not tensor[1].any() for tensor in slots.values())


@pytest.mark.parametrize("warmup", [0, 1, 3])
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_rates_are_those_of_torchs_schedulers(
    warmup: int, schedule: Any, task: Task
) -> None:
    task = replace(task, rounds=10)
    trainer = PromptFL(schedule=schedule, warmup_rounds=warmup)
    optimiser = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    schedulers = torch.optim.lr_scheduler
    then: Any = schedulers.ConstantLR(optimiser, 1.0)
    if schedule == "cosine":
        then = schedulers.CosineAnnealingLR(optimiser, 10 - warmup)
    if warmup:
        rise = schedulers.LinearLR(optimiser, 1 / warmup, 1.0, max(1, warmup - 1))
        then = schedulers.SequentialLR(optimiser, [rise, then], [warmup])
    for index in range(10):
        rate = 0.1 * trainer.rate_share(task, index)
        assert rate == pytest.approx(optimiser.param_groups[0]["lr"], abs=1e-12)
        optimiser.step()
        then.step()


def test_every_trainer_that_learns_has_the_settings() -> None:
    for name in TRAINERS.names():
        learns = isinstance(TRAINERS.find(name)(), Optimised)
        assert learns == (name != "zero-shot"), name


def test_a_run_of_the_usual_settings_keeps_its_name() -> None:
    for name in TRAINERS.names():
        config = make_config(name)
        assert not config.settings.keys() & {"schedule", "optimizer_state"}
        if name != "zero-shot":
            changed = make_config(name, {"warmup_rounds": 1})
            assert changed.settings == config.settings | {"warmup_rounds": 1}
            assert changed.short_hash != config.short_hash


def test_what_is_kept_makes_rounds_one_long_training(play: Play, task: Task) -> None:
    """A single client that trains alone, against torch's AdamW over all rounds."""
    for state in ("kept", "new"):
        trainer = TRAINERS.find("coop")(
            optimizer="adamw", weight_decay=0.1, optimizer_state=state, epochs=3,
            learning_rate=0.01,
        )  # fmt: skip
        played = play(trainer, 0)
        weight = played.kept["client-0"]["context"].clone().requires_grad_()
        theirs = torch.optim.AdamW([weight], lr=0.01, weight_decay=0.1)
        records = played.federation.shards["client-0"]
        for _ in range(3):
            played.step()
            for _ in range(3):
                theirs.zero_grad()
                text = task.prompts(weight.unsqueeze(0))[0]
                logits = task.logit_scale * records.features @ text.T
                torch.nn.functional.cross_entropy(logits, records.labels).backward()
                theirs.step()
        ours = played.kept["client-0"]["context"]
        gap = (ours - weight.detach()).abs().max().item()
        assert (gap < 1e-5) == (state == "kept")
        assert any(n.startswith(OPTIMIZER) for n in played.kept["client-0"]) == (
            state == "kept"
        )
        assert list(played.models["client-0"]) == ["context"]


def test_a_resumed_run_goes_on_with_what_was_kept(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Under partial participation: who sits out goes on from where it was."""
    options: dict[str, Any] = {
        "seed": 0,
        "rounds": 4,
        "participation": 0.5,
        "epochs": 2,
    }
    options |= {"clients": 4, "shots": 4, "measured_rounds": 1, "tested": 10}
    options |= {"optimizer": "adam", "optimizer_state": "kept", "schedule": "cosine"}
    with common_cache(tmp_path_factory):
        whole = train(name="whole-adam", **options)
        train_and_stop(2, name="cut-adam", **options)
        resumed = train(name="cut-adam", resume=True, **options)
    assert resumed.transcript.head == whole.transcript.head


@pytest.mark.parametrize("noise_at", ["server", "client"])
def test_a_server_replays_the_optimiser_on_uploads(noise_at: Any, play: Play) -> None:
    """Without noise and factors an upload is the gradient of the local prompt too."""
    trainer = DPFPL(
        rank="full", noise_at=noise_at, optimizer="adam", optimizer_state="kept",
        schedule="cosine", batch_size=10**6, learning_rate_local=0.01,
    )  # fmt: skip
    played = play(trainer, 3)
    start = play(trainer, 0)
    moved = played.kept["client-0"]["local"] - start.kept["client-0"]["local"]
    rebuilt = played.rebuild("server").model["context"]
    global_context = played.server["context"]
    torch.testing.assert_close(rebuilt - global_context, moved, rtol=1e-4, atol=1e-5)


def test_the_optimiser_costs_no_epsilon(play: Play) -> None:
    """Noise goes in before it: the mechanisms, and what they prove, are the same."""
    plain = play(DPPromptFL(epsilon=8.0, steps=1), 2)
    adam = DPPromptFL(
        epsilon=8.0, steps=1, optimizer="adamw", optimizer_state="kept",
        weight_decay=0.1, schedule="cosine",
    )  # fmt: skip
    stepped = play(adam, 2)
    assert [r.events for r in plain.rounds] == [r.events for r in stepped.rounds]
    assert plain.proved("server") == stepped.proved("server")
