from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import stack
from privaudit.federated.federation import Federation, give_away, run_round
from privaudit.federated.runs.config import build_trainer
from privaudit.federated.threat_models import find_threat
from privaudit.federated.trainer import Cohort, Records, Round, Task
from privaudit.federated.transcript import SERVER
from privaudit.trainers.fedpgp import FedPGP
from privaudit.trainers.promptfl import PromptFL
from privaudit.tuning.prompts.contrast import contrast, personal_context

AT = Round(0, Seeds(0), ("client-0", "client-1", "client-2"))


def make(**options: Any) -> FedPGP:
    return FedPGP(**({"epochs": 2, "learning_rate": 0.05, "rank": 2} | options))


def start(trainer: FedPGP, task: Task) -> dict[str, Tensor]:
    kept = trainer.start_client(task, "client-0", Seeds(0))
    return {**trainer.start(task, Seeds(0)), **kept}


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_one_step_descends_the_loss_and_sends_sigma(
    weight: float, task: Task, shards: dict[str, Records]
) -> None:
    """Oracle: cross-entropy and contrast, written out and differentiated."""
    trainer = make(epochs=1, momentum=0.0, contrast=weight)
    shard, before = shards["client-0"], start(trainer, task)
    leaves = {n: t.clone()[None].requires_grad_() for n, t in before.items()}
    shared, own = (
        task.prompts(c) for c in (leaves["context"], personal_context(leaves))
    )
    logits = task.logit_scale * shard.features @ own[0].T
    apart = contrast(task.zero_shot, shared, own, 0.5).sum()
    loss = cross_entropy(logits, shard.labels) + weight * apart
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    done = trainer.local_update(
        task,
        Cohort.of(["client-0"], [shard]),
        {"context": before["context"][None]},
        {name: before[name][None] for name in ("u", "v")},
        AT,
    )
    found = {**done.kept, "context": done.sent["context"] / len(shard)}
    for name, gradient in zip(leaves, gradients, strict=True):
        want = before[name] - 0.05 * gradient
        torch.testing.assert_close(found[name], want, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(done.loss, loss.detach()[None])


def test_without_contrast_and_factors_it_is_promptfl(
    task: Task, shards: dict[str, Records]
) -> None:
    """U = V = 0 have no gradient: sigma is trained alone."""
    trainer, plain = make(contrast=0.0), PromptFL(epochs=2, learning_rate=0.05)
    cohort = Cohort.of(list(shards), list(shards.values()))
    received = stack([trainer.start(task, Seeds(0))] * 3)
    nothing = {"u": torch.zeros(3, 3, 2), "v": torch.zeros(3, 2, 5)}
    found = trainer.local_update(task, cohort, received, nothing, AT)
    want = plain.local_update(task, cohort, received, {}, AT)
    torch.testing.assert_close(found.sent["context"], want.sent["context"])
    assert (found.kept["u"] == 0).all()


def test_the_contrast_draws_sigma_to_the_hand_written_prompt(
    task: Task, shards: dict[str, Records]
) -> None:
    near = []
    for weight in (0.0, 20.0):
        trainer = make(contrast=weight, epochs=20, learning_rate=0.01)
        federation = Federation.begin(trainer, task, shards, Seeds(0))
        for index in range(3):
            run_round(trainer, task, [federation], index)
        texts = task.prompts(federation.server["context"][None])[0]
        near.append(float((texts * task.zero_shot).sum(-1).mean()))
    assert near[1] > near[0] + 0.02


def test_the_server_weighs_by_hand(task: Task) -> None:
    """Two clients with 1 and 3 records: (1 * 2 + 3 * 6) / 4 = 5."""
    sums = {"context": torch.tensor([[1 * 2.0 + 3 * 6.0]]), "weight": torch.tensor(4.0)}
    after, _ = FedPGP().aggregate(task, {}, sums, AT)
    assert after["context"].item() == 5.0
    nothing = {"context": torch.zeros(1, 1), "weight": torch.tensor(0.0)}
    assert FedPGP().aggregate(task, after, nothing, AT) == (after, ())


def test_factors_stay_at_home_and_show_in_the_release(
    task: Task, shards: dict[str, Records]
) -> None:
    trainer = make()
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    (record,) = run_round(trainer, task, [federation], 0)
    for message in record.messages:
        names = {"context"} if message.sender == SERVER else {"context", "weight"}
        assert set(message.tensors) == names
    models, _ = give_away(trainer, task, federation, 1)
    kept = federation.kept["client-1"]
    want = federation.server["context"] + kept["u"] @ kept["v"]
    torch.testing.assert_close(models["client-1"]["context"], want)


@pytest.mark.parametrize("rank", [1, 3, 9])
def test_any_rank_trains(rank: int, task: Task, shards: dict[str, Records]) -> None:
    """Beyond the prompt's 3 tokens, too: more factors for the same product."""
    federation = Federation.begin(make(rank=rank), task, shards, Seeds(0))
    before = {c: k["u"].clone() for c, k in federation.kept.items()}
    run_round(make(rank=rank), task, [federation], 0)
    for client, kept in federation.kept.items():
        assert kept["u"].shape == (3, rank)
        assert not torch.equal(kept["u"], before[client])


@pytest.mark.parametrize(
    ("threat", "missing"),
    [("server", 1), ("server-aggregate", 2), ("peer:client-0", 2), ("released", 0)],
)
def test_each_view_says_what_it_lacks(
    threat: str, missing: int, task: Task, shards: dict[str, Records]
) -> None:
    trainer = make()
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    (record,) = run_round(trainer, task, [federation], 0)
    models, last = give_away(trainer, task, federation, 1)
    view = find_threat(threat)([*record.messages, *last])
    reconstructed = trainer.reconstruct(task, view, "client-2")
    assert len(reconstructed.missing) == missing
    assert reconstructed.estimated == (threat == "server")
    if not missing:
        assert torch.equal(
            reconstructed.model["context"], models["client-2"]["context"]
        )


def test_the_server_fits_its_own_factors_to_an_upload(
    task: Task, shards: dict[str, Records]
) -> None:
    """They lower the loss on its own records, and are the same each time."""
    trainer = make(learning_rate=0.005)
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    (record,) = run_round(trainer, task, [federation], 0)
    view = find_threat("server")(record.messages)
    first, again = (trainer.reconstruct(task, view, "client-0").model for _ in range(2))
    assert torch.equal(first["context"], again["context"])
    (up,) = (m.tensors for m in record.messages if m.sender == "client-0")
    losses = []
    for context in (up["context"] / up["weight"], first["context"]):
        text = task.prompts(context[None])[0]
        logits = task.logit_scale * task.public.features @ text.T
        losses.append(float(cross_entropy(logits, task.public.labels)))
    assert losses[1] < losses[0] - 0.02


def test_without_contrast_an_upload_is_left_as_it_is(
    task: Task, shards: dict[str, Records]
) -> None:
    trainer = make(contrast=0.0)
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    (record,) = run_round(trainer, task, [federation], 0)
    view = find_threat("server")(record.messages)
    (up,) = (m.tensors for m in record.messages if m.sender == "client-0")
    reconstructed = trainer.reconstruct(task, view, "client-0")
    torch.testing.assert_close(
        reconstructed.model["context"], up["context"] / up["weight"]
    )
    assert not reconstructed.estimated


def test_impossible_options_are_refused_with_a_reason() -> None:
    for settings in ({"rank": 0}, {"contrast": -1.0}, {"temperature": 0.0}):
        with pytest.raises(ConfigError, match=next(iter(settings))):
            build_trainer("fedpgp", settings)
