"""Counts by rank: exact where one layer has more rows than its client has records."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from privaudit.auditing.audit import Audit
from privaudit.auditing.stored_audit import read_audit, restore_audit, save_audit
from privaudit.core.tensors import Tensors
from privaudit.federation.threat_models import EVERYBODY
from privaudit.report.page import render_report
from privaudit.runs.run import load_run
from privaudit_labs.counting.counted_records import COUNTED_RECORDS
from tests.attacks.test_weight_attacks import Published, recorded
from tests.privaudit.recording.small_federation import (
    CLASSES,
    FEATURES,
    NAMES,
    Linear,
    X,
    audited,
    record,
    say_update,
    start,
    toss,
)

DRAWN, LEDGER = torch.Generator().manual_seed(3), toss()
WIDE = torch.randn(64, FEATURES, generator=DRAWN) / FEATURES**0.5
HEAD = torch.randn(CLASSES, 64, generator=DRAWN) / 8  # no record is learned already
MEMBERS = {name: len(LEDGER.members_of(n)) for n, name in enumerate(NAMES)}


@dataclass
class Wide(Linear):
    """A dense layer of 64 rows before a head that stays; noise on what is sent."""

    steps: int = 1
    noise: float = 0.0

    def query(self, tensors: Tensors, positions: np.ndarray) -> Tensor:
        return torch.relu(X[positions] @ tensors["weight"].T) @ HEAD.T

    def local_update(
        self, received: Tensors, positions: np.ndarray, seed: int
    ) -> dict[str, Tensor]:
        sent = super().local_update(received, positions, seed)
        drawn = torch.Generator().manual_seed(seed)
        size = sent["weight"].shape
        return {
            "weight": sent["weight"] + self.noise * torch.randn(size, generator=drawn)
        }


class OneHot(Wide):
    """Every input is one of 16 single ones, or the sum of two of them."""

    def query(self, tensors: Tensors, positions: np.ndarray) -> Tensor:
        single = torch.eye(FEATURES)[:16]
        inputs = torch.cat([single, single + single.roll(1, 0)])[positions % 32]
        return torch.relu(inputs @ tensors["weight"].T) @ HEAD.T


def audit_of(
    folder: Path, owner: Linear, scenario: str = "server-reconstruct"
) -> Audit:
    begin = {"weight": WIDE} if isinstance(owner, Wide) else start()
    record(folder, LEDGER, owner, played={"begin": begin})
    return audited(folder, scenario, owner=owner, shadows=0)


@pytest.mark.parametrize("steps", [1, 5])
def test_a_wide_layer_counts_every_record(tmp_path: Path, steps: int) -> None:
    """Five steps, too: inputs stay, so their span is the same."""
    audit = audit_of(tmp_path / "run", Wide(steps=steps))
    found = audit.part(COUNTED_RECORDS)
    assert {one.client: one.rank for one in found} == MEMBERS
    assert {one.client: one.members for one in found} == MEMBERS
    assert all(one.rank < one.most for one in found)
    assert not any(one.dependent for one in found)
    name, count = next(iter(MEMBERS.items()))
    assert f"{name} {count} ({count} members)" in render_report([audit])
    save_audit(audit)
    again = restore_audit(read_audit(load_run(tmp_path / "run"), audit.scenario.name))
    assert again.part(COUNTED_RECORDS) == found


def test_inputs_that_are_copies_or_sums_are_counted(tmp_path: Path) -> None:
    audit = audit_of(tmp_path / "run", OneHot())
    found = audit.part(COUNTED_RECORDS)
    assert [one.dependent for one in found] == [24 - 16] * len(NAMES)
    assert "Inputs of 24 candidates are copies or sums" in render_report([audit])


def test_of_sums_all_clients_are_counted_together(tmp_path: Path) -> None:
    (one,) = audit_of(tmp_path / "run", Wide(), "server-aggregate").part(
        COUNTED_RECORDS
    )
    assert (one.client, one.rank) == (EVERYBODY, sum(MEMBERS.values()))


@pytest.mark.parametrize("owner", [Linear(steps=1), Wide(noise=1e-3)])
def test_a_rank_that_is_as_large_as_it_can_be_counts_nothing(
    tmp_path: Path, owner: Linear
) -> None:
    """A head of four classes has three directions, and noise fills them all."""
    audit = audit_of(tmp_path / "run", owner)
    assert all(one.rank >= one.most for one in audit.part(COUNTED_RECORDS))
    assert "counts no records" in render_report([audit])


def test_of_a_released_average_all_clients_are_counted_together(tmp_path: Path) -> None:
    folder = recorded(tmp_path, say_update, Linear(steps=3))
    audit = audited(folder, "prompt-release", owner=Published(Linear()), shadows=0)
    assert [one.client for one in audit.part(COUNTED_RECORDS)] == ["clients"]
