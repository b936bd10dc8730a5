from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import stack
from privaudit.federated.federation import Federation, give_away, run_round
from privaudit.federated.query import ask
from privaudit.federated.threat_models import find_threat
from privaudit.federated.trainer import Cohort, Records, Round, Task
from privaudit.federated.transcript import SERVER
from privaudit.trainers.fedotp import FedOTP
from privaudit.tuning.prompts.averaging import pair_texts
from privaudit.tuning.prompts.optimal_transport import transport_plan
from privaudit.tuning.prompts.transported_logits import transported_logits

AT = Round(0, Seeds(0), ("client-0", "client-1", "client-2"))


def make(**options: Any) -> FedOTP:
    return FedOTP(**({"epochs": 2, "learning_rate": 0.05} | options))


def prompts_of(trainer: FedOTP, task: Task, client: str) -> dict[str, Tensor]:
    kept = trainer.start_client(task, client, Seeds(0))
    return {**trainer.start(task, Seeds(0)), **kept}


def test_one_step_descends_both_prompts_and_sends_the_global_one(
    task: Task, shards: dict[str, Records]
) -> None:
    """Oracle: the transported similarities differentiated, the plan as a constant."""
    trainer, shard = make(epochs=1, momentum=0.0), shards["client-0"]
    start = prompts_of(trainer, task, "client-0")
    leaves = {n: t.clone()[None].requires_grad_() for n, t in start.items()}
    assert shard.tokens is not None
    texts = pair_texts(task, leaves)
    similarity = torch.einsum("kpcd,bmd->pkmbc", texts, shard.tokens)
    plan = transport_plan(similarity.detach(), trainer.transport).weights
    logits = task.logit_scale * (plan * similarity).sum((0, 2))[0]
    gradients = torch.autograd.grad(
        cross_entropy(logits, shard.labels), list(leaves.values())
    )
    done = trainer.local_update(
        task,
        Cohort.of(["client-0"], [shard]),
        {"global": start["global"][None]},
        {"local": start["local"][None]},
        AT,
    )
    found = {"global": done.sent["global"] / len(shard), "local": done.kept["local"]}
    for name, gradient in zip(leaves, gradients, strict=True):
        want = start[name] - 0.05 * gradient
        torch.testing.assert_close(found[name], want, rtol=1e-4, atol=1e-6)
    assert done.sent["weight"] == len(shard)


def test_the_server_weighs_by_hand(task: Task) -> None:
    """Two clients with 1 and 3 records: (1 * 2 + 3 * 6) / 4 = 5."""
    sums = {"global": torch.tensor([[1 * 2.0 + 3 * 6.0]]), "weight": torch.tensor(4.0)}
    after, _ = FedOTP().aggregate(task, {}, sums, AT)
    assert after["global"].item() == 5.0
    nothing = {"global": torch.zeros(1, 1), "weight": torch.tensor(0.0)}
    assert FedOTP().aggregate(task, after, nothing, AT) == (after, ())


def test_local_prompts_start_apart_and_stay_at_home(
    task: Task, shards: dict[str, Records]
) -> None:
    trainer = make()
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    starts = [k["local"] for k in federation.kept.values()]
    assert not torch.equal(starts[0], starts[1])
    (record,) = run_round(trainer, task, [federation], 0)
    for message in record.messages:
        names = {"global"} if message.sender == SERVER else {"global", "weight"}
        assert set(message.tensors) == names


def test_training_lowers_the_loss(task: Task, shards: dict[str, Records]) -> None:
    trainer = make(epochs=5)
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    losses = []
    for index in range(4):
        run_round(trainer, task, [federation], index)
        losses.append(sum(federation.losses.values()))
    assert losses[-1] < 0.7 * losses[0]


def test_two_equal_prompts_answer_as_one_does(
    task: Task, shards: dict[str, Records]
) -> None:
    trainer, prompt = FedOTP(stop="never"), torch.ones(1, 3, 5) / 10
    answers = ask(trainer, task, {"global": prompt, "local": prompt}, task.public)
    one = task.prompts(prompt)[:, None]
    assert task.public.tokens is not None
    logits = transported_logits(
        one, task.public.tokens[None], task.logit_scale, trainer.transport
    )
    torch.testing.assert_close(answers, logits.log_softmax(-1), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("settings", [{"stop": "batch"}, {"balanced": True}])
def test_published_variants_train_otherwise(
    settings: dict[str, Any], task: Task, shards: dict[str, Records]
) -> None:
    sent = []
    for trainer in (make(entropy=0.5), make(entropy=0.5, **settings)):
        federation = Federation.begin(trainer, task, shards, Seeds(0))
        run_round(trainer, task, [federation], 0)
        sent.append(federation.server["global"])
    assert not torch.equal(*sent)
    torch.testing.assert_close(*sent, rtol=0.5, atol=0.05)


@pytest.mark.parametrize(
    ("threat", "missing"),
    [("server", 1), ("server-aggregate", 2), ("peer:client-0", 2), ("released", 0)],
)
def test_each_view_rebuilds_what_it_can(
    threat: str, missing: int, task: Task, shards: dict[str, Records]
) -> None:
    trainer = make()
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    (record,) = run_round(trainer, task, [federation], 0)
    models, last = give_away(trainer, task, federation, 1)
    view = find_threat(threat)([*record.messages, *last])
    reconstructed = trainer.reconstruct(task, view, "client-2")
    assert len(reconstructed.missing) == missing
    (upload,) = (m for m in record.messages if m.sender == "client-2")
    own = upload.tensors["global"] / upload.tensors["weight"]
    expected = own if threat == "server" else federation.server["global"]
    torch.testing.assert_close(reconstructed.model["global"], expected)
    local = models["client-2"]["local"] if missing == 0 else expected
    torch.testing.assert_close(reconstructed.model["local"], local)


def test_pooled_features_are_refused_in_training_and_in_queries(
    task: Task, shards: dict[str, Records]
) -> None:
    trainer = make()
    pooled = {c: replace(s, tokens=None) for c, s in shards.items()}
    federation = Federation.begin(trainer, task, pooled, Seeds(0))
    with pytest.raises(ConfigError, match="data set of pictures"):
        run_round(trainer, task, [federation], 0)
    model = stack([prompts_of(trainer, task, "client-0")])
    with pytest.raises(ConfigError, match="data set of pictures"):
        ask(trainer, task, model, pooled["client-0"])
    assert FedOTP.image_tokens
