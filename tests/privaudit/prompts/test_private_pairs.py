import pytest
import torch

from privaudit.federation import Federation, give_away, run_round
from privaudit.seeds import Seeds
from privaudit.threats import View, find_threat
from privaudit.trainer import PublicTask, Records
from privaudit.trainers.dp_fedotp import DPFedOTP
from privaudit.trainers.dp_fedpgp import DPFedPGP
from privaudit.transcript import Message


def seen(
    trainer: DPFedOTP | DPFedPGP,
    task: PublicTask,
    shards: dict[str, Records],
    threat: str,
) -> View:
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    messages: list[Message] = []
    for index in range(task.rounds):
        messages += run_round(trainer, task, [federation], index)[0].messages
    messages += give_away(trainer, task, federation, task.rounds)[1]
    return find_threat(threat)(messages)


@pytest.mark.parametrize("threat", ["server", "server-aggregate"])
@pytest.mark.parametrize("kind", [DPFedOTP, DPFedPGP])
@pytest.mark.parametrize("mode", ["published-paper", "published-code"])
def test_a_server_follows_the_sums_before_its_own_noise(
    kind: type[DPFedOTP] | type[DPFedPGP],
    mode: str,
    threat: str,
    task: PublicTask,
    shards: dict[str, Records],
) -> None:
    """With next to no noise that leads to its last broadcast, with noise elsewhere."""
    for epsilon, is_there in ((1e9, True), (0.1, False)):
        trainer = kind(mode=mode, epsilon=epsilon)  # type: ignore[arg-type]
        view = seen(trainer, task, shards, threat)
        clean = trainer.without_own_noise(view)
        assert clean is not None
        last = view.last_broadcast("client-0").tensors[trainer.shared]
        assert torch.allclose(clean, last, atol=1e-4) == is_there


def test_without_noise_of_its_own_there_is_nothing_to_leave_out(
    task: PublicTask, shards: dict[str, Records]
) -> None:
    sound = DPFedPGP(epsilon=8.0)
    assert sound.without_own_noise(seen(sound, task, shards, "server")) is None
    published = DPFedPGP(mode="published-paper", epsilon=8.0)
    buyer = seen(published, task, shards, "peer:client-2")
    assert published.without_own_noise(buyer) is None
