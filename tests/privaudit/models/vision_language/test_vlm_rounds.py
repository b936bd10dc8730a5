"""Each family is trained for a round, and attacked token by token."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from privaudit import train
from privaudit.core.devices import use_device
from privaudit.datasets.dataset import DATASETS
from privaudit.models.frozen_model import FrozenModel
from privaudit.models.registry import load_frozen
from privaudit.runs.run import Run
from tests.audited_runs import attack_one_client
from tests.simulated_device import another_device, assert_agree
from tests.small_records import SMALL_RUN, ragged_data
from tests.small_vlms import FAMILIES, save_vlm

TINY = SMALL_RUN | {
    "dataset": "ragged-pictures",
    "tested": 2,
    "test_share": 0.1,
    "public_share": 0.45,
    "settings": {"rank": 2},
    "targets": "q_proj,down_proj",  # fewer than all, for the time of the type checks
}


@pytest.fixture(scope="module", autouse=True)
def data_sets() -> Iterator[None]:
    DATASETS.names()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DATASETS._entries, "ragged-pictures", lambda: ragged_data(24))
        patch.setattr("privaudit.runs.population.load_frozen", _loaded)
        yield


@cache
def _loaded(model: str, targets: str, **_: object) -> FrozenModel:
    return load_frozen(model, targets=targets)


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_vlm(tmp_path_factory.mktemp(request.param), request.param)


def test_every_family_is_trained_with_all_of_its_pairs(
    model: str, tmp_path: Path
) -> None:
    check_round(train("lora-fedavg", folder=tmp_path, model=model, **TINY))


def test_every_family_is_trained_and_attacked(model: str, tmp_path: Path) -> None:
    run = train("fedrand", folder=tmp_path, model=model, **TINY)
    check_round(run)
    attack_one_client(run, "server-reconstruct", "token-loss", "max-renyi")


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["llava_next", "gemma3"])
def test_a_round_on_another_device_is_the_same(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_vlm(tmp_path / "model", family)
    here = train("lora-fedavg", folder=tmp_path, name="here", model=model, **TINY)
    load = "privaudit.runs.population.load_frozen"
    monkeypatch.setattr(load, load_frozen)  # to that device, not once for all
    with another_device() as device, use_device(device):
        there = train("lora-fedavg", folder=tmp_path, name="there", model=model, **TINY)
    for one, other in zip(here.transcript, there.transcript, strict=True):
        assert_agree(one.tensors, other.tensors)


def check_round(run: Run) -> None:
    assert run.is_complete
    before = next(m for m in run.transcript if m.sender == "server").tensors
    sent = [m for m in run.transcript if m.is_update]
    assert len(sent) == 2
    for message in sent:
        assert all(tensor.isfinite().all() for tensor in message.tensors.values())
        assert any(
            not torch.equal(message.tensors[name], tensor)
            for name, tensor in before.items()
            if name in message.tensors
        )
