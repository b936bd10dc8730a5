"""Equal seeds on other hardware: rounding differs, and must not grow."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from privaudit import Auditor, train
from privaudit.auditing.shadow_models.splits import paired_coins
from privaudit.core.seeds import Seeds
from privaudit.federated.runs.config import make_config
from privaudit.federated.runs.population import populate
from privaudit.federated.runs.runs import Run
from privaudit.federated.trainer import Records
from privaudit.models.frozen_model import FrozenModel
from tests.elsewhere import with_other_last_bits


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize(("trainer", "rounds"), [("promptfl", 2), ("dp-fpl", 40)])
def test_default_runs_agree_across_threads_and_chunks(
    trainer: str, rounds: int, threads: None
) -> None:
    """Other threads and chunks sum in another order, as another machine does.

    What the server sends, prompts, agrees to 1e-5; gradients to a hundredth.
    """

    def run(count: int, cohort_size: int) -> Run:
        torch.set_num_threads(count)
        return train(trainer, seed=4, rounds=rounds, cohort_size=cohort_size)

    for one, other in zip(run(1, 128).transcript, run(2, 3).transcript, strict=True):
        assert (one.round, one.sender, one.kind) == (
            other.round,
            other.sender,
            other.kind,
        )
        for name, tensor in one.tensors.items():
            # Gradients of a sharp softmax magnify what prompts differ by.
            allowed = (
                1e-5 if one.sender == "server" else 1e-2 * float(tensor.abs().max())
            )
            torch.testing.assert_close(
                tensor, other.tensors[name], rtol=0, atol=max(allowed, 1e-5)
            )


@pytest.fixture
def rounded_elsewhere(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on, features have the last bits of another kernel."""

    encode = FrozenModel.encode

    def rounded(*asked: Any, **how: Any) -> Records:
        return with_other_last_bits(encode(*asked, **how))

    def begin() -> None:
        monkeypatch.setattr(FrozenModel, "encode", rounded)

    return begin


@pytest.mark.parametrize(
    ("trainer", "more"),
    [
        ("promptfl", {}),
        ("promptfl", {"canary": "mislabelled", "canaries": 5}),
        ("lora-fedavg", {"dataset": "scenes-far", "model": "tiny-llava"}),
    ],
)
def test_coins_do_not_follow_the_last_bits_of_features(
    trainer: str, more: dict[str, Any], rounded_elsewhere: Callable[[], None]
) -> None:
    config = make_config(trainer, **more)

    def coins() -> tuple[Records, torch.Tensor]:
        mine = populate(config).candidates("client-1")
        return mine, paired_coins(mine, 40, Seeds(0).stream("shadow-coin"))

    here, tossed = coins()
    rounded_elsewhere()
    there, again = coins()
    assert not torch.equal(here.features, there.features)
    assert torch.equal(tossed, again)


def test_an_audit_does_not_follow_the_last_bits_of_features(
    rounded_elsewhere: Callable[[], None], tmp_path: Path
) -> None:
    """Trained and attacked with other last bits: every attack to a thousandth."""

    def aurocs(name: str) -> dict[str, float]:
        run = train(folder=tmp_path, name=name, rounds=2, epochs=1, seed=0)
        audit = Auditor(run).attack("server-reconstruct", clients=3, shadows=6)
        return {attack: leak.auroc.value for attack, leak in audit.results.items()}

    here = aurocs("here")
    rounded_elsewhere()
    assert aurocs("there") == pytest.approx(here, abs=1e-3)
