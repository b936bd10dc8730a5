from collections.abc import Callable

import pytest
import torch

from privaudit.federated.threat_models import find_threat
from privaudit.federated.trainer import Records, Task
from privaudit.federated.transcript import Message
from privaudit.trainers.dp_fedotp import DPFedOTP
from privaudit.trainers.dp_fedpgp import DPFedPGP

Train = Callable[..., list[Message]]


@pytest.mark.parametrize("threat", ["server", "server-aggregate"])
@pytest.mark.parametrize("kind", [DPFedOTP, DPFedPGP])
@pytest.mark.parametrize("mode", ["published-paper", "published-code"])
def test_a_server_follows_the_sums_before_its_own_noise(
    kind: type[DPFedOTP] | type[DPFedPGP],
    mode: str,
    threat: str,
    task: Task,
    shards: dict[str, Records],
    train: Train,
) -> None:
    """With next to no noise that leads to its last broadcast, with noise elsewhere."""
    for epsilon, is_there in ((1e9, True), (0.1, False)):
        trainer = kind(mode=mode, epsilon=epsilon)  # type: ignore[arg-type]
        view = find_threat(threat)(train(trainer, task, shards))
        clean = trainer.without_own_noise(view)
        assert clean is not None
        last = view.last_broadcast("client-0").tensors[trainer.shared]
        assert torch.allclose(clean, last, atol=1e-4) == is_there


def test_without_noise_of_its_own_there_is_nothing_to_leave_out(
    task: Task, shards: dict[str, Records], train: Train
) -> None:
    sound = DPFedPGP(epsilon=8.0)
    assert (
        sound.without_own_noise(find_threat("server")(train(sound, task, shards)))
        is None
    )
    published = DPFedPGP(mode="published-paper", epsilon=8.0)
    neighbour = find_threat("peer:client-2")(train(published, task, shards))
    assert published.without_own_noise(neighbour) is None
